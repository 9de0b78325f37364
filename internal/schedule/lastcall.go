package schedule

import (
	"iter"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// lastcall.go limits how long a queue leaves free permits to other clients: that must cost no
// caller its permits. The last call for a caller is sent before it leaves.

// timerSlack is how late a timer may fire without costing a caller its permits.
const timerSlack = 5 * time.Millisecond

// lastCallAt returns the latest time to ask for a caller that leaves at end, and whose permits are
// free from a given time on. That is two calls, each of which takes took, and timerSlack before
// end, but not before free. If half of the time from free to end is less than timerSlack, that half
// takes its place: so if other clients take the caller's permits each time, the caller asks only a
// few times before it leaves.
func lastCallAt(free, end time.Time, took time.Duration) time.Time {
	at := end.Add(-2*took - min(timerSlack, end.Sub(free)/2))
	if at.Before(free) {
		return free
	}
	return at
}

// lastCalls returns, in order, the waiting requests whose last call is before a given time, with
// the times of their last calls. It leaves out a request whose caller leaves before its permits and
// those of the requests in front are free.
func (q *Queue) lastCalls(before time.Time) iter.Seq2[*Request, time.Time] {
	return func(yield func(*Request, time.Time) bool) {
		var free time.Time       // no permits for r are free before
		var sum protocol.Permits // for r and the requests in front
		returned := make([]func(int64) time.Time, q.settings.Limiters)
		for i := range returned {
			returned[i] = q.pacer.members[i].share.Returned()
		}
		for r := q.line.ready; r != nil; r = r.next {
			if r.state.InFlight() {
				continue
			}
			if r.free.After(free) {
				free = r.free
			}
			if !free.Before(before) {
				return
			}
			add(&sum, r.Permits, 1)
			vain := !free.Before(r.end())
			for i, returned := range returned {
				n, rate := *sum.Of(i), *q.rates.Of(i)
				if n > max(*r.Permits.Of(i), rate) {
					return
				}
				vain = vain || n > *r.Permits.Of(i) && returned(rate-n).After(r.end())
			}
			if vain {
				continue
			}
			if at := lastCallAt(free, r.end(), q.pacer.took); at.Before(before) && !yield(r, at) {
				return
			}
		}
	}
}

// earlierLastCall returns the time of the first last call before a given time; that time if there
// is none.
func (q *Queue) earlierLastCall(at time.Time) time.Time {
	for _, last := range q.lastCalls(at) {
		if last.Before(at) {
			at = last
		}
	}
	return at
}

// nextLastCall returns when the next last call is due, by the monotonic clock; zero: none is before
// the given time.
func (q *Queue) nextLastCall(m Moment, before time.Time) time.Time {
	if at := q.earlierLastCall(before); at.Before(before) {
		return momentAt(m, at).Mono
	}
	return time.Time{}
}

// exempt returns up to which waiting request the fair share does not matter: the last one whose
// last call is due, or will be before a call made now ends; nil: none is.
func (q *Queue) exempt(now time.Time) (last *Request) {
	for r := range q.lastCalls(now.Add(2*q.pacer.took + timerSlack)) {
		last = r
	}
	return last
}

// walkPause is the least time between two walks through the line.
const walkPause = time.Millisecond

// changedLine notes that a request came or left.
func (p *pacer) changedLine() { p.unwalked = !p.asks.Mono.IsZero() }

// walkAt returns when the line is walked; zero: not before a request comes or leaves.
func (p *pacer) walkAt() time.Time {
	if !p.unwalked {
		return time.Time{}
	}
	return p.walkedAt.Add(walkPause)
}

// walk finds the next last call after requests came or left. If many do at once, they share a walk
// through the line.
func (q *Queue) walk(m Moment) {
	p, next := &q.pacer, q.line.ready
	switch {
	case p.unwalked && (next == nil || !next.free.Before(p.asks.Clock)): // no permits are free before
		p.unwalked = false
	case over(p.walkAt(), m):
		p.unwalked, p.walkedAt, p.lastCall = false, m.Mono, q.nextLastCall(m, p.asks.Clock)
	}
}
