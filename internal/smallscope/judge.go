package smallscope

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// grant notes a grant, and judges all of the last interval.
func (s *search) grant(w *world, permits int64, start, end time.Time) error {
	w.grants = append(slices.Clone(w.grants), grant{permits, start.UnixMicro(), end.UnixMicro()})
	slices.SortFunc(w.grants, func(a, b grant) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end), cmp.Compare(a.permits, b.permits))
	})
	log := make([]window.Grant, len(w.grants))
	for i, g := range w.grants {
		log[i] = window.Grant{Permits: g.permits, Start: time.UnixMicro(g.start), End: time.UnixMicro(g.end)}
	}
	var back time.Duration // what a clock that was set back wrote expires so much early
	for _, c := range s.Clients {
		back = max(back, c.Back)
	}
	most, at := window.Largest(log, s.Interval-back)
	s.result.Grants++
	switch {
	case most > s.Rate:
		return s.violated("%d permits of %d in the window from %v on", most, s.Rate, at.Sub(Epoch))
	case most == s.Rate:
		s.result.Full++
	}
	return nil
}

// consistent checks what is stored: the free permits and the records add up to the rate, an
// interval pays back at most the rate (unless a retry has dated a record anew), and no record
// counts for longer than an interval and the time of a lease, or of a debt, from now on.
func (s *search) consistent(w *world) error {
	now := &s.stores.all[w.store]
	sum, last := now.sum()
	if now.value != "" && fmt.Sprint(s.Rate-sum) != now.value {
		return s.violated("%s permits are free, and %d of %d in records", now.value, sum, s.Rate)
	}
	var longest time.Duration
	for _, c := range s.Clients {
		longest = max(longest, c.Lease+c.Lease/4, c.Granularity)
		if c.Foreign != nil {
			longest = max(longest, c.Foreign.Debt)
		}
	}
	retries := slices.ContainsFunc(s.Clients, func(c Client) bool { return c.Retries > 0 })
	if most, _ := window.LargestScores(now.scores(), s.Interval); most > s.Rate && !retries {
		return s.violated("an interval pays back %d permits of %d", most, s.Rate)
	}
	if latest := Epoch.Add(s.Times[w.at] + longest); last > float64(latest.UnixMicro())/1000 {
		return s.violated("a record is dated %.3f ms ahead", last-float64(s.now(w).UnixMicro())/1000)
	}
	return nil
}

// notInDebt checks that a batch took permits only if they were free.
func (s *search) notInDebt(before, after *store) error {
	took := slices.ContainsFunc(after.records, func(r redis.Z) bool {
		return !slices.ContainsFunc(before.records, func(other redis.Z) bool { return other.Member == r.Member })
	})
	if took && strings.HasPrefix(after.value, "-") {
		return s.violated("permits are granted in debt: %s are free afterwards", after.value)
	}
	return nil
}

// judge checks what became of the callers of a call.
func (s *search) judge(w *world, i int, call *call, g *protocol.Reply, f *schedule.Facts) error {
	c, m := w.clients[i], s.moment(w, i)
	var granted, got int64
	for at, group := range call.Ask.Groups {
		if n := g.Granted(at, group); call.Ask.UpTo {
			granted += n
		} else {
			granted += max(n, 0) * group.Size
		}
	}
	for at := range c.callers {
		if r := &c.callers[at]; slices.Contains(call.behind, r.number) && !call.Ask.Partial {
			r.asked, r.blocked = true, r.N > g.Free
			if r.expired && !r.left && !r.Settled() {
				return s.violated("a caller for %d goes on waiting though its timeout is over", r.N)
			}
		}
	}
	waiting := c.waits(call.behind)
	var wait time.Duration // of the first caller that waits
	if waiting != nil && !call.Ask.Partial {
		if waiting.N <= f.Unclaimed {
			return s.violated("%d permits of callers that have left are lost: a caller waits for %d",
				f.Unclaimed, waiting.N)
		}
		if c.first() == waiting.number && waiting.N > g.Free {
			wait = max(waiting.Outcome.RetryAfter-m.Clock.Sub(c.queue.Since(m, g)), 0)
			c.due, c.dueTo = m.Mono.Add(wait), waiting.number
		}
	}
	for _, r := range call.Settled {
		switch o := &r.Outcome; {
		case o.Allowed:
			if got += r.N; r.Kind == schedule.UpTo {
				got += o.Taken - r.N
			}
			at := slices.IndexFunc(c.callers, func(other caller) bool { return other.Request == r })
			if waiting != nil && at >= 0 && (r.Kind != schedule.Wait || c.callers[at].number > waiting.number) {
				return s.violated("a request for %d passes a caller that waits for %d", r.N, waiting.N)
			}
		case o.Err != nil || r.Kind != schedule.Try:
		case waiting == nil && c.queue.Waiting() == 0 && r.N <= f.Unclaimed:
			return s.violated("%d permits of callers that have left are lost: a request for %d is refused",
				f.Unclaimed, r.N)
		case c.queue.Waiting() > 0 && (o.Remaining != 0 || o.RetryAfter < wait):
			return s.violated(
				"a request is refused with %d permits left, to be made again after %v, though a caller waits for %v",
				o.Remaining,
				o.RetryAfter, wait,
			)
		}
	}
	if granted != f.Own || got+f.Unclaimed != f.Own {
		return s.violated(
			"a reply grants %d permits: callers get %d, and %d of %d are unclaimed", granted, got, f.Unclaimed, f.Own,
		)
	}
	return nil
}

// waits returns the first of the callers with these numbers that waits for no more than the rate,
// and has not left.
func (c *client) waits(numbers []int) *caller {
	for _, number := range numbers {
		if at := c.index(number); at >= 0 && !c.callers[at].left && !c.callers[at].Settled() {
			return &c.callers[at]
		}
	}
	return nil
}

// first returns the number of the first caller that waits.
func (c *client) first() int {
	first := 0
	for _, r := range c.callers {
		if r.Kind == schedule.Wait && !r.left && !r.Settled() && (first == 0 || r.number < first) {
			first = r.number
		}
	}
	return first
}

// sound checks the state of a client after an event.
func (s *search) sound(w *world, i int) error {
	c, now := w.clients[i], s.now(w)
	wake, _ := c.queue.Wake()
	free := c.queue.InFlight() == nil
	if idle := len(c.calls)+len(c.callers) == 0 && c.ledger().Idle(); c.queue.Idle() != idle {
		return s.violated(
			"the queue of %s has %d calls and %d callers, and says that it is idle: %t", s.Clients[i].Name,
			len(c.calls),
			len(c.callers), !idle,
		)
	}
	for _, r := range c.callers {
		switch {
		case r.InFlight():
		case free && (r.Kind != schedule.Wait || !wake.After(now)):
			return s.violated("nothing wakes the queue of %s for a caller that wants %d", s.Clients[i].Name, r.N)
		case free && !r.asked && !r.Until.IsZero():
			return s.violated("a caller of %s for %d with a timeout is not asked for", s.Clients[i].Name, r.N)
		case free && !r.blocked && r.number == c.first() && !s.redisson():
			return s.violated("a caller of %s for %d is not asked for, though its permits may be free",
				s.Clients[i].Name, r.N)
		case free && r.number == c.dueTo && c.first() == c.dueTo && wake.After(latest(c.due, now).Add(s.late())):
			return s.violated(
				"a caller of %s whose permits are free in %v is asked for only in %v", s.Clients[i].Name,
				c.due.Sub(now),
				wake.Sub(now),
			)
		}
	}
	if c.ledger() == nil {
		return nil
	}
	if c.queue.Waiting() > 0 && c.ledger().Holds() {
		return s.violated("%s has a lease while a caller waits", s.Clients[i].Name)
	}
	returned, void := c.ledger().Tell()
	c.held -= returned + void
	under := int64(0) // what is being given back, or is to be
	for _, back := range c.backs {
		under += back.Permits
	}
	for _, m := range c.sent {
		if m.what == givesBack && m.life == c.life {
			under += m.back.Permits
		}
	}
	if has := c.ledger().Unused(); has+under != c.held {
		return s.violated("%s has %d permits and gives back %d of %d", s.Clients[i].Name, has, under, c.held)
	}
	return nil
}

// late returns how long after its permits are free a caller may be asked for: others that return
// shortly afterwards are taken by the same call (5 ms), and Redisson has a head start.
func (s *search) late() time.Duration {
	late := 5 * time.Millisecond
	if s.redisson() {
		late += s.Interval / 4
	}
	return late
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
