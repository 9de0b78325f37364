package snapshot

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/rratelimiter/rratelimiter"
)

// text.go formats a snapshot for people.

// mostShown is the number of records of a set that are printed: half of them from its beginning,
// half from its end.
const mostShown = 60

// String describes the snapshot for people, as for a bug report. If a set has more than 60 records,
// the text has only the first 30 and the last 30.
func (s *Snapshot) String() string {
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-9s "+format+"\n", append([]any{what}, args...)...)
	}
	fmt.Fprintf(&b, "limiter %q\n", s.Name)
	if s.Note != "" {
		line("note", "%s", shown(s.Note))
	}
	server := ""
	if s.Server != "" {
		server = " (" + shown(s.Server) + ")"
	}
	steps := "in one step"
	if !s.OneStep {
		steps = "piece by piece"
	}
	const form = "2006-01-02T15:04:05.000Z"
	line("taken", "%s by the server's clock%s, %s by the host's; %s", s.TakenAt.UTC().Format(form), server,
		s.HostTime.UTC().Format(form), steps)
	if s.Config == nil {
		line("config", "none")
	} else {
		var fields []string
		for _, f := range s.Config.Fields {
			fields = append(fields, quoted(f.Name)+"="+quoted(f.Value))
		}
		line("config", "%s; %s", strings.Join(fields, " "), lives(s.Config.TTL))
	}
	describe := func(state State) {
		if state.Value == nil {
			line("value", "none")
		} else {
			line("value", "%s; %s", quoted(state.Value.Text), lives(state.Value.TTL))
		}
		if state.Permits == nil {
			line("permits", "none")
			return
		}
		records, sum := state.Permits.Records, uint64(0)
		for _, r := range records {
			permits, _ := unpacked(r.Member)
			sum += permits
		}
		line("permits", "%d in %s; %s", sum, plural(len(records), "record"), lives(state.Permits.TTL))
		for i, r := range records {
			if len(records) > mostShown && i >= mostShown/2 && i < len(records)-mostShown/2 {
				if i == mostShown/2 {
					line("", "... %d more ...", len(records)-mostShown)
				}
				continue
			}
			permits, whose := unpacked(r.Member)
			line("", "%s  %d by %s  %x", s.when(r.Score), permits, whose, r.Member)
		}
	}
	describe(s.Shared)
	for _, c := range s.Clients {
		fmt.Fprintf(&b, "client %q\n", c.ID)
		describe(c.State)
	}
	return b.String()
}

// when formats a score, and its difference from the time of the snapshot.
func (s *Snapshot) when(score float64) string {
	if math.IsInf(score, 0) {
		return fmt.Sprint(score)
	}
	return fmt.Sprintf("%s (%+.3f s)", number(score), (score-float64(s.TakenAt.UnixMilli()))/1000)
}

func number(score float64) string {
	if score == math.Trunc(score) && math.Abs(score) < 1e15 {
		return fmt.Sprintf("%.0f", score)
	}
	return fmt.Sprint(score)
}

// unpacked returns the permits of a member, and its writer as far as it can be recognized.
func unpacked(member []byte) (permits uint64, whose string) {
	record, err := rratelimiter.UnpackRecord(member)
	switch {
	case err != nil:
		return 0, "no record"
	case strings.HasPrefix(string(record.ID), "Go"):
		return uint64(record.Permits), "Go"
	}
	return uint64(record.Permits), "others"
}

// shown returns a text, in quotes if it has characters that a terminal may interpret.
func shown(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// quoted returns a text in quotes unless it is a plain word.
func quoted(text string) string {
	q := fmt.Sprintf("%q", text)
	if len(q) == len(text)+2 && text != "" && !strings.ContainsAny(text, " =;") {
		return text
	}
	return q
}

func lives(ttl time.Duration) string {
	if ttl == 0 {
		return "lives for ever"
	}
	return fmt.Sprintf("lives for %v", ttl)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
