package options

import (
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// model_test.go says what was possible at each time of a story, by the records that Redis held
// then, and by which callers waited. It knows of no call, reply or timer.

// never is later than any story.
const never = time.Duration(1 << 62)

// A span is a part of a story in which nothing changes.
type span struct {
	from, to time.Duration // to: the next change; it may be the same time
	records  [][]entry
	waiting  []*call // callers that wait, in the order of arrival
}

// spans returns the parts of the story from one event to a later one.
func (tr *trace) spans(first, last int) (all []span) {
	for k := first; k < last; k++ {
		e := &tr.events[k]
		s := span{from: e.at, to: tr.events[k+1].at, records: e.records}
		for _, c := range tr.calls {
			if c.waits() && c.first <= k && c.last > k {
				s.waiting = append(s.waiting, c)
			}
		}
		var changes []time.Duration // within the span: records expire, and sets leave permits until a time
		for i, records := range e.records {
			for _, r := range records {
				changes = append(changes, r.until)
				for j := range tr.limiters {
					if j != i {
						changes = append(changes, r.until-tr.limiters[j].rate.Interval+1)
					}
				}
			}
		}
		for _, part := range rig.Parts(s.from, s.to, changes) {
			s.from, s.to = part.From, part.To
			all = append(all, s)
		}
	}
	return all
}

// free returns how many permits of a limiter are free at the beginning of the span. A deny cache
// counts the server's time from the reply on, to the millisecond.
func (tr *trace) free(s *span, limiter int) int64 {
	at := s.from
	if l := &tr.limiters[limiter]; l.has("WithServerTime") && l.has("WithDenyCache") {
		at -= tr.reply() + ms
	}
	return tr.left(s.records[limiter], limiter, at)
}

// could reports whether a request can be served at the beginning of a span: enough permits of each
// limiter are free for it and for the callers in front of it that do not leave them to it.
func (tr *trace) could(s *span, c *call) bool {
	for i, of := range c.of {
		wanted := max(c.n[i], 1)
		if c.upTo() {
			wanted = 1
		}
		for _, front := range s.waiting {
			// a request that does not wait in line is served after all that do
			if c.waits() && !tr.apart(c) && front.first >= c.first {
				break
			}
			if front == c {
				continue
			}
			if c.upTo() && slices.Contains(front.of, of) {
				return false
			}
			if n := front.wants(of); n > 0 && (!c.waits() && tr.unknown(s, front) || tr.reserves(s, front, of)) {
				wanted += n
			}
		}
		if tr.free(s, of) < wanted {
			return false
		}
	}
	return true
}

// wants returns how many permits of a limiter a request wants.
func (c *call) wants(limiter int) int64 {
	if i := slices.Index(c.of, limiter); i >= 0 {
		return c.n[i]
	}
	return 0
}

// unknown reports whether a waiting caller of a set may have no reply yet. Until then, a request
// that does not wait leaves it its permits of each limiter.
func (tr *trace) unknown(s *span, c *call) bool { return !tr.apart(c) && s.from <= c.start+tr.slack(c) }

// reserves reports whether those behind a waiting caller must leave it the permits of a limiter. A
// caller of a set leaves them those that are back before it can use them. A set without a common
// slot has no place in the order.
func (tr *trace) reserves(s *span, c *call, limiter int) bool {
	if len(c.of) == 1 {
		return true
	}
	if !tr.oneStep {
		return false
	}
	if c.end == s.from {
		return true // it may have its permits already, and its reply is on the way
	}
	turn := time.Duration(0)
	for i, of := range c.of {
		if of != limiter {
			turn = max(turn, tr.earliest(s, []*call{{ask: ask{of: []int{of}, n: []int64{c.n[i]}}}}, true))
		}
	}
	return turn == never || s.from > turn-tr.limiters[limiter].rate.Interval
}

// apart reports whether the limiters of a request are asked one after the other.
func (tr *trace) apart(c *call) bool { return !tr.oneStep && len(c.of) > 1 }

// alone returns when a request can be served at the earliest if no other caller takes permits.
func (tr *trace) alone(s *span, c *call) time.Duration { return tr.earliest(s, []*call{c}, true) }

// inTurn returns when a request is served at the latest if all callers in front of it take their
// permits, and no other client does.
func (tr *trace) inTurn(s *span, c *call) time.Duration {
	var line []*call
	for _, front := range s.waiting {
		if front != c && front.first < c.first {
			line = append(line, front)
		}
	}
	return tr.earliest(s, append(line, c), false)
}

// earliest returns when the last one of a line of callers is served. Each of them is served as soon
// as its permits are free, and not before those in front of it at one of its limiters. An
// instalment is what is free, or else, not greedy, as much as possible.
func (tr *trace) earliest(s *span, line []*call, greedy bool) time.Duration {
	records := make([][]entry, len(s.records))
	turn := make([]time.Duration, len(s.records)) // of the last caller at each limiter
	for i := range records {
		records[i], turn[i] = slices.Clone(s.records[i]), s.from
	}
	at := s.from
	for _, c := range line {
		left := slices.Clone(c.n)
		at = s.from
		for _, of := range c.of {
			at = max(at, turn[of])
		}
		for slices.Max(left) > 0 {
			part := make([]int64, len(left))
			for i, of := range c.of {
				l := &tr.limiters[of]
				part[i] = left[i]
				if c.method == "Acquire" && l.has("WithInstalments") {
					part[i] = min(left[i], l.rate.Permits)
					if greedy {
						at = tr.together(records, c.of, []int64{min(part[i], 1)}, at)
						part[i] = min(part[i], tr.left(records[of], of, at))
					}
				}
				if part[i] > l.rate.Permits || part[i] == 0 && left[i] > 0 {
					return never
				}
			}
			at = tr.together(records, c.of, part, at)
			for i, of := range c.of {
				left[i] -= part[i]
				records[of] = append(records[of], entry{part[i], at + tr.limiters[of].rate.Interval})
			}
		}
		for _, of := range c.of {
			turn[of] = at
		}
	}
	return at
}

// left returns how many permits of a limiter are free at a time.
func (tr *trace) left(records []entry, limiter int, at time.Duration) int64 {
	n := tr.limiters[limiter].rate.Permits
	for _, r := range records {
		if r.until > at {
			n -= r.n
		}
	}
	return n
}

// together returns the first time, from a given one on, at which permits of several limiters are
// free.
func (tr *trace) together(records [][]entry, of []int, n []int64, at time.Duration) time.Duration {
	for {
		next := never
		for i, limiter := range of {
			free := tr.limiters[limiter].rate.Permits
			soonest := never
			for _, r := range records[limiter] {
				if r.until > at {
					free -= r.n
					soonest = min(soonest, r.until)
				}
			}
			if free < n[i] {
				next = min(next, soonest)
			}
		}
		if next == never {
			return at
		}
		at = next
	}
}

// exempt reports whether a fault is under way between two times, or has been so lately that callers
// still notice it.
func (tr *trace) exempt(from, to time.Duration) bool {
	for _, f := range tr.faults {
		if f.kind == late {
			continue
		}
		const after = 3 * time.Second // probes of a node, and retries
		if f.at <= to && from <= f.at+f.d+after {
			return true
		}
	}
	return false
}

// slack is how late a reply may be that a call needs: it may have to wait for a call in flight, and
// for the next one, and each is made again if it is no plain grant. Permits that return together
// may be awaited for 5 ms.
func (tr *trace) slack(c *call) time.Duration {
	calls := time.Duration(4)
	if tr.apart(c) { // each limiter is asked, and gives back
		calls *= time.Duration(2 * len(c.of))
	}
	return 12*ms + calls*tr.reply()
}

// reply returns the longest time that a reply takes.
func (tr *trace) reply() time.Duration {
	longest := tr.takes
	for _, f := range tr.faults {
		if f.kind == late {
			longest += f.d
		}
	}
	return longest
}
