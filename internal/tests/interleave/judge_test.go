package interleave

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// judge_test.go judges a path by what is promised, by the records that Redis held at each time, and
// by which callers waited. It knows of no call, reply or timer of the client, but for the delays of
// the path.

const (
	never   = time.Duration(1 << 62)
	lostFor = 150 * ms // until a retry of a call whose reply is lost has its reply
	// permits that return soon after one another may be awaited for 5 ms
	slack = 8 * ms
)

func (p *path) fail(format string, args ...any) {
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

func (p *path) judge() {
	if len(p.messages) > 0 {
		p.fail("%d messages are left", len(p.messages))
	}
	changed := slices.ContainsFunc(p.calls, func(c *call) bool { return c.method == "SetRate" })
	p.windows()
	if !changed {
		p.sums()
	}
	for _, c := range p.calls {
		if !c.ended {
			p.fail("%v does not end", c)
			continue
		}
		p.ends(c)
		if !changed && !p.unsure {
			p.served(c)
		}
	}
}

func (c *call) unknown() bool { return errors.Is(c.answer.Err, rratelimiter.ErrOutcomeUnknown) }

// granted returns the permits of a limiter that a caller was told it has.
func (c *call) granted(limiter int) int64 {
	if i := slices.Index(c.of, limiter); i >= 0 && i < len(c.answer.Taken) {
		return c.answer.Taken[i]
	}
	return 0
}

// windows judges that no window holds more than the rate: of the grants that callers got, and of
// the records. SetRate forgets all grants; those on either side of it are judged for themselves.
func (p *path) windows() {
	for i, l := range p.limiters {
		var before, after []window.Grant
		most := l.rate
		var change *call
		for _, c := range p.calls {
			if c.method == "SetRate" && c.of[0] == i && (c.answer.Err == nil || c.unknown()) {
				change = c
			}
		}
		for _, c := range p.calls {
			g := window.Grant{Permits: c.granted(i), Start: p.start.Add(c.start), End: p.start.Add(c.end)}
			switch {
			case c.method == "SetRate":
			case change == nil || c.last < change.first:
				before = append(before, g)
			case c.first > change.last:
				after = append(after, g)
			}
		}
		if n, at := window.LargestAt(before, l.interval, time.Microsecond); n > most {
			p.fail("%d permits of %s in the window from %v on", n, p.key(i), at.Sub(p.start))
		}
		if change != nil {
			most = max(most, change.n[0])
			if n, at := window.LargestAt(after, l.interval, time.Microsecond); n > change.n[0] && !change.unknown() {
				p.fail("%d permits of %s after the change in the window from %v on", n, p.key(i), at.Sub(p.start))
			}
		}
		for _, e := range p.events {
			if sum := l.rate - p.free(&e, i, e.at); sum > most {
				p.fail("records of %s with %d permits at %v", p.key(i), sum, e.at)
				break
			}
		}
	}
}

// sums judges that what callers were told was taken, and nothing else, but for leases.
func (p *path) sums() {
	for i := range p.limiters {
		taken, told, unknown := map[string]int64{}, int64(0), int64(0)
		for _, e := range p.events {
			for _, r := range e.records[i] {
				taken[r.id] = max(taken[r.id], r.n)
			}
		}
		sum := int64(0)
		for _, n := range taken {
			sum += n
		}
		for _, c := range p.calls {
			told += c.granted(i)
			if at := slices.Index(c.of, i); at >= 0 && c.unknown() {
				unknown += c.n[at]
			}
		}
		if told > sum || sum > told+unknown+p.ahead[i] && !p.unsure {
			p.fail("of %s, %d permits were taken, %d told, %d not known and %d taken ahead", p.key(i), sum, told,
				unknown, p.ahead[i])
		}
	}
}

// ends judges how a call ended.
func (p *path) ends(c *call) {
	a := &c.answer
	switch {
	case a.Err == errPanic:
	case p.lost && c.unknown():
	case a.Err != nil && !(c.left || c.end >= p.end()) || a.Err != nil && !errors.Is(a.Err, context.Canceled):
		p.fail("%v: %v", c, a.Err)
	case a.Err == nil && strings.HasPrefix(c.method, "Allow") && len(a.Results) != len(c.of):
		p.fail("%v: %d results", c, len(a.Results))
	case c.timeout > 0 && c.end > p.after(c.start+c.timeout)+slack:
		p.fail("%v ended %v late", c, c.end-c.start-c.timeout)
	}
}

// end returns when the contexts of all callers end.
func (p *path) end() time.Duration { return p.moments[len(p.moments)-1] + grace }

// waits reports whether a caller waits for its permits.
func (c *caller) waits() bool { return c.timeout > 0 || strings.HasPrefix(c.method, "Acquire") }

// served judges that a caller is served at once when its permits are free and nobody in front of it
// needs them.
func (p *path) served(c *call) {
	since, possible, always := time.Duration(0), false, true
	for _, s := range p.spans(c.first, c.last) {
		can := p.could(&s, c)
		always = always && can
		switch {
		case can && !possible:
			since, possible = s.at, true
		case !can:
			possible = false
		}
		if possible && c.waits() && s.to > p.after(since)+slack {
			p.fail("%v is not served though its permits are free from %v on and its turn has come", c, since)
			return
		}
	}
	refused := c.answer.Err == nil && !c.answer.Allowed && (c.timeout == 0 || c.end < c.start+c.timeout)
	if always && refused {
		p.fail("%v is refused though its permits are free", c)
	}
}

// after returns the first time from a given one on at which no delay of the path is left, as far as
// delays follow one another.
func (p *path) after(at time.Duration) time.Duration {
	for changed := true; changed; {
		changed = false
		for _, d := range p.delays {
			if at < d.to && at+slack >= d.from {
				at, changed = d.to, true
			}
		}
	}
	return at
}

// A span is a part of a path in which nothing changes.
type span struct {
	event
	to      time.Duration
	waiting []*call // that have not ended, in the order in which they began
}

// spans returns the parts of the path from one event to a later one.
func (p *path) spans(first, last int) (all []span) {
	for k := first; k < last; k++ {
		s := span{event: p.events[k], to: p.events[k+1].at}
		for _, c := range p.calls {
			if c.first <= k && c.last > k {
				s.waiting = append(s.waiting, c)
			}
		}
		var changes []time.Duration // records expire, and sets leave permits until a time
		for _, records := range s.records {
			for _, r := range records {
				changes = append(changes, r.until)
				for _, l := range p.limiters {
					changes = append(changes, r.until-l.interval+1)
				}
			}
		}
		for _, part := range rig.Parts(s.at, s.to, changes) {
			s.at, s.to = part.From, part.To
			all = append(all, s)
		}
	}
	return all
}

// could reports whether a caller can be served at the beginning of a span: enough permits of each
// limiter are free for it and for the callers in front of it that do not leave them to it.
func (p *path) could(s *span, c *call) bool {
	for i, of := range c.of {
		wanted := c.n[i]
		for _, front := range s.waiting {
			at := slices.Index(front.of, of)
			if front == c || at < 0 || c.waits() && front.first > c.first {
				continue
			}
			switch {
			case !c.waits() && front.waits():
				return false // permits are reserved for it
			case !front.waits() || p.reserves(s, front, of):
				wanted += front.n[at]
			}
		}
		if p.free(&s.event, of, s.at) < wanted {
			return false
		}
	}
	return true
}

// reserves reports whether those behind a waiting caller must leave it the permits of a limiter. A
// caller of a set leaves them those that are back before it can use them.
func (p *path) reserves(s *span, c *call, limiter int) bool {
	turn := time.Duration(0)
	for i, of := range c.of {
		if of != limiter {
			turn = max(turn, p.freeAt(s, of, c.n[i]))
		}
	}
	return len(c.of) == 1 || c.end == s.at || s.at > turn-p.limiters[limiter].interval
}

// free returns how many permits of a limiter are free at a time.
func (p *path) free(e *event, limiter int, at time.Duration) int64 {
	n := p.limiters[limiter].rate
	for _, r := range e.records[limiter] {
		if r.until > at {
			n -= r.n
		}
	}
	return n
}

// freeAt returns when n permits of a limiter are free if nobody else takes any.
func (p *path) freeAt(s *span, limiter int, n int64) time.Duration {
	at := s.at
	for p.free(&s.event, limiter, at) < n {
		next := never
		for _, r := range s.records[limiter] {
			if r.until > at {
				next = min(next, r.until)
			}
		}
		if next == never {
			return never
		}
		at = next
	}
	return at
}
