package dispatch

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Leases (WithLease): permits that batches take ahead, so that later requests need no call. The ledger of a queue holds them.
// This file asks for them, gives them back, and ends them when their time is over. Package lease says why no window of the
// interval exceeds the rate.

// answersInARow is how many requests the lease or the deny cache of a limiter answers before the goroutine that asked last
// yields. If many goroutines never block, one that reads a reply gets a processor only after each of them had it for 10 ms.
const answersInARow = 512

// A loan is permits that were taken from a lease; without a lease it is none.
type loan struct {
	ledger *lease.Ledger
	lease  *lease.Lease
	n      int64
}

// fromLease answers a request from the lease of its limiter, if there is one that can: it returns that loan, else none. The
// result has NextAfter and ResetAfter if detail is set.
func (l *Limiter) fromLease(n int64, detail bool, source *Source) (Result, loan) {
	q := l.queue.Load()
	if q == nil {
		q = l.client.enter(l)
		q.exit()
	}
	if !q.ledger.Holds() {
		return Result{}, loan{}
	}
	now := l.client.times(l.settings.ServerTime)
	held, left, refill := q.ledger.Take(n, now)
	if held == nil {
		return Result{}, loan{}
	}
	if source != nil {
		*source = Source{At: held.At}
	}
	if refill {
		go q.refill()
	}
	if left/answersInARow != (left+n)/answersInARow {
		runtime.Gosched()
	}
	result := Result{Allowed: true, Limit: held.Rate, Remaining: held.Free + left}
	if detail {
		result.ResetAfter = sum(held.Ends(now.Clock, now.Mono), held.Interval)
		result.NextAfter = result.ResetAfter
	}
	return result, loan{q.ledger, held, n}
}

// allFromLeases answers a request to several limiters from their leases, if all of them can, and fills in the sources,
// unless they are nil. Otherwise what was taken goes back to the leases.
func (c *Client) allFromLeases(permits []int64, limiters []*Limiter, sources []Source) ([]Result, bool) {
	for _, l := range limiters {
		if l.settings.Lease == 0 {
			return nil, false
		}
	}
	var few [4]loan
	results, loans := make([]Result, len(limiters)), few[:0]
	for i, l := range limiters {
		var source *Source
		if sources != nil {
			source = &sources[i]
		}
		var from loan
		if results[i], from = l.fromLease(permits[i], true, source); from.lease == nil {
			for _, taken := range loans {
				taken.ledger.Untake(taken.lease, taken.n)
			}
			return nil, false
		}
		loans = append(loans, from)
	}
	return results, true
}

// afterAllowAll takes a lease for the limiter after a call of AllowAll, which takes none, if another such call was made
// shortly before.
func (l *Limiter) afterAllowAll(call Call) {
	if l.settings.Lease == 0 {
		return
	}
	q := l.client.enter(l)
	defer q.exit()
	if q.ledger.Together(call.Permits, call.Denied > 0, time.Now()) {
		q.send()
	}
}

// times returns the time by the clock that dates grants, and by the monotonic one. The server's clock is not known.
func (c *Client) times(server bool) lease.Moment {
	now := time.Now()
	if c.ownClock && !server {
		return lease.Moment{Clock: c.clock(), Mono: now}
	}
	return lease.Moment{Clock: now, Mono: now}
}

// wish returns how many permits b takes ahead. q.mu is held.
func (q *queue) wish(b *batch) int64 {
	if q.ledger == nil {
		return 0
	}
	may := !b.ask.Partial && !q.fairShare.Redisson && q.detached == 0 && !q.client.changes.underWay(q.limiter.Key())
	var asked int64
	for _, g := range b.ask.Groups {
		asked = min(asked+min(g.Size, 1<<31)*g.Count, 1<<31)
	}
	// With WithServerTime, this is about the time that dates grants.
	return q.ledger.Wish(lease.Draft{Callers: b.callers, Asked: asked, May: may}, q.client.times(false))
}

// refill asks for more permits than those of the lease, unless another call has done so.
func (q *queue) refill() {
	q.mu.Lock()
	defer q.exit()
	if q.ledger.MustRefill() {
		q.send()
	}
}

// hold stores the lease that b has brought. q.mu is held.
func (q *queue) hold(b *batch, g protocol.AcquireReply, detached bool) {
	q.ledger.Brought(b.ticket, &lease.Lease{
		Rate: g.Rate, Interval: g.Interval, Free: g.Free, At: g.At, Began: b.request.Began(),
		Lasts: time.Duration(g.At-g.Now) * time.Microsecond, Permits: g.Ahead,
	}, detached, q.client.times(q.limiter.settings.ServerTime))
	q.client.sweepLater(q.limiter.settings.Lease)
}

// A giveBack is permits of a lease that are to be given back.
type giveBack struct {
	queue *queue
	back  lease.Back
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

// giveBackLater gives back permits in the background. It reports false, and does not, if very many wait.
func (q *queue) giveBackLater(back lease.Back) bool {
	all := &q.client.giveBacks
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.waiting) == lease.MaxLeases {
		return false
	}
	all.waiting = append(all.waiting, giveBack{q, back})
	if all.workers < mostGivingBack {
		all.workers++
		go all.work()
	}
	return true
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
		if q := next.queue; q.ledger.Start(next.back) {
			q.giveBack(next.back)
		} else {
			q.mu.Lock()
			q.exit()
		}
	}
}

// giveBack gives back permits of a lease, after Ledger.Start or Ledger.Change.
func (q *queue) giveBack(back lease.Back) {
	returned, _ := q.limiter.Undo(context.Background(), back.Permits, Source{At: back.At})
	q.ledger.Done(back, returned)
	q.mu.Lock()
	q.exit()
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
	var givenBack []<-chan struct{}
	for _, q := range l.leasing() {
		unused, done := q.ledger.Change()
		for _, back := range unused {
			go q.giveBack(back)
		}
		if done != nil {
			givenBack = append(givenBack, done)
		}
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
		n += q.ledger.Held(l.client.times(q.limiter.settings.ServerTime))
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

// sweep ends the leases that are over, and calls itself again while there are any.
func (c *Client) sweep() {
	c.sweeper.mu.Lock()
	c.sweeper.at = time.Time{}
	c.sweeper.mu.Unlock()
	var after time.Duration
	for _, q := range c.registry.list(func(l *Limiter) bool { return l.settings.Lease > 0 }) {
		if !q.ledger.Holds() {
			continue
		}
		ends := q.ledger.Sweep(c.times(q.limiter.settings.ServerTime))
		if ends == 0 {
			q.mu.Lock()
			q.exit()
		} else if after == 0 || ends < after {
			after = ends
		}
	}
	if after > 0 {
		c.sweepLater(after)
	}
}
