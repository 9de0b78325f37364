package render

import (
	"fmt"
	"io"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// output.go writes the output of commands on a live Redis: tables and plain lines for people, one
// JSON object a line for programs.

// An Output is where a command writes.
type Output struct {
	Out    io.Writer
	Colour bool
	Width  int   // of the terminal, in cells; 0: tables may be as wide as they need
	Failed error // of Say and Print: a command returns it at its end
}

// Emit writes a JSON object as one line.
func (o *Output) Emit(object any) error {
	text, err := JSON(object)
	if err == nil {
		_, err = o.Out.Write(append(text, '\n'))
	}
	return err
}

// Paint colours a text on a terminal. The text alone has the same information.
func (o *Output) Paint(style lipgloss.Style, text string) string {
	if !o.Colour {
		return text
	}
	return style.Render(text)
}

// Say writes a line of text. An error is left in Failed.
func (o *Output) Say(format string, args ...any) { o.Print(fmt.Sprintf(format+"\n", args...)) }

// Print writes a text. An error is left in Failed.
func (o *Output) Print(text string) {
	if _, err := io.WriteString(o.Out, text); err != nil {
		o.Failed = err
	}
}

// Soon is the time after which a command says what it waits for. Tests replace it.
var Soon = time.Second

// Later calls do once Soon has passed, unless stop is called before. stop waits for do if it runs.
func Later(do func()) (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(Soon, func() {
		defer close(done)
		do()
	})
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}

// A Table is rows of cells, written with columns as wide as needed; empty columns are left out. The
// first row is its head. The first column has names, which are cut if a row is wider than the
// terminal. If that is not enough, a last column without a head is written below its row. If that
// is not enough, either, the columns of Drop are left out. The table of lipgloss makes all columns
// narrower instead, and cuts cells at their end.
type Table struct {
	Right map[int]bool // columns of numbers
	Drop  []int        // columns that may be left out, in this order
	Rows  [][]string
}

// Write writes the table.
func (t Table) Write(o *Output) {
	notes := make([]string, len(t.Rows)) // below the rows
	widths := t.widths()
	if o.Width > 0 && len(widths) > 0 {
		least := min(leastName, widths[0])
		room := func() int { // for names
			room := o.Width
			for _, width := range t.widths()[1:] {
				if width > 0 {
					room -= width + len(between)
				}
			}
			return room
		}
		if last := len(widths) - 1; room() < least && t.Rows[0][last] == "" {
			for n, row := range t.Rows {
				notes[n], row[last] = row[last], ""
			}
		}
		for _, column := range t.Drop {
			if room() >= least {
				break
			}
			for _, row := range t.Rows {
				row[column] = ""
			}
		}
		most := max(room(), least)
		for _, row := range t.Rows {
			row[0] = Cut(row[0], most)
		}
		widths = t.widths()
	}
	var b strings.Builder
	for n, row := range t.Rows {
		var line strings.Builder
		for i, cell := range row {
			if widths[i] == 0 {
				continue
			}
			if i > 0 {
				line.WriteString(between)
			}
			gap := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			if t.Right[i] {
				line.WriteString(gap + cell)
			} else {
				line.WriteString(cell + gap)
			}
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = o.Paint(Dim, text)
		}
		b.WriteString(text + "\n")
		if notes[n] != "" {
			b.WriteString(between + notes[n] + "\n")
		}
	}
	o.Print(b.String())
}

const (
	between   = "  " // columns
	leastName = 16   // cells that a cut name has at least
)

// widths returns the width of each column.
func (t Table) widths() (widths []int) {
	for _, row := range t.Rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	return widths
}
