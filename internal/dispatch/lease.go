package dispatch

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Leases (WithLease): permits that batches take ahead, so that later requests need no call. A queue holds one at a time,
// and none while a caller waits. Package lease says why no window of the interval exceeds the rate.

// maxLeases is for how many limiters a client holds leases at a time.
const maxLeases = 1 << 16

// fromLease answers a request from the lease of its limiter, if there is one that can.
func (l *Limiter) fromLease(a Ask) (Result, bool) {
	q := l.queue.Load()
	if q == nil {
		q = l.client.enter(l)
		q.exit()
	}
	held := q.lease.Load()
	if held == nil {
		return Result{}, false
	}
	now, mono := l.client.times(held.Server)
	left, ok := held.Take(a.N, now, mono)
	if !ok {
		if !held.Valid(now, mono) {
			q.endLease(held)
		} else if held.Refill(0) {
			q.refilling.Store(true) // the call for this request takes more
		}
		return Result{}, false
	}
	if a.Source != nil {
		*a.Source = Source{At: held.At}
	}
	if held.Refill(left) {
		q.refilling.Store(true)
		go q.refill()
	}
	return leased(held, left, now, mono), true
}

// leased returns the result of a request that a lease granted.
func leased(held *lease.Lease, left int64, now, mono time.Time) Result {
	return Result{
		Allowed: true, Limit: held.Rate, Remaining: held.Free + left, ResetAfter: held.Ends(now, mono) + held.Interval,
	}
}

// allFromLeases answers a request to several limiters from their leases, if all of them can.
func (c *Client) allFromLeases(permits []int64, limiters []*Limiter) ([]Result, bool) {
	for _, l := range limiters {
		if l.settings.Lease == 0 {
			return nil, false
		}
	}
	results, sources := make([]Result, len(limiters)), make([]Source, len(limiters))
	for i, l := range limiters {
		ok := false
		if results[i], ok = l.fromLease(Ask{N: permits[i], Source: &sources[i]}); !ok {
			for j, taken := range limiters[:i] {
				q := c.enter(taken) // taken.queue may be nil by now
				q.exit()
				if held := q.lease.Load(); held == nil || held.At != sources[j].At || !held.Untake(permits[j]) {
					go q.giveBack(permits[j], sources[j].At)
				}
			}
			return nil, false
		}
	}
	return results, true
}

// times returns the time by the clock that dates grants, and a time with a monotonic reading.
func (c *Client) times(server bool) (now, mono time.Time) {
	if c.ownClock && !server {
		mono = time.Now()
		return c.clock(), mono
	}
	now = time.Now()
	return now, now
}

// wish returns how many permits b takes ahead. q.mu is held.
func (q *queue) wish(b *batch) int64 {
	d, refills := q.limiter.settings.Lease, q.refilling.Swap(false)
	if d == 0 || q.waiting > 0 || b.ask.Partial || q.fairShare.Redisson || q.detached > 0 ||
		q.lease.Load() != nil && !refills || q.lease.Load() == nil && q.client.leases.Load() >= maxLeases {
		return 0
	}
	if held := q.lease.Load(); held != nil {
		q.used(held)
	}
	asked := int64(0)
	for _, g := range b.ask.Groups {
		asked = min(asked+min(g.Size, 1<<31)*g.Count, 1<<31)
	}
	return q.demand.Want(time.Now(), d, asked)
}

// refill asks for more permits than those of the lease, unless another call has done so.
func (q *queue) refill() {
	q.mu.Lock()
	defer q.exit()
	if q.refilling.Load() {
		q.send()
	}
}

// hold stores the lease that b has brought. q.mu is held.
func (q *queue) hold(b *batch, g protocol.AcquireReply, detached bool) {
	held := &lease.Lease{
		Rate: g.Rate, Interval: g.Interval, Free: g.Free, At: g.At, Began: b.request.Began(),
		Lasts: time.Duration(g.At-g.Now) * time.Microsecond, Server: q.limiter.settings.ServerTime, Permits: g.Ahead,
	}
	old := q.lease.Load()
	if now, mono := q.client.times(held.Server); detached && old != nil || q.waiting > 0 || q.changes != b.before || !held.Valid(now, mono) {
		go q.giveBack(g.Ahead, g.At)
		return
	}
	if old != nil {
		if unused := old.End(); old.At == held.At {
			held.Permits += unused
		} else {
			go q.giveBack(unused, old.At)
		}
	} else {
		q.client.leases.Add(1)
	}
	held.Begin()
	q.lease.Store(held)
	q.client.sweepLater(q.limiter.settings.Lease)
}

// used tells the demand how much of a lease was used. q.mu is held.
func (q *queue) used(held *lease.Lease) {
	left := held.Left()
	q.demand.Used(held.Permits-left+q.served, time.Since(held.Started), left <= held.Permits/4)
	q.served = 0
}

// endLease ends a lease of the queue, unless it has another one by now.
func (q *queue) endLease(held *lease.Lease) {
	q.mu.Lock()
	defer q.exit()
	q.end(held)
}

// end is endLease. q.mu is held.
func (q *queue) end(held *lease.Lease) {
	if held == nil || q.lease.Load() != held {
		return
	}
	q.used(held)
	q.lease.Store(nil)
	q.client.leases.Add(-1)
	unused := held.End()
	// What is worth less than a hundredth of the rate, with all leases of an interval, is worth no call.
	if d := q.limiter.settings.Lease; float64(unused)*100*float64(held.Interval)/float64(d) >= float64(held.Rate) {
		go q.giveBack(unused, held.At)
	}
}

// giveBack gives back permits of a lease. If that fails they count until an interval after the end of the lease. No mutex
// is held.
func (q *queue) giveBack(n, at int64) {
	if n == 0 {
		return
	}
	returned, _ := q.limiter.Undo(context.Background(), n, Source{At: at})
	q.mu.Lock()
	defer q.exit()
	q.returned += returned
}

// endLeases ends the leases of a limiter, because this client begins to change it, or has changed it. What batches in
// flight have taken ahead is given back, since they may have been executed before the change.
func (l *Limiter) endLeases() {
	if !l.client.leasing.Load() {
		return
	}
	for _, q := range l.client.registry.list(func(other *Limiter) bool { return other.Key() == l.Key() }) {
		q.mu.Lock()
		q.changes++
		q.end(q.lease.Load())
		q.exit()
	}
}

// sweepLater ends, in the background, the leases that are over, while there are any.
func (c *Client) sweepLater(after time.Duration) {
	if c.sweeping.CompareAndSwap(false, true) {
		time.AfterFunc(after, c.sweep)
	}
}

func (c *Client) sweep() {
	c.sweeping.Store(false)
	var after time.Duration
	for _, q := range c.registry.list(func(l *Limiter) bool { return l.settings.Lease > 0 }) {
		held := q.lease.Load()
		if held == nil {
			continue
		}
		if now, mono := c.times(held.Server); !held.Valid(now, mono) {
			q.endLease(held)
		} else if ends := max(held.Ends(now, mono), time.Millisecond); after == 0 || ends < after {
			after = ends
		}
	}
	if after > 0 {
		c.sweepLater(after)
	}
}
