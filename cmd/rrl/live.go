package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/term"

	"github.com/rratelimiter/rratelimiter/internal/span"
)

// live.go shows a demo on a terminal: a frame, drawn a few times a second. frame draws it as text, for any size; the
// model writes it to the terminal and reads the keys.

const liveEvery = 100 * time.Millisecond

// showLive runs the view until ctx ends or the user quits.
func showLive(ctx context.Context, f func(columns int) figures, java string, in io.Reader, out io.Writer) error {
	return newLive(f, java).run(ctx, in, out)
}

// newLive returns the view of a demo; java is the program that joins, "" if none can.
func newLive(f func(columns int) figures, java string) *screen {
	showJava := false
	s := newScreen(func(width, height int) []string {
		now := f(barCells(width))
		if showJava {
			return page(now, java, width, height)
		}
		return frame(now, width, height)
	})
	s.press = func(key string) {
		if key == "j" {
			showJava = !showJava && java != ""
		}
	}
	return s
}

// A screen is a live view on a terminal: lines that fit it, drawn a few times a second, until the user presses q.
type screen struct {
	draw          func(width, height int) []string
	press         func(key string) // handles the other keys; nil: they are ignored
	width, height int
}

func newScreen(draw func(width, height int) []string) *screen {
	return &screen{draw: draw, width: 80, height: 24}
}

// run shows the screen until ctx ends or the user quits, on the alternate screen: the terminal's content comes back at
// the end.
func (s *screen) run(ctx context.Context, in io.Reader, out io.Writer) error {
	if file, ok := in.(*os.File); !ok || !term.IsTerminal(file.Fd()) {
		in = nil // no keys; signals still work
	}
	options := []tea.ProgramOption{tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()}
	if _, ok := out.(*os.File); !ok {
		options = append(options, tea.WithWindowSize(s.width, s.height))
	}
	p := tea.NewProgram(s, options...)
	ended := context.AfterFunc(ctx, func() { p.Send(finished{}) })
	defer ended()
	_, err := p.Run()
	return err
}

type (
	tick     struct{}
	finished struct{}
)

func next() tea.Cmd { return tea.Tick(liveEvery, func(time.Time) tea.Msg { return tick{} }) }

func (s *screen) Init() tea.Cmd { return next() }

func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tick:
		return s, next()
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case finished:
		return s, tea.Quit
	case tea.KeyPressMsg:
		switch key := msg.String(); {
		case key == "q", key == "esc", key == "ctrl+c":
			return s, tea.Quit
		case s.press != nil:
			s.press(key)
		}
	}
	return s, nil
}

func (s *screen) View() tea.View {
	v := tea.NewView(strings.Join(s.draw(s.width, s.height), "\n"))
	v.AltScreen = true
	return v
}

var (
	strong = lipgloss.NewStyle().Bold(true)
	dim    = lipgloss.NewStyle().Faint(true)
	good   = lipgloss.NewStyle().Foreground(lipgloss.Green)
	warm   = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	bad    = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
)

const labelCells, figureCells = 12, 31

// barCells returns the width of bars for a terminal width.
func barCells(width int) int { return min(max(width-labelCells-figureCells-2, 8), 100) }

// fit cuts lines to the size of a terminal.
func fit(lines []string, width, height int) []string {
	style := lipgloss.NewStyle().MaxWidth(width).Inline(true)
	lines = lines[:min(len(lines), max(height, 1))]
	for i := range lines {
		lines[i] = style.Render(lines[i])
	}
	return lines
}

// frame draws figures for a terminal of a size. Colour only repeats what the text says.
func frame(f figures, width, height int) []string {
	cells := barCells(width)
	lines := head(f, width, cells)
	lines = append(lines, "", dim.Render(table("", strings.Repeat(" ", cells-8), cells, "granted", "denied", "longest", "now")))

	var tail []string
	if !f.alone {
		tail = append(tail, table("others", "", cells, thousands(f.others), "", "", ""))
	}
	tail = append(tail, table("all", "", cells, thousands(f.granted+f.others), thousands(f.denied), wait(f.longest), ""))
	for _, note := range []string{f.changed, f.repaired} {
		if note != "" {
			tail = append(tail, warm.Render(note))
		}
	}
	keys := "q stops"
	if !f.alone {
		keys += ", j shows the Java that joins in"
	}
	tail = append(tail, "", dim.Render(keys))
	lines = append(lines, rows(f.callers, max(height-len(lines)-len(tail), 1), cells)...)
	return fit(append(lines, tail...), width, height)
}

// page draws the Java program below the figures.
func page(f figures, java string, width, height int) []string {
	lines := append(head(f, width, barCells(width)), "")
	lines = append(lines, strings.Split(java, "\n")...)
	return fit(append(lines, dim.Render("q stops, j goes back")), width, height)
}

// head draws the part about the limiter.
func head(f figures, width, cells int) []string {
	labelled := func(label, bar, figure string) string {
		return fmt.Sprintf("%-*s%s  %s", labelCells, label, bar, figure)
	}
	use := good
	if f.used >= f.rate.Permits {
		use = warm
	}
	verdict := good
	if f.largest > f.rate.Permits {
		verdict = bad
	}
	free := max(f.rate.Permits-f.used, 0)
	return []string{
		edges(strong.Render("rrl demo")+"  "+f.name+"  "+strong.Render(f.rate.String())+"  "+f.where, f.time(), width),
		"",
		labelled("window", use.Render(bar(f.used, f.rate.Permits, cells, "█", "░")),
			fmt.Sprintf("%s of %s in use", thousands(f.used), thousands(f.rate.Permits))),
		labelled("", strings.Repeat(" ", cells), fmt.Sprintf("%s free, %d waiting", number(free, "permit"), f.waiting)),
		labelled("grants", sparks(f.columns), fmt.Sprintf("from %s ago to now", span.Text(f.rate.Interval))),
		labelled("throughput", good.Render(bar(int64(f.average*1000), f.rate.Permits*1000, cells, "█", "░")), f.throughput()),
		labelled("largest", verdict.Render(bar(f.largest, f.rate.Permits, cells, "█", "░")),
			fmt.Sprintf("%s of %s, %s", thousands(f.largest), thousands(f.rate.Permits), verdict.Render(f.kept()))),
	}
}

// table draws one row of the table of callers.
func table(name, bar string, cells int, granted, denied, longest, now string) string {
	return fmt.Sprintf("%-*s%s%*s %8s %9s  %s", labelCells, name, bar, cells+2-lipgloss.Width(bar), granted, denied, longest, now)
}

// rows draws the callers, one a row, as far as there is room; the last row then stands for the rest.
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
		denied, longest := "-", wait(c.longest)
		if !c.blocks {
			denied, longest = thousands(c.denied), "-"
		}
		lines = append(lines, table(c.name, bar(c.granted, most, bars, "■", " "), cells, thousands(c.granted), denied, longest, doing(c)))
	}
	return lines
}

func others(callers []caller, cells int) string {
	var granted, denied int64
	var longest time.Duration
	for _, c := range callers {
		granted, denied, longest = granted+c.granted, denied+c.denied, max(longest, c.longest)
	}
	return table(fmt.Sprintf("%d more", len(callers)), "", cells, thousands(granted), thousands(denied), wait(longest), "")
}

// doing returns what a caller does now.
func doing(c caller) string {
	switch c.state {
	case asking:
		if c.blocks {
			return warm.Render("waits")
		}
		return "asks"
	case got:
		if !c.blocks {
			return good.Render("granted")
		}
		return good.Render("works")
	case refused:
		return warm.Render("denied")
	}
	return ""
}

// edges aligns one text to the left and one to the right.
func edges(left, right string, width int) string {
	gap := width - lipgloss.Width(left) - lipgloss.Width(right)
	if gap < 2 {
		return left + "  " + right
	}
	return left + strings.Repeat(" ", gap) + right
}
