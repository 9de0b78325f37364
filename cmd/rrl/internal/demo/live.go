package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// live.go shows a demo on a terminal: a frame, drawn a few times a second. frame draws it as text,
// for any size; the model writes it to the terminal and reads the keys.

// showLive runs the view until ctx ends or the user quits.
func showLive(ctx context.Context, f func(columns int) figures, java string, in io.Reader, out io.Writer) error {
	return newLive(f, java).Run(ctx, in, out)
}

// newLive returns the view of a demo; java is the program that joins, "" if none can.
func newLive(f func(columns int) figures, java string) *render.Screen {
	showJava := false
	s := render.NewScreen(func(width, height int) []string {
		now := f(render.BarCells(width))
		if showJava {
			return page(now, java, width, height)
		}
		return frame(now, width, height)
	})
	s.Press = func(key string) {
		if key == "j" {
			showJava = !showJava && java != ""
		}
	}
	return s
}

// frame draws figures for a terminal of a size. Colour only repeats what the text says.
func frame(f figures, width, height int) []string {
	if f.release != "" {
		return frameBoth(f, width, height)
	}
	cells := render.BarCells(width)
	lines := head(f, width, cells)
	lines = append(
		lines, "", render.Dim.Render(table("",
			strings.Repeat(" ", cells-8), cells, "granted", "denied", "longest", "now")),
	)

	var tail []string
	if !f.alone {
		tail = append(tail, table("others", "", cells, render.Thousands(f.others), "", "", ""))
	}
	tail = append(tail,
		table("all",
			"", cells, render.Thousands(f.granted+f.others), render.Thousands(f.denied), render.Wait(f.longest), ""))
	for _, note := range []string{f.changed, f.repaired} {
		if note != "" {
			tail = append(tail, render.Warm.Render(note))
		}
	}
	keys := "q stops"
	if !f.alone {
		keys += ", j shows the Java that joins in"
	}
	tail = append(tail, "", render.Dim.Render(keys))
	lines = append(lines, rows(f.callers, max(height-len(lines)-len(tail), 1), cells)...)
	return render.Fit(append(lines, tail...), width, height)
}

// page draws the Java program below the figures.
func page(f figures, java string, width, height int) []string {
	lines := append(head(f, width, render.BarCells(width)), "")
	lines = append(lines, strings.Split(java, "\n")...)
	return render.Fit(append(lines, render.Dim.Render("q stops, j goes back")), width, height)
}

// title draws the first line.
func title(f figures, width int) string {
	return render.Edges(
		render.Strong.Render("rrl demo")+"  "+f.name+"  "+render.Strong.Render(f.rate.String())+"  "+f.where, f.time(),
		width,
	)
}

// head draws the part about the limiter.
func head(f figures, width, cells int) []string {
	use := render.Good
	if f.used >= f.rate.Permits {
		use = render.Warm
	}
	free := max(f.rate.Permits-f.used, 0)
	return append([]string{
		title(f, width),
		"",
		labelled("window", use.Render(render.Bar(f.used, f.rate.Permits, cells, "█", "░")),
			fmt.Sprintf("%s of %s in use", render.Thousands(f.used), render.Thousands(f.rate.Permits))),
		labelled(
			"", strings.Repeat(" ", cells),
			fmt.Sprintf("%s free, %d waiting", render.Number(free, "permit"), f.waiting),
		),
		labelled("grants", render.Sparks(f.columns), fmt.Sprintf("from %s ago to now", span.Text(f.rate.Interval))),
	}, compared(f, cells)...)
}

// compared draws throughput and largest window beside the rate.
func compared(f figures, cells int) []string {
	verdict := render.Good
	if f.largest > f.rate.Permits {
		verdict = render.Bad
	}
	return []string{
		labelled("throughput",
			render.Good.Render(render.Bar(int64(f.average*1000), f.rate.Permits*1000, cells, "█", "░")),
			f.throughput()),
		labelled(
			"largest", verdict.Render(render.Bar(f.largest, f.rate.Permits, cells, "█", "░")),
			fmt.Sprintf("%s of %s, %s",
				render.Thousands(f.largest), render.Thousands(f.rate.Permits), verdict.Render(f.kept())),
		),
	}
}

func labelled(label, bar, figure string) string {
	return fmt.Sprintf("%-*s%s  %s", render.LabelCells, label, bar, figure)
}

// table draws one row of the table of callers.
func table(name, bar string, cells int, granted, denied, longest, now string) string {
	return fmt.Sprintf(
		"%-*s%s%*s %8s %9s  %s", render.LabelCells, name, bar, cells+2-lipgloss.Width(bar), granted, denied, longest,
		now,
	)
}

// rows draws the callers, one a row, as far as there is room; the last row then stands for the
// rest.
func rows(callers []caller, room, cells int) []string {
	var most int64 = 1
	for _, c := range callers {
		most = max(most, c.granted)
	}
	var lines []string
	for i, c := range callers {
		if i == room-1 && len(callers) > room {
			return append(lines, others(callers[i:], cells))
		}
		bars := cells - 8
		denied, longest := "-", render.Wait(c.longest)
		if !c.blocks {
			denied, longest = render.Thousands(c.denied), "-"
		}
		share := render.Bar(c.granted, most, bars, "■", " ")
		lines = append(lines, table(c.name, share, cells, render.Thousands(c.granted), denied, longest, doing(c)))
	}
	return lines
}

func others(callers []caller, cells int) string {
	var granted, denied int64
	var longest time.Duration
	for _, c := range callers {
		granted, denied, longest = granted+c.granted, denied+c.denied, max(longest, c.longest)
	}
	name := fmt.Sprintf("%d more", len(callers))
	return table(name, "", cells, render.Thousands(granted), render.Thousands(denied), render.Wait(longest), "")
}

// doing returns what a caller does now.
func doing(c caller) string {
	switch c.state {
	case asking:
		if c.blocks {
			return render.Warm.Render("waits")
		}
		return "asks"
	case got:
		if !c.blocks {
			return render.Good.Render("granted")
		}
		return render.Good.Render("works")
	case refused:
		return render.Warm.Render("denied")
	}
	return ""
}
