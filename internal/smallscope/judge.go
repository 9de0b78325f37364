package smallscope

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// grant notes a grant at some time between start and now, and judges all of the last interval.
func (s *search) grant(w *world, permits int64, start time.Time) {
	w.grants = append(w.grants, window.Grant{Permits: permits, Start: start, End: s.now(w)})
	slices.SortFunc(w.grants, func(a, b window.Grant) int {
		return cmp.Or(a.Start.Compare(b.Start), a.End.Compare(b.End), cmp.Compare(a.Permits, b.Permits))
	})
	var back time.Duration // what a clock that was set back wrote expires so much early
	for _, c := range s.Clients {
		back = max(back, c.Back)
	}
	most, at := window.Largest(w.grants, s.Interval-back)
	s.result.Grants++
	if most > s.Rate {
		violated("%d permits of %d in the window from %v on", most, s.Rate, at.Sub(Epoch))
	}
	if most == s.Rate {
		s.result.Full++
	}
}

// consistent checks what is stored: the free permits and the records add up to the rate, none are
// granted in debt (unless a client charges permits), an interval pays back at most the rate (unless
// a retry has dated a record anew), and no record counts for longer than an interval and the time
// of a lease, or of a debt, from now on.
func (s *search) consistent(w *world) {
	now := &s.stores.all[w.store]
	var sum int64
	var last time.Time
	for _, r := range now.scores() {
		sum += r.Permits
		last = time.UnixMicro(r.At)
	}
	if now.value != "" && fmt.Sprint(s.Rate-sum) != now.value {
		violated("%s permits are free, and %d of %d in records", now.value, sum, s.Rate)
	}
	var longest, debt time.Duration
	retries := 0
	for _, c := range s.Clients {
		longest = max(longest, c.Lease+c.Lease/4, c.Granularity)
		retries += c.Retries
		if c.Foreign != nil {
			debt = max(debt, c.Foreign.Debt)
		}
	}
	if strings.HasPrefix(now.value, "-") && debt == 0 {
		violated("permits are granted in debt: %s are free", now.value)
	}
	if most, _ := window.LargestScores(now.scores(), s.Interval); most > s.Rate && retries == 0 {
		violated("an interval pays back %d permits of %d", most, s.Rate)
	}
	if ahead := last.Sub(s.now(w)); ahead > max(longest, debt) {
		violated("a record is dated %v ahead", ahead)
	}
}

// mostCalls is how many calls a client makes at one of the Times, on average.
const mostCalls = 12

// mayAsk checks a batch before it is sent.
func (s *search) mayAsk(i int, c *client, b *schedule.Batch) {
	if b.Ask.Lease > 0 && (c.queue.Waiting() > 0 || c.open(asks) > 0 || b.Requests() == 0 && !c.ledger().Holds()) {
		violated("a call for %d callers takes %d permits ahead, though callers wait, a call has stalled, or no lease is "+
			"there that it could follow", b.Requests(), b.Ask.Lease)
	}
	if c.ids > uint64(mostCalls*len(s.Times)) {
		violated("a storm: %s has made %d calls", s.Clients[i].Name, c.ids)
	}
}

// sound checks the state of a client after an event.
func (s *search) sound(w *world, i int) {
	c, name := w.clients[i], s.Clients[i].Name
	if c.queue == nil {
		return
	}
	s.quiet(w, i)
	if idle := c.open(asks)+len(c.callers) == 0 && c.ledger().Idle(); c.queue.Idle() != idle {
		violated("the queue of %s has %d calls and %d callers, and says that it is idle: %t", name, c.open(asks),
			len(c.callers), !idle)
	}
	wake, _ := c.queue.Wake()
	for _, r := range c.callers {
		if c.queue.InFlight() == nil && !r.InFlight() && (r.Kind != schedule.Wait || wake.IsZero()) {
			violated("nothing wakes the queue of %s for a caller that wants %d", name, r.Permits.First)
		}
	}
	s.inTime(w, i, wake)
	if c.queue.Waiting() > 0 && c.ledger().Holds() {
		violated("%s has a lease while a caller waits", name)
	}
}

// quiet checks that Next has no effects if it is called again, now or before the time to wake,
// which is to come.
func (s *search) quiet(w *world, i int) {
	c := w.clients[i]
	again := deep.Copy(c.queue)
	wake, _ := again.Wake()
	if !wake.IsZero() && !wake.After(s.now(w)) {
		violated("the queue of %s wakes at a time that is over", s.Clients[i].Name)
	}
	for at := w.at; at < len(s.Times); at++ {
		m := s.moment(at, c)
		if !wake.IsZero() && !m.Mono.Before(wake) {
			return
		}
		now := func() schedule.Moment { return m }
		send, fx := again.Next(nil, now, func() *schedule.Batch { return new(schedule.Batch) })
		if len(send)+len(fx.Back) > 0 || fx.Spare != nil {
			violated("the queue of %s has something to do at %v, but wakes only at %v (zero: never)",
				s.Clients[i].Name, s.Times[at], wake.Sub(Epoch))
		}
	}
}

// inTime checks that the queue wakes in time for its first caller: shortly after its permits are
// free, as far as Redis knows. Permits that are given back are free earlier.
func (s *search) inTime(w *world, i int, wake time.Time) {
	late := 5 * time.Millisecond // others that return shortly afterwards are taken by the same call
	for _, c := range s.Clients {
		if c.Lease > 0 || c.Back > 0 {
			return
		}
		if c.Redisson || c.Foreign != nil && c.Foreign.Debt == 0 { // it has a head start
			late += s.Interval / 4
		}
	}
	queue := w.clients[i].queue
	for first := range queue.Line() {
		free := s.stores.all[w.store].freeAt(s.Rate-first.Permits.First, s.Interval)
		if free.Before(s.now(w)) {
			free = s.now(w)
		}
		if queue.InFlight() == nil && !first.InFlight() && wake.After(free.Add(late)) {
			violated("a caller of %s for %d, whose permits are free in %v, is asked for only in %v", s.Clients[i].Name,
				first.Permits.First, free.Sub(s.now(w)), wake.Sub(s.now(w)))
		}
		return
	}
}
