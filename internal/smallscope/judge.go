package smallscope

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/replay"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// grant notes a grant at some time between start and now, and judges all of the last interval.
func (s *search) grant(w *world, limiter int, permits int64, start time.Time) {
	grants := append(w.grants[limiter], window.Grant{Permits: permits, Start: start, End: s.now(w)})
	slices.SortFunc(grants, func(a, b window.Grant) int {
		return cmp.Or(a.Start.Compare(b.Start), a.End.Compare(b.End), cmp.Compare(a.Permits, b.Permits))
	})
	w.grants[limiter] = grants
	var back time.Duration // what a clock that was set back wrote expires so much early
	for _, c := range s.Clients {
		back = max(back, c.Back)
	}
	rate := s.Limiters[limiter]
	most, at := window.Largest(grants, protocol.Millis(rate.Interval)-back)
	if most > rate.Permits {
		deep.Violated("%d permits of %d in the window from %v on", most, rate.Permits, at.Sub(Epoch))
	}
	if most == rate.Permits {
		s.result.Full++
	}
}

// judge checks a state.
func (s *search) judge(w *world) {
	s.world = w
	s.consistent(w)
	for _, c := range w.clients {
		for _, q := range c.Queues {
			s.quiet(w, c, q)
			s.inTime(w, c, q)
			if q.Idle() && (q.Waiting()+q.Trying() > 0 || q.InFlight() != nil || !q.Ledger().Idle()) {
				deep.Violated("a queue with callers says that it is idle")
			}
			if q.Waiting() > 0 && q.Ledger().Holds() {
				deep.Violated("a limiter has a lease while a caller waits")
			}
		}
	}
}

// consistent checks what is stored of each limiter: the free permits and the records add up to the
// rate, and only charges are granted in debt.
func (s *search) consistent(w *world) {
	charges := slices.ContainsFunc(s.Foreign, func(f Foreign) bool { return f.Charges })
	for limiter, of := range s.server.Contents(w.store) {
		free := s.Limiters[limiter].Permits
		for _, r := range of.Scores() {
			free -= r.Permits
		}
		if of.Value != "" && of.Value != fmt.Sprint(free) || free < 0 && !charges {
			deep.Violated("%q permits are free, and by the records %d", of.Value, free)
		}
	}
}

// quiet checks that Next has no effects if it is called again, now or before the time to wake.
func (s *search) quiet(w *world, c *client, q *replay.Queue) {
	again := deep.Copy(q.Queue)
	wake, _ := again.Wake()
	for at := w.at; at < len(s.Times); at++ {
		m := s.moment(at, c)
		if !wake.IsZero() && !m.Mono.Before(wake) {
			return
		}
		now := func() schedule.Moment { return m }
		send, fx := again.Next(nil, now, func() *schedule.Batch { return new(schedule.Batch) })
		if len(send)+len(fx.Leftovers)+len(fx.Tell)+len(fx.Outdated) > 0 || fx.Spare != nil {
			deep.Violated("a queue has something to do at %v, but wakes only at %v (zero: never)", s.Times[at],
				wake.Sub(Epoch))
		}
	}
}

// inTime checks that a queue wakes for each request, and soon if the permits of its first caller
// are free.
func (s *search) inTime(w *world, c *client, q *replay.Queue) {
	if q.InFlight() != nil {
		return
	}
	if q.Trying() > 0 {
		deep.Violated("a request that does not wait is in no batch")
	}
	late := 5 * time.Millisecond // others that return shortly afterwards are taken by the same call
	for _, c := range s.Clients {
		if c.Lease > 0 || c.Back > 0 { // permits that are given back are free earlier than Redis said
			late = time.Hour
		}
		if c.Redisson { // it has a head start
			late += protocol.Millis(s.Limiters[0].Interval) / 4
		}
	}
	for _, f := range s.Foreign {
		if !f.Charges { // the same
			late += protocol.Millis(s.Limiters[0].Interval) / 4
		}
	}
	wake, _ := q.Wake()
	first := true
	for r := range q.Line() {
		if !r.InFlight() && (wake.IsZero() || first && wake.After(s.now(w).Add(late)) && s.free(w, c, q, r)) {
			deep.Violated("a queue wakes only at %v (zero: never) for a caller that waits for %v", wake.Sub(Epoch),
				r.Permits)
		}
		first = false
	}
}

// free reports whether the permits of the first caller in a queue are free, beside those that
// others wait for in front of it.
func (s *search) free(w *world, c *client, q *replay.Queue, first *schedule.Request) bool {
	now := s.moment(w.at, c).Clock
	for part, limiter := range q.Limiters {
		wanted := *first.Permits.Of(part)
		if first.Reservations == nil {
			for _, g := range q.Peek(now).Groups {
				wanted += (1 - g.Count) * g.Permits.First // without requests, it is what sets have reserved
			}
		} else {
			wanted += c.Queues[limiter].InFront(first.Reservations[part:part+1], now)[0].Permits
		}
		if s.server.Free(w.store, limiter, s.now(w)) < wanted {
			return false
		}
	}
	return true
}
