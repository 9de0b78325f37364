package dispatch

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Leases (WithLease): permits that batches take ahead, so that later requests need no call. A queue grants from one at a
// time, and may hold the next one, which follows it; it has none while a caller waits. Package lease says why no window of
// the interval exceeds the rate.

// maxLeases is for how many limiters a client holds leases at a time.
const maxLeases = 1 << 16

// answersInARow is how many requests the lease or the deny cache of a limiter answers before the goroutine that asked last
// yields. If many goroutines never block, one that reads a reply gets a processor only after each of them had it for 10 ms.
const answersInARow = 512

// fromLease answers a request from the lease of its limiter, if there is one that can: it returns that lease, else nil. The
// result has ResetAfter if detail is set.
func (l *Limiter) fromLease(n int64, detail bool, source *Source) (Result, *lease.Lease) {
	q := l.queue.Load()
	if q == nil {
		q = l.client.enter(l)
		q.exit()
	}
	for held := q.lease.Load(); held != nil; {
		now, mono := l.client.times(held.Server)
		left, ok := held.Take(n, now, mono)
		if !ok {
			over := held.Ended() || !held.Valid(now, mono)
			next := q.follow(held, n, over)
			if next == nil && !over && held.Refill(0, mono) {
				q.refilling.Store(true) // the call for this request takes more
			}
			held = next
			continue
		}
		if source != nil {
			*source = Source{At: held.At}
		}
		if held.Refill(left, mono) {
			q.refilling.Store(true)
			go q.refill()
		}
		if left/answersInARow != (left+n)/answersInARow {
			runtime.Gosched()
		}
		result := Result{Allowed: true, Limit: held.Rate, Remaining: held.Free + left}
		if detail {
			result.ResetAfter = sum(held.Ends(now, mono), held.Interval)
		}
		return result, held
	}
	return Result{}, nil
}

// follow returns the lease that follows held, or has followed it; nil if there is none with n permits. held ends if it is
// over.
func (q *queue) follow(held *lease.Lease, n int64, over bool) *lease.Lease {
	q.mu.Lock()
	defer q.exit()
	switch {
	case q.lease.Load() != held:
		return q.lease.Load()
	case q.next != nil && (over || q.next.Permits >= n):
		q.expire(held)
		q.begin(q.next)
		q.next = nil
		return q.lease.Load()
	case over:
		q.end()
	}
	return nil
}

// allFromLeases answers a request to several limiters from their leases, if all of them can, and fills in the sources,
// unless they are nil. Otherwise what was taken goes back to the leases. Permits of a lease that has ended meanwhile stay
// counted: its record may have been replaced by another one.
func (c *Client) allFromLeases(permits []int64, limiters []*Limiter, sources []Source) ([]Result, bool) {
	for _, l := range limiters {
		if l.settings.Lease == 0 {
			return nil, false
		}
	}
	var few [4]*lease.Lease
	results, leases := make([]Result, len(limiters)), few[:0]
	for i, l := range limiters {
		var source *Source
		if sources != nil {
			source = &sources[i]
		}
		var held *lease.Lease
		if results[i], held = l.fromLease(permits[i], true, source); held == nil {
			for j, held := range leases {
				if q := limiters[j].queue.Load(); !held.Untake(permits[j]) && q != nil {
					q.noteVoid(permits[j])
				}
			}
			return nil, false
		}
		leases = append(leases, held)
	}
	return results, true
}

// afterAllowAll takes a lease for the limiter after a call of AllowAll, which takes none, if another such call was made
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
	} else if held := q.lease.Load(); again && (held == nil || held.Left() == 0 || q.refilling.Load()) {
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

// wish returns how many permits b takes ahead. A lease that is used up gets more even if nobody has asked for a refill: a call
// that should bring one may have stalled. q.mu is held.
func (q *queue) wish(b *batch) int64 {
	d, refills, held := q.limiter.settings.Lease, q.refilling.Swap(false), q.lease.Load()
	if d == 0 || q.waiting > 0 || b.ask.Partial || q.fairShare.Redisson || q.detached > 0 ||
		(held != nil && held.Left() > 0 || b.callers == 0) && !refills || held == nil && q.client.leases.Load() >= maxLeases ||
		q.client.changes.underWay(q.limiter.Key()) {
		return 0
	}
	asked := q.joint
	q.joint = 0
	for _, g := range b.ask.Groups {
		asked = min(asked+min(g.Size, 1<<31)*g.Count, 1<<31)
	}
	dated, now := q.client.times(false) // with WithServerTime, about the time that dates grants
	var left int64
	var ends time.Duration
	if held != nil && !held.Ended() {
		q.used(held)
		left = held.Left()
		q.demand.Measure(now, left == 0)
		ends = held.Ends(dated, now)
	}
	bucket := q.bucket()
	return q.demand.Want(now, bucket, lease.Rest(dated, bucket), asked, left, ends)
}

// bucket returns how long the buckets of time last that leases end with, as config.lua has it. q.mu is held.
func (q *queue) bucket() time.Duration {
	d := q.limiter.settings.Lease
	if q.interval > 0 {
		d = min(d, max(q.interval/10, time.Millisecond).Truncate(time.Millisecond))
	}
	return d
}

// refill asks for more permits than those of the lease, unless another call has done so.
func (q *queue) refill() {
	q.mu.Lock()
	defer q.exit()
	if q.lease.Load() == nil {
		q.refilling.Store(false) // it has ended meanwhile
	} else if q.refilling.Load() {
		q.send()
	}
}

// hold stores the lease that b has brought. q.mu is held.
func (q *queue) hold(b *batch, g protocol.AcquireReply, detached bool) {
	held := &lease.Lease{
		Rate: g.Rate, Interval: g.Interval, Free: g.Free, At: g.At, Began: b.request.Began(),
		Lasts: time.Duration(g.At-g.Now) * time.Microsecond, Server: q.limiter.settings.ServerTime, Permits: g.Ahead,
	}
	if q.changes != b.before {
		q.void += g.Ahead
		return // the record is gone, or its permits count until it expires
	}
	held.Renews = lease.Renews(held.Lasts, q.bucket())
	old := q.lease.Load()
	now, mono := q.client.times(held.Server)
	switch {
	case detached && old != nil || q.next != nil || q.waiting > 0 || !held.Valid(now, mono):
		q.giveBackLater(g.Ahead, g.At)
	case old == nil:
		q.client.leases.Add(1)
		q.begin(held)
	case !old.Valid(now, mono):
		q.expire(old)
		q.begin(held)
	case old.At == held.At:
		q.used(old)
		held.Permits += old.End()
		q.begin(held)
	default:
		q.next = held // it follows
	}
}

// begin lets requests take permits of a lease. q.mu is held.
func (q *queue) begin(held *lease.Lease) {
	held.Begin()
	q.demand.Begin(time.Now())
	q.lease.Store(held)
	q.client.sweepLater(q.limiter.settings.Lease)
}

// used tells the demand how much of a lease was used. q.mu is held.
func (q *queue) used(held *lease.Lease) { q.demand.Granted(held.Used()) }

// end ends the leases of the queue. q.mu is held.
func (q *queue) end() {
	held := q.lease.Load()
	if held == nil {
		return
	}
	q.expire(held)
	for _, back := range q.detachLeases() {
		q.giveBackLater(back.n, back.at)
	}
}

// expire gives back what is unused of a lease that is over. The queue keeps the lease, and with it what it knows of the
// demand. q.mu is held.
func (q *queue) expire(held *lease.Lease) {
	if unused := q.unused(held); lease.WorthACall(unused, held.Rate, held.Interval, q.bucket()) {
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

// detachLeases removes the leases of the queue, and returns what is unused of them. q.mu is held.
func (q *queue) detachLeases() (unused [2]giveBack) {
	held, next := q.lease.Load(), q.next
	unused[0] = giveBack{q, q.unused(held), held.At, q.changes}
	if next != nil {
		unused[1] = giveBack{q, next.Permits, next.At, q.changes}
	}
	q.next = nil
	q.lease.Store(nil)
	q.refilling.Store(false) // a refill that was asked for is of this lease
	q.client.leases.Add(-1)
	return unused
}

// A giveBack is permits of a lease that are to be given back.
type giveBack struct {
	queue   *queue
	n, at   int64
	changes int64 // queue.changes when the lease ended
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
	q.toGiveBack++
	all.waiting = append(all.waiting, giveBack{q, n, at, q.changes})
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
		q.toGiveBack--
		changed := q.changes != next.changes
		if changed {
			q.void += next.n
		} else {
			q.beginGivingBack()
		}
		q.exit()
		if !changed {
			q.giveBack(next.n, next.at)
		}
	}
}

// beginGivingBack is called before giveBack. q.mu is held.
func (q *queue) beginGivingBack() {
	if q.givingBack++; q.givingBack == 1 {
		q.givenBack = make(chan struct{})
	}
}

// giveBack gives back permits of a lease. If that fails they count until an interval after the end of the lease. No mutex
// is held.
func (q *queue) giveBack(n, at int64) {
	returned, _ := q.limiter.Undo(context.Background(), n, Source{At: at})
	q.mu.Lock()
	defer q.exit()
	q.returned += returned
	q.void += n - returned
	if q.givingBack--; q.givingBack == 0 {
		close(q.givenBack)
	}
}

// noteVoid notes, for the observer, permits that will not be given back. No mutex is held.
func (q *queue) noteVoid(n int64) {
	q.mu.Lock()
	defer q.exit()
	q.void += n
}

// changing begins a change of a limiter by this client, and returns what ends it, which is to be called in any case, with the
// error of the call. That then calls changed. A change may remove records, and afterwards one with the score of an earlier
// lease may hold permits granted to callers. So the leases of the limiter end, what is unused of them is given back before the
// change, and none is taken until it has ended. A batch that was sent before the change may bring a lease after it. That lease
// is not used: its record is gone, or counts until it expires.
func (l *Limiter) changing(ctx context.Context, changed func(error)) (end func(error)) {
	if ctx.Err() != nil {
		return changed // nothing is sent
	}
	l.client.changes.begin(l.Key())
	var givenBack []chan struct{}
	for _, q := range l.leasing() {
		q.mu.Lock()
		q.changes++
		if q.lease.Load() != nil {
			for _, unused := range q.detachLeases() {
				if unused.n > 0 {
					q.beginGivingBack()
					go q.giveBack(unused.n, unused.at)
				}
			}
		}
		if q.givingBack > 0 {
			givenBack = append(givenBack, q.givenBack)
		}
		q.exit()
	}
	for _, done := range givenBack {
		select {
		case <-done:
		case <-ctx.Done(): // so the change is not sent
		}
	}
	return func(err error) {
		l.client.changes.end(l.Key())
		changed(err)
	}
}

// changes counts the changes under way of each limiter.
type changes struct {
	mu    sync.Mutex // guards the field below
	count map[string]int
}

func (c *changes) begin(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count == nil {
		c.count = map[string]int{}
	}
	c.count[key]++
}

func (c *changes) end(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count[key]--; c.count[key] == 0 {
		delete(c.count, key)
	}
}

func (c *changes) underWay(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[key] > 0
}

// Leased returns how many permits this client holds ahead of demand for a limiter, whatever the options of its handles.
func (l *Limiter) Leased() (n int64) {
	for _, q := range l.leasing() {
		q.mu.Lock()
		held, next := q.lease.Load(), q.next
		q.exit()
		if held == nil {
			continue
		}
		now, mono := l.client.times(held.Server)
		if held.Valid(now, mono) {
			n += held.Left()
		}
		if next != nil && next.Valid(now, mono) {
			n += next.Permits
		}
	}
	return n
}

// leasing returns the queues of a limiter that can have leases.
func (l *Limiter) leasing() []*queue {
	if !l.client.leasing.Load() {
		return nil
	}
	return l.client.registry.list(func(other *Limiter) bool { return other.settings.Lease > 0 && other.Key() == l.Key() })
}

// A sweeper is the timer of sweep.
type sweeper struct {
	mu    sync.Mutex // guards the fields below
	timer *time.Timer
	at    time.Time // when it fires; zero: it is not set
}

// sweepLater calls sweep after some time, or earlier.
func (c *Client) sweepLater(after time.Duration) {
	s, at := &c.sweeper, time.Now().Add(after)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.at.IsZero() && !at.Before(s.at):
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(after, c.sweep)
	default:
		s.timer.Reset(after)
	}
	s.at = at
}

// sweep ends the leases that are over, and calls itself again while there are any. The queue of one that is over is kept
// for as long as a lease lasts: if it is needed again, its next lease has the right size at once.
func (c *Client) sweep() {
	c.sweeper.mu.Lock()
	c.sweeper.at = time.Time{}
	c.sweeper.mu.Unlock()
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
			if next := q.follow(held, 0, false); next != nil {
				held, ends = next, next.Ends(now, mono)
			}
		}
		if ends == 0 {
			if ends = held.Ends(now.Add(-d), mono.Add(-d)); ends == 0 {
				q.follow(held, 0, true)
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
