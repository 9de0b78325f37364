package dispatch

import (
	"runtime"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// lease.go answers requests from leases (WithLease), permits that batches take ahead so that later
// requests need no call, and asks for leases. The ledger of a queue holds them; giveback.go gives
// them back. Package lease says why no window of the interval exceeds the rate.

// answersInARow is how many requests the lease or the deny cache of a limiter answers before the
// goroutine that asked last yields. If many goroutines never block, one that reads a reply gets a
// processor only after each of them had it for 10 ms.
const answersInARow = 512

// A loan is n permits that were taken from a lease. If lease is nil, none were taken.
type loan struct {
	queue *queue
	lease *lease.Lease
	n     int64
}

// untake gives the permits back to the lease. If that has ended meanwhile, they stay counted,
// because its record may have been replaced by another one.
func (l loan) untake() {
	if !l.lease.Untake(l.n) {
		l.queue.event(func(s *schedule.Queue) { s.Ledger().Void(l.n) })
	}
}

// fromLease answers a request from the lease of its limiter. If there is no lease with n permits,
// the loan has no lease. The result has NextAfter and ResetAfter if detail is set.
func (l *Limiter) fromLease(n int64, detail bool, sources []Source) (Result, loan) {
	q := l.queue.Load()
	if q == nil {
		l.event(func(entered *queue) { q = entered })
	}
	if !q.ledger.Holds() {
		return Result{}, loan{}
	}
	now := l.client.Moment()
	held, left, refill := q.ledger.Grant(n, now)
	switch {
	case held == nil:
		q.event(func(s *schedule.Queue) {
			if held, left, refill = s.Ledger().Take(n, now); refill {
				s.Refill()
			}
		})
	case refill:
		go q.event((*schedule.Queue).Refill)
	}
	if held == nil {
		return Result{}, loan{}
	}
	if sources != nil {
		sources[0] = Source{At: held.At}
	}
	if left/answersInARow != (left+n)/answersInARow {
		runtime.Gosched()
	}
	return granted(held, left, now, detail), loan{q, held, n}
}

// granted returns the result of a request that a lease grants. It has NextAfter and ResetAfter if
// detail is set.
func granted(held *lease.Lease, left int64, now lease.Moment, detail bool) Result {
	result := Result{Allowed: true, Limit: held.Rate, Remaining: held.Free + left}
	if detail {
		result.ResetAfter = span.Sum(held.Ends(now.Clock, now.Mono), held.Interval)
		result.NextAfter = result.ResetAfter
	}
	return result
}

// allFromLeases answers a request to several limiters from their leases, if all of them can, and
// fills in the sources, unless they are nil. Otherwise what was taken goes back to the leases.
func (c *Client) allFromLeases(permits []int64, limiters []*Limiter, sources []Source) ([]Result, bool) {
	for _, l := range limiters {
		if l.Settings.Lease == 0 {
			return nil, false
		}
	}
	var few [4]loan
	results, loans := make([]Result, len(limiters)), few[:0]
	for i, l := range limiters {
		var from loan
		if results[i], from = l.fromLease(permits[i], true, nil); from.lease == nil {
			for _, taken := range loans {
				taken.untake()
			}
			return nil, false
		}
		loans = append(loans, from)
		if sources != nil {
			sources[i] = Source{At: from.lease.At}
		}
	}
	return results, true
}

// Leased returns how many permits this client holds ahead of demand for a limiter, whatever the
// options of its handles.
func (l *Limiter) Leased() (n int64) {
	for _, q := range l.leasing() {
		q.look(func(s *schedule.Queue) { n += s.Ledger().Held(l.client.Moment()) })
	}
	return n
}

// leasing returns the queues of a limiter that can have leases.
func (l *Limiter) leasing() []*queue {
	if !l.client.leases.Load() {
		return nil
	}
	r := &l.client.registry
	return list(&r.mu, &r.all, func(other *limiter.Limiter) bool {
		return other.Settings.Lease > 0 && other.Key() == l.Key()
	})
}
