package demo

import (
	"fmt"
	"strconv"
	"strings"

	"charm.land/lipgloss/v2"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// both.go draws a demo with Java on a terminal: the permits of Go and Java over time, under the
// line of the limit.

// Go and Java differ by colour, and by the character of their cells.
const goCell, javaCell = "█", "▒"

var goStyle, javaStyle = lipgloss.NewStyle().Foreground(lipgloss.Cyan), lipgloss.NewStyle().Foreground(lipgloss.Magenta)

// now returns the last sample.
func (f figures) now() sample {
	if len(f.samples) == 0 {
		return sample{}
	}
	return f.samples[len(f.samples)-1]
}

// frameBoth is frame with Java.
func frameBoth(f figures, width, height int) []string {
	cells := render.BarCells(width)
	inGo, inJava := shares(f.granted, f.java.granted)
	row := func(name, share string, s side) string {
		return fmt.Sprintf(
			"%-*s%9s %9s %9s  %s", render.LabelCells, name, render.Thousands(s.granted), share,
			render.Thousands(s.denied),
			render.Wait(s.longest),
		)
	}
	shared := both(f.granted, f.java.granted, f.granted+f.java.granted, cells, " ")
	below := append(
		[]string{"", labelled("shares", colours(shared), fmt.Sprintf("Go %s, Java %s", inGo, inJava))},
		compared(f, cells)...)
	below = append(
		below,
		"",
		render.Dim.Render(
			fmt.Sprintf("%-*s%9s %9s %9s  %s", render.LabelCells, "", "granted", "share", "denied", "longest wait"),
		),
		row("Go", inGo, f.side),
		row("Java", inJava, f.java),
	)
	if !f.alone {
		below = append(below, row("others", "", side{granted: f.others}))
	}
	for _, note := range []string{f.changed, f.repaired} {
		if note != "" {
			below = append(below, render.Warm.Render(note))
		}
	}
	below = append(below, "", render.Dim.Render("q stops"))
	who := "Redisson " + f.release
	if !f.alone {
		who += "  " + f.where
	}
	f.where = who
	lines := append([]string{title(f, width), ""}, stack(f, width, min(max(height-3-len(below)-2, 2), 12))...)
	return render.Fit(append(lines, below...), width, height)
}

// stack draws the permits in use over time as columns, Go below and Java above, under the line of
// the limit.
func stack(f figures, width, height int) []string {
	label := strconv.FormatInt(f.rate.Permits, 10)
	columns := max(width-len(label)-1, 1)
	shown := f.samples[max(0, len(f.samples)-columns):]
	parts := make([]string, len(shown)) // columns, from below
	line := strings.Repeat("─", columns-len(shown))
	for i, s := range shown {
		parts[i] = both(s.inGo, s.inJava, f.rate.Permits, height, " ")
		if s.inGo+s.inJava > f.rate.Permits {
			line += "█"
		} else {
			line += "─"
		}
	}
	lines := []string{label + " " + line}
	for y := height - 1; y >= 0; y-- {
		var row strings.Builder
		for _, part := range parts {
			row.WriteByte(part[y])
		}
		lines = append(lines, strings.Repeat(" ", len(label)+1+columns-len(shown))+colours(row.String()))
	}
	return append(lines, fmt.Sprintf("in use, every %s: %s Go, %s Java; at most %s in any %s",
		span.Text(sampledEvery), colours("G"), colours("J"), render.Thousands(f.rate.Permits),
		span.Text(f.rate.Interval)))
}

// colours draws the cells that are written as G and J.
func colours(text string) string {
	var b strings.Builder
	for text != "" {
		n := len(text) - len(strings.TrimLeft(text, text[:1])) // cells of one kind
		switch text[0] {
		case 'G':
			b.WriteString(goStyle.Render(strings.Repeat(goCell, n)))
		case 'J':
			b.WriteString(javaStyle.Render(strings.Repeat(javaCell, n)))
		default:
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// both draws two parts of a whole in a number of cells, one after the other, as G and J.
func both(first, second, whole int64, cells int, free string) string {
	if whole <= 0 {
		return strings.Repeat(free, cells)
	}
	round := func(n int64) int { return int(float64(min(n, whole))/float64(whole)*float64(cells) + 0.5) }
	split, end := round(first), round(first+second)
	return strings.Repeat("G", split) + strings.Repeat("J", end-split) + strings.Repeat(free, cells-end)
}
