package render

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"
)

// screen.go shows live views on a terminal.

// IsTerminal reports whether a stream is a terminal that can move its cursor.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(file.Fd()) && os.Getenv("TERM") != "dumb"
}

// TerminalWidth returns the number of cells in a line of a terminal; 0 if the stream is none.
func TerminalWidth(stream any) int {
	if !IsTerminal(stream) {
		return 0
	}
	width, _, _ := term.GetSize(stream.(*os.File).Fd()) // 0 after an error
	return width
}

// Line writes a line of text. On a terminal it breaks a long line between words, and indents what
// follows.
func Line(out io.Writer, indent int, text string) {
	if width := TerminalWidth(out); width > indent {
		text = wrapped(text, width, indent)
	}
	fmt.Fprintln(out, text)
}

func wrapped(text string, width, indent int) string {
	if ansi.StringWidth(text) <= width {
		return text
	}
	margin := strings.Repeat(" ", indent)
	lines := strings.Split(ansi.Wordwrap(text[indent:], width-indent, ""), "\n")
	return text[:indent] + strings.Join(lines, "\n"+margin)
}

// A Screen is a live view on a terminal: lines that fit it, drawn a few times a second, until the
// user presses q.
type Screen struct {
	draw          func(width, height int) []string
	Press         func(key string) // handles the other keys; nil: they are ignored
	width, height int
}

// NewScreen returns a screen that shows the lines of draw.
func NewScreen(draw func(width, height int) []string) *Screen {
	return &Screen{draw: draw, width: 80, height: 24}
}

// Run shows the screen until ctx ends or the user quits, on the alternate screen: the terminal's
// content comes back at the end.
func (s *Screen) Run(ctx context.Context, in io.Reader, out io.Writer) error {
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

const drawnEvery = 100 * time.Millisecond

type (
	tick     struct{}
	finished struct{}
)

func next() tea.Cmd { return tea.Tick(drawnEvery, func(time.Time) tea.Msg { return tick{} }) }

// Init starts to draw, as bubbletea asks for.
func (s *Screen) Init() tea.Cmd { return next() }

// Update handles a key, a new size, or the time to draw again.
func (s *Screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
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
		case s.Press != nil:
			s.Press(key)
		}
	}
	return s, nil
}

// View draws the screen.
func (s *Screen) View() tea.View {
	v := tea.NewView(strings.Join(s.draw(s.width, s.height), "\n"))
	v.AltScreen = true
	return v
}

// Styles of text. They only repeat what the text says.
var (
	Strong = lipgloss.NewStyle().Bold(true)
	Dim    = lipgloss.NewStyle().Faint(true)
	Good   = lipgloss.NewStyle().Foreground(lipgloss.Green)
	Warm   = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	Bad    = lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true)
)

// LabelCells is the width of the labels before bars.
const LabelCells = 12

// figureCells is the width of the figures behind bars.
const figureCells = 31

// BarCells returns the width of bars for the width of a terminal.
func BarCells(width int) int { return min(max(width-LabelCells-figureCells-2, 8), 100) }

// Fit cuts lines to the size of a terminal.
func Fit(lines []string, width, height int) []string {
	style := lipgloss.NewStyle().MaxWidth(width).Inline(true)
	lines = lines[:min(len(lines), max(height, 1))]
	for i := range lines {
		lines[i] = style.Render(lines[i])
	}
	return lines
}

// Edges aligns one text to the left and one to the right.
func Edges(left, right string, width int) string {
	gap := width - lipgloss.Width(left) - lipgloss.Width(right)
	if gap < 2 {
		return left + "  " + right
	}
	return left + strings.Repeat(" ", gap) + right
}
