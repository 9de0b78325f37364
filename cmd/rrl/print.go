package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// print.go writes the output of commands on a live Redis: tables and plain lines for people, one JSON object a line for
// programs. The names of JSON fields are part of the interface: add to them, never change them.

// emit writes a JSON object.
func (s *session) emit(object any) error {
	text, err := jsonOf(object)
	if err == nil {
		_, err = s.out.Write(append(text, '\n'))
	}
	return err
}

// jsonOf returns an object as JSON, with an escape for each character that a terminal may interpret or does not show:
// the package json leaves C1 controls and those of bidirectional text unescaped.
func jsonOf(object any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return nil, err
	}
	return []byte(visible(strings.TrimSuffix(b.String(), "\n"))), nil
}

// visible replaces characters that a terminal may interpret, or does not show, with JSON escapes, and bytes that are
// not UTF-8 with the replacement character.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// paint colours a text on a terminal. The text alone has the same information.
func (s *session) paint(style lipgloss.Style, text string) string {
	if !s.colour {
		return text
	}
	return style.Render(text)
}

// say writes a line. A write error is returned when the command ends.
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

// jsonRate is a rate, in the fields that all commands use for it.
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

// A sheet is rows of cells, written with columns as wide as needed.
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

// lasting formats a TTL for people.
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

// ago formats the time between two times for people, before or after now.
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
