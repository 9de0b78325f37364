package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Leases (WithLease): permits that batches take ahead, so that later requests need no call. A queue holds one at a time,
// and none while a caller waits. Package lease says why no window of the interval exceeds the rate.

// maxLeases is for how many limiters a client holds leases at a time.
const maxLeases = 1 << 16

// fromLease answers a request from the lease of its limiter, if there is one that can: it returns that lease, else nil.
func (l *Limiter) fromLease(a Ask) (Result, *lease.Lease) {
	q := l.queue.Load()
	if q == nil {
		q = l.client.enter(l)
		q.exit()
	}
	held := q.lease.Load()
	if held == nil {
		return Result{}, nil
	}
	now, mono := l.client.times(held.Server)
	left, ok := held.Take(a.N, now, mono)
	if !ok {
		if held.Ended() || !held.Valid(now, mono) {
			q.endLease(held)
		} else if held.Refill(0) {
			q.refilling.Store(true) // the call for this request takes more
		}
		return Result{}, nil
	}
	if a.Source != nil {
		*a.Source = Source{At: held.At}
	}
	if held.Refill(left) {
		q.refilling.Store(true)
		go q.refill()
	}
	return leased(held, left, now, mono), held
}

// leased returns the result of a request that a lease granted.
func leased(held *lease.Lease, left int64, now, mono time.Time) Result {
	return Result{
		Allowed: true, Limit: held.Rate, Remaining: held.Free + left, ResetAfter: held.Ends(now, mono) + held.Interval,
	}
}

// allFromLeases answers a request to several limiters from their leases, if all of them can, and fills in the sources,
// unless they are nil. Otherwise what was taken goes back to the leases. What is of a lease that has ended meanwhile stays
// counted: its record may have been replaced by another one.
func (c *Client) allFromLeases(permits []int64, limiters []*Limiter, sources []Source) ([]Result, bool) {
	for _, l := range limiters {
		if l.settings.Lease == 0 {
			return nil, false
		}
	}
	results, leases := make([]Result, len(limiters)), make([]*lease.Lease, len(limiters))
	for i, l := range limiters {
		a := Ask{N: permits[i]}
		if sources != nil {
			a.Source = &sources[i]
		}
		if results[i], leases[i] = l.fromLease(a); leases[i] == nil {
			for j, held := range leases[:i] {
				held.Untake(permits[j])
			}
			return nil, false
		}
	}
	return results, true
}

// afterAllowAll takes a lease for the limiter after a call of AllowAll, which takes none, if there was another one for it
// shortly before.
func (l *Limiter) afterAllowAll(call Call) {
	d := l.settings.Lease
	if d == 0 {
		return
	}
	q := l.client.enter(l)
	defer q.exit()
	now := time.Now()
	again := now.Sub(q.jointAt) < d
	q.jointAt = now
	q.demand.Granted(call.Permits)
	if call.Denied > 0 {
		q.demand.Refused(now)
	} else if again && (q.lease.Load() == nil || q.refilling.Load()) {
		q.joint = call.Permits
		q.refilling.Store(true)
		q.send()
	}
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
	if held := q.lease.Load(); held != nil && !held.Ended() {
		q.used(held)
	}
	asked, now := q.joint, time.Now()
	q.joint = 0
	for _, g := range b.ask.Groups {
		asked = min(asked+min(g.Size, 1<<31)*g.Count, 1<<31)
	}
	dated := now // by the clock that dates grants, or about that
	if q.client.ownClock {
		dated = q.client.clock()
	}
	rest := (d - time.Duration(dated.UnixNano())%d) % d
	return q.demand.Want(now, d, rest, asked)
}

// refill asks for more permits than those of the lease, unless another call has done so.
func (q *queue) refill() {
	q.mu.Lock()
	defer q.exit()
	if q.lease.Load() == nil {
		q.refilling.Store(false) // it has ended meanwhile
	} else if q.refilling.Load() && !q.dropped {
		q.send()
	}
}

// hold stores the lease that b has brought. q.mu is held.
func (q *queue) hold(b *batch, g protocol.AcquireReply, detached bool) {
	held := &lease.Lease{
		Rate: g.Rate, Interval: g.Interval, Free: g.Free, At: g.At, Began: b.request.Began(),
		Lasts: time.Duration(g.At-g.Now) * time.Microsecond, Server: q.limiter.settings.ServerTime, Permits: g.Ahead,
	}
	if q.forgets != b.forgets {
		q.void += g.Ahead
		return // the record is gone, or its permits count until it expires
	}
	old := q.lease.Load()
	if now, mono := q.client.times(held.Server); detached && old != nil || q.waiting > 0 || q.changes != b.before || !held.Valid(now, mono) {
		q.giveBackLater(g.Ahead, g.At)
		return
	}
	if old != nil {
		if unused := old.End(); old.At == held.At {
			held.Permits += unused
		} else {
			q.giveBackLater(unused, old.At)
		}
	} else {
		q.client.leases.Add(1)
	}
	held.Begin(time.Now())
	q.lease.Store(held)
	q.client.sweepLater(q.limiter.settings.Lease)
}

// used tells the demand how much of a lease was used. q.mu is held.
func (q *queue) used(held *lease.Lease) {
	q.demand.Measure(held.Used(), held.Started, time.Now(), held.Left() <= held.Permits/4)
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
	q.expire(held)
	q.detachLease(held)
}

// expire gives back what is unused of a lease that is over. The queue keeps the lease, and with it what it knows of the
// demand. q.mu is held.
func (q *queue) expire(held *lease.Lease) {
	if unused := q.unused(held); lease.WorthACall(unused, held.Rate, held.Interval, q.limiter.settings.Lease) {
		q.giveBackLater(unused, held.At)
	} else {
		q.void += unused
	}
}

// unused ends a lease, if nobody has done so, and returns the permits that were not granted. q.mu is held.
func (q *queue) unused(held *lease.Lease) int64 {
	if held.Ended() {
		return 0
	}
	q.used(held)
	return held.End()
}

// detachLease removes the lease of the queue and returns what is unused. q.mu is held.
func (q *queue) detachLease(held *lease.Lease) (unused int64) {
	q.lease.Store(nil)
	q.refilling.Store(false) // a refill that was asked for is of this lease
	q.client.leases.Add(-1)
	return q.unused(held)
}

// A giveBack is permits of a lease that are to be given back.
type giveBack struct {
	queue   *queue
	n, at   int64
	forgets int64 // queue.forgets when the lease ended
}

// giveBacks are those that wait for one of a few goroutines: many leases end at the same time, and their calls must not
// take all connections.
type giveBacks struct {
	mu      sync.Mutex // guards the fields below
	waiting []giveBack
	workers int
}

// mostGivingBack is how many goroutines give back permits at once.
const mostGivingBack = 8

// giveBackLater gives back permits in the background. If very many wait, these count until their record expires. q.mu is
// held.
func (q *queue) giveBackLater(n, at int64) {
	if n == 0 {
		return
	}
	all := &q.client.giveBacks
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.waiting) == maxLeases {
		q.void += n
		return
	}
	all.waiting = append(all.waiting, giveBack{q, n, at, q.forgets})
	if all.workers < mostGivingBack {
		all.workers++
		go all.work()
	}
}

// work gives back what waits, until nothing does.
func (all *giveBacks) work() {
	for {
		all.mu.Lock()
		if len(all.waiting) == 0 {
			all.waiting = nil
			all.workers--
			all.mu.Unlock()
			return
		}
		next := all.waiting[0]
		all.waiting = all.waiting[1:]
		all.mu.Unlock()
		q := next.queue
		q.mu.Lock()
		forgotten := q.forgets != next.forgets
		q.mu.Unlock()
		if !forgotten {
			q.giveBack(context.Background(), next.n, next.at)
		} else {
			q.noteBack(0, next.n)
		}
	}
}

// giveBack gives back permits of a lease. If that fails they count until an interval after the end of the lease. No mutex
// is held.
func (q *queue) giveBack(ctx context.Context, n, at int64) {
	if n == 0 {
		return
	}
	returned, _ := q.limiter.Undo(ctx, n, Source{At: at})
	q.noteBack(returned, n-returned)
}

// noteBack notes what became of permits of leases, for the observer. No mutex is held.
func (q *queue) noteBack(returned, void int64) {
	q.mu.Lock()
	defer q.exit()
	q.returned += returned
	q.void += void
}

// changing ends the leases of a limiter before this client changes it, and returns what ends them afterwards. forgets says
// that the change may remove records.
func (l *Limiter) changing(ctx context.Context, forgets bool) (changed func()) {
	if !forgets {
		l.endLeases()
		return l.endLeases
	}
	l.forgetLeases(ctx, true)
	return func() { l.forgetLeases(ctx, false) }
}

// endLeases ends the leases of a limiter, because this client begins to change it, or has changed it, in a way that keeps
// its records. What batches in flight have taken ahead is given back.
func (l *Limiter) endLeases() {
	for _, q := range l.leasing() {
		q.mu.Lock()
		q.changes++
		q.end(q.lease.Load())
		q.exit()
	}
}

// forgetLeases is endLeases for a change that may remove records. Later records can have the score of a lease from before,
// and hold what callers were granted. So what is unused is given back before the change, and nothing after it: what batches
// in flight have taken ahead, and leases that began during the change, either has no record or counts until that expires.
func (l *Limiter) forgetLeases(ctx context.Context, begins bool) {
	var back sync.WaitGroup
	for _, q := range l.leasing() {
		q.mu.Lock()
		q.forgets++
		if held := q.lease.Load(); held != nil {
			unused := q.detachLease(held)
			if begins {
				back.Go(func() { q.giveBack(ctx, unused, held.At) })
			} else {
				q.void += unused
			}
		}
		q.exit()
	}
	back.Wait()
}

// Leased returns how many permits this client holds ahead of demand for a limiter, whatever the options of its handles.
func (l *Limiter) Leased() (n int64) {
	for _, q := range l.leasing() {
		if held := q.lease.Load(); held != nil {
			if now, mono := l.client.times(held.Server); held.Valid(now, mono) {
				n += held.Left()
			}
		}
	}
	return n
}

// leasing returns the queues of a limiter, if the client has leases.
func (l *Limiter) leasing() []*queue {
	if !l.client.leasing.Load() {
		return nil
	}
	return l.client.registry.list(func(other *Limiter) bool { return other.Key() == l.Key() })
}

// sweepLater ends, in the background, the leases that are over, while there are any. The queue of one that is over is kept for
// as long as a lease lasts: if it is needed again, its next lease has the right size at once.
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
		d := q.limiter.settings.Lease
		now, mono := c.times(held.Server)
		ends := held.Ends(now, mono)
		if ends == 0 {
			if ends = held.Ends(now.Add(-d), mono.Add(-d)); ends == 0 {
				q.endLease(held)
				continue
			}
			q.mu.Lock()
			q.expire(held)
			q.mu.Unlock()
		}
		if ends = max(ends, time.Millisecond); after == 0 || ends < after {
			after = ends
		}
	}
	if after > 0 {
		c.sweepLater(after)
	}
}
