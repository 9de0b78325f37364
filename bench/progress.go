package main

import (
	"fmt"
	"io"
	"time"
	"unicode/utf8"
)

// progress.go prints the progress of a run: one line that changes on a terminal, else a line for
// each round of a workload.

type progress struct {
	out         io.Writer
	live        bool
	done, total time.Duration // sums of the estimated durations of samples
	last        string
}

func newProgress(out io.Writer) *progress { return &progress{out: out, live: width(out) > 0} }

const clearLine = "\r\x1b[K"

// say prints a message, on a terminal in place of the one before.
func (p *progress) say(text string) {
	if p.live {
		if columns := width(p.out); columns > 0 && utf8.RuneCountInString(text) >= columns {
			text = string([]rune(text)[:columns-1]) // a line that wraps can't be overwritten
		}
		fmt.Fprint(p.out, clearLine+text)
	} else {
		fmt.Fprintln(p.out, text)
	}
}

// expect adds the samples of a plan to the total.
func (p *progress) expect(plan []*workload, repeats int) {
	for _, w := range plan {
		p.total += w.takes * time.Duration(repeats*len(w.rows))
	}
}

// begin prints that a sample starts.
func (p *progress) begin(w *workload, c *contender, repeat int) {
	part := 0
	left := p.total - p.done
	if p.total > 0 {
		part = int(100 * p.done / p.total)
	}
	round := fmt.Sprintf("%3d %%, %s left  %s, round %d", part, about(left), w.name, repeat+1)
	switch {
	case p.live:
		p.say(round + ": " + c.name + "  " + p.last)
	case c == w.rows[0]:
		fmt.Fprintln(p.out, round)
	}
}

// end counts a sample that has been taken, and prints its fault, if any.
func (p *progress) end(w *workload, c *contender, s Sample, fault string) {
	p.done += w.takes
	p.last = ""
	switch {
	case fault != "" && p.live:
		fmt.Fprintf(p.out, "%s%s: %s: %s\n", clearLine, w.name, c.name, fault)
	case fault != "":
		fmt.Fprintf(p.out, "      %s: %s\n", c.name, fault)
	case s.P50 > 0 && s.Ideal == 0:
		p.last = "(the last one: " + thousands(int64(perSecond(s))) + "/s)"
	}
}

// skip counts a sample that is not taken.
func (p *progress) skip(w *workload) { p.done += w.takes }

func (p *progress) over() {
	if p.live {
		fmt.Fprint(p.out, clearLine)
	}
}

func about(d time.Duration) string {
	if d >= 90*time.Second {
		return fmt.Sprintf("about %d min", int(d.Round(time.Minute).Minutes()))
	}
	return fmt.Sprintf("about %d s", int(d.Seconds()))
}
