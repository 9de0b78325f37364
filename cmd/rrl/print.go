package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// print.go is how commands on a live Redis write: tables and plain lines for people, one JSON object a line for programs.
// The names of fields are part of the interface: they may be added to, not changed.

// emit writes a JSON object.
func (s *session) emit(object any) error {
	e := json.NewEncoder(s.out)
	e.SetEscapeHTML(false)
	return e.Encode(object)
}

// paint colours a text on a terminal. The text says the same without colour.
func (s *session) paint(style lipgloss.Style, text string) string {
	if !s.colour {
		return text
	}
	return style.Render(text)
}

// say writes a line. A failure is told when the command ends.
func (s *session) say(format string, args ...any) { s.write(fmt.Sprintf(format+"\n", args...)) }

func (s *session) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil {
		s.unwritten = err
	}
}

// jsonName is the name of a limiter, or the id of a client, which need not be UTF-8.
type jsonName struct {
	Name   string `json:"name"`
	Base64 string `json:"name_base64,omitempty"` // where the name is not UTF-8; name is quoted then
}

func nameOf(name string) jsonName {
	if utf8.ValidString(name) {
		return jsonName{Name: name}
	}
	return jsonName{strconv.Quote(name), base64.StdEncoding.EncodeToString([]byte(name))}
}

// jsonRate is a rate, in the fields that all commands have for it.
type jsonRate struct {
	Rate        string `json:"rate"` // as ParseRate reads it
	Permits     int64  `json:"permits"`
	IntervalMs  int64  `json:"interval_ms"`
	Type        string `json:"type"` // OVERALL or PER_CLIENT
	KeepAliveMs int64  `json:"keep_alive_ms"`
}

func rateOf(r rratelimiter.Rate) jsonRate {
	return jsonRate{r.String(), r.Permits, r.Interval.Milliseconds(), r.Type.String(), r.KeepAlive.Milliseconds()}
}

// A sheet is rows of cells, written with each column as wide as it needs.
type sheet struct {
	right map[int]bool // columns of numbers
	rows  [][]string
}

// write writes the sheet. The first row is its head.
func (t sheet) write(s *session) {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	var b strings.Builder
	for n, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			if i > 0 {
				line.WriteString("  ")
			}
			gap := strings.Repeat(" ", widths[i]-ansi.StringWidth(cell))
			if t.right[i] {
				line.WriteString(gap + cell)
			} else {
				line.WriteString(cell + gap)
			}
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = s.paint(dim, text)
		}
		b.WriteString(text + "\n")
	}
	s.write(b.String())
}

// lasting is a life time for people.
func lasting(ttl time.Duration) string {
	switch {
	case ttl == 0:
		return "-"
	case ttl < time.Second:
		return span.Text(ttl)
	case ttl < time.Hour:
		return span.Text(ttl.Round(time.Second))
	case ttl < 48*time.Hour:
		return span.Text(ttl.Round(time.Minute))
	}
	return fmt.Sprintf("%dd", int64(ttl.Round(time.Hour)/(24*time.Hour)))
}

// ago is how long before another time a time is, for people; or how long after it.
func ago(at, now time.Time) string {
	d := now.Sub(at)
	text := lasting(d.Abs().Round(time.Millisecond))
	if text == "-" {
		text = "0s"
	}
	if d < 0 {
		return text + " ahead"
	}
	return text + " ago"
}
