package dispatch

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// The queue of one limiter: waiting callers in order (first in, first out), one timer, and a fair share for other
// clients. This file does not know what a call contains.

// A queue holds all current callers of one limiter in this process: those that wait, those that ask once, and the
// batches in flight. Limiters of a client with the same name and settings share one queue.
type queue struct {
	client  *Client
	limiter *Limiter      // one of those that share the queue
	target  queueTarget   // that limiter
	ledger  *lease.Ledger // nil without WithLease

	mu                sync.Mutex         // guards the fields below
	first, last       *request           // waiting callers, in order, those in flight included
	waiting           int                // number of them
	trying            []*request         // callers that do not wait and are not in flight
	inFlight          *batch             // the next batch is sent once this one is complete or detached
	batches           int64              // number of batches so far
	detached          int                // stalled batches in flight, which the next one does not wait for
	alone             int                // batches in flight beside these, each for one caller
	ask               bool               // a caller needs a call, and the batch in flight does not carry it
	linger            int                // send the next batch once this many callers queue; 0: the queue does not linger
	rebuild           bool               // the next batch finishes a rebuild of the free permits
	grants            protocol.RecentIDs // of the latest grants, if the limiter has a granularity
	timer             *time.Timer
	polls             int       // polls in a row that slept to their end, at most 4
	polling           bool      // the timer ends a poll
	asksAt            time.Time // when the timer fires, by the client's clock
	walkedAt          time.Time // when hurry last walked through the queue
	walkDue           bool      // hurry does so again at the end of walkPause
	fairShare         fairshare.Share
	rate              int64         // in the last reply; until then the highest number
	mayPass           int64         // the process may serve requests up to this size though the first one waits; 0: none
	redissonCheckedAt time.Time     // when the server was last asked whether Redisson uses it
	yieldUntil        time.Time     // until then this process takes no more than its fair share, by the client's clock
	took              time.Duration // smoothed time of a call; 0: no reply yet
	parked            bool          // in registry.spare
	dropped           bool          // no longer in the registry: a caller must enter again
}

func newQueue(l *Limiter) *queue {
	q := &queue{client: l.client, limiter: l, target: queueTarget{Limiter: l}, rate: math.MaxInt64}
	if d := l.settings.Lease; d > 0 {
		q.ledger = lease.NewLedger(d, l.settings.ServerTime, &q.client.leases, q.giveBackLater)
	}
	return q
}

// idle reports whether no caller and no batch uses the queue. q.mu is held.
func (q *queue) idle() bool {
	return q.first == nil && len(q.trying) == 0 && q.inFlight == nil && q.detached == 0 && q.alone == 0 && q.linger == 0 &&
		q.ledger.Idle()
}

// wake lets all waiting callers of a limiter ask again and clears its cached refusal, because the limiter has just
// changed. The name is that of the configuration key; "" means all limiters.
func (c *Client) wake(name string) {
	c.denyCache.Forget(name)
	c.wakeChosen(func(l *Limiter) bool { return name == "" || l.Key() == name })
}

// changed is called when a call of this process that changes the limiter has ended with err, also if its caller is gone. It
// clears the cached refusal of l. If the call succeeded, it lets the waiting callers ask again.
func (l *Limiter) changed(err error) {
	if err == nil {
		l.client.wake(l.Key())
	} else {
		l.client.denyCache.Forget(l.Key())
	}
}

// wakeChosen lets all waiting callers of the chosen limiters ask again at once, without a head start for other clients.
func (c *Client) wakeChosen(chosen func(*Limiter) bool) {
	if c.waiting.Load() == 0 {
		return // who waits from now on asks first
	}
	for _, q := range c.registry.list(chosen) {
		q.mu.Lock()
		if q.waiting > 0 {
			q.yieldUntil = time.Time{}
			q.ask = true
			q.send()
		}
		q.exit()
	}
}

// Serve answers a request: from a lease, which it reports, from the deny cache, or by a call that it shares with other
// callers.
func (l *Limiter) Serve(ctx context.Context, a *Ask) (result Result, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return Result{}, false, err
	}
	if l.settings.Lease > 0 {
		if result, from := l.fromLease(a.N, a.Detail, a.Source); from.lease != nil {
			return result, true, nil
		}
	}
	c := l.client
	cached := !a.Waits && l.settings.DenyCache > 0
	if cached {
		now := c.clock()
		if known, hits := c.denyCache.Find(l.Key(), a.N, now, l.enforced); known != nil {
			if hits%answersInARow == 0 {
				runtime.Gosched()
			}
			result := Result{
				Limit: known.Limit, Remaining: known.Left, RetryAfter: known.Free.Sub(now), NextAfter: known.Next.Sub(now),
				ResetAfter: known.Reset.Sub(now),
			}
			if result.NextAfter <= 0 { // a permit has returned, and it is not known when the one after it does
				result.NextAfter = result.RetryAfter
			}
			return result, false, nil
		}
	}
	r := c.newRequest(a)
	r.cached = cached
	if r.end = a.Until; a.Waits {
		if deadline, ok := ctx.Deadline(); ok {
			if end := c.clock().Add(time.Until(deadline)); r.end.IsZero() || end.Before(r.end) {
				r.end = end
			}
		}
	}
	q := c.enter(l)
	q.join(r)
	q.exit()
	if result, err = q.await(ctx, r); err != nil {
		err = c.forCaller(ctx, err)
	}
	return result, false, err
}

// forCaller returns the error of a request for its caller, whose context may have ended meanwhile.
func (c *Client) forCaller(ctx context.Context, err error) error {
	if errors.Is(err, script.ErrUnavailable) {
		return script.Failure(ctx, c.exchange.Timeout(), err)
	}
	return err
}

// UpTo takes as many permits as are free now, at most n, and returns how many it took. While callers wait, none are free.
// source is filled in with a grant, unless it is nil.
func (l *Limiter) UpTo(ctx context.Context, n int64, source *Source) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	q := l.client.enter(l)
	if q.waiting > 0 {
		q.exit()
		return 0, nil
	}
	var got int64
	r := l.client.newRequest(&Ask{N: n, Got: &got, Source: source})
	q.sendAlone(r)
	q.exit()
	if _, err := q.await(ctx, r); err != nil {
		return 0, l.client.forCaller(ctx, err)
	}
	return got, nil
}

// await returns the result of a request. It blocks until that is settled, its timeout is over (the zero Result) or ctx
// ends.
func (q *queue) await(ctx context.Context, r *request) (Result, error) {
	c := q.client
	var over <-chan time.Time
	if !r.Until.IsZero() {
		timer := time.NewTimer(r.Until.Sub(c.clock()))
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-r.done:
			result, err := r.result, r.err
			c.recycle(r)
			return result, err
		case <-ctx.Done():
			return q.abandon(r, ctx.Err())
		case <-over:
			if q.giveUp(r) {
				return Result{}, nil
			}
		}
	}
}

// join adds r and sends a batch if r needs a call. Behind other waiting callers it needs none, unless all of these are
// in stalled batches, r has a timeout (the reply tells whether its permits are free in time), asks for more than the
// rate (which is an error at once), or may pass the first one (mayPass). If r ends while permits are left to others, the
// queue asks earlier. q.mu is held.
func (q *queue) join(r *request) {
	if r.Waits {
		q.ledger.Bar()
		q.client.waiting.Add(1)
		r.prev, q.last = q.last, r
		if r.prev == nil {
			q.first = r
		} else {
			r.prev.next = r
		}
		q.waiting++
	} else {
		q.trying = append(q.trying, r)
	}
	lingered := q.linger > 0 && len(q.trying)+q.waiting >= q.linger
	if lingered {
		q.linger = 0
		q.timer.Stop()
	}
	if lingered || !r.Waits || q.inFlight == nil && q.waiter() == r || !r.Until.IsZero() || r.N > q.rate ||
		r.N <= q.mayPass {
		q.ask = true
		q.send()
	} else if !r.end.IsZero() && lastCall(q.first.free, r.end, q.took).Before(q.asksAt) {
		q.hurry()
	}
}

// leave removes a waiting caller from the queue. q.mu is held.
func (q *queue) leave(r *request) {
	if r.prev == nil {
		q.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		q.last = r.prev
	} else {
		r.next.prev = r.prev
	}
	q.waiting--
	q.ledger.Unbar()
	q.client.waiting.Add(-1)
}

// abandon ends r because its caller's context ended, unless r is settled. If r is in flight, the error wraps
// ErrOutcomeUnknown, too; if its permits can be given back (source), that happens in the background after the reply.
func (q *queue) abandon(r *request, cause error) (Result, error) {
	q.mu.Lock()
	defer q.exit()
	if r.state == requestSettled {
		return r.result, r.err
	}
	if r.state.inFlight() && r.Source != nil {
		go q.limiter.giveBack(r)
		return Result{}, script.Unknown(cause)
	}
	q.drop(r)
	if r.state == requestAbandoned {
		cause = script.Unknown(cause)
	}
	return Result{}, cause
}

// giveUp ends r because its timeout is over, and reports whether it did. A request that is in flight stays: the reply
// comes soon, and settles it. So does one whose last call is due, if the timer of the queue is late.
func (q *queue) giveUp(r *request) bool {
	q.mu.Lock()
	defer q.exit()
	r.last = true
	if r.state != requestSettled && q.inFlight == nil {
		for due := range q.lastCalls(r.end) {
			if due == r {
				q.send()
				break
			}
		}
	}
	if r.state == requestSettled || r.state.inFlight() {
		return false
	}
	q.drop(r)
	return true
}

// drop removes r without a result. The waiting caller behind it may need fewer permits, so a batch is sent if r was the
// first one, or the first one not in flight. q.mu is held.
func (q *queue) drop(r *request) {
	ahead := r.Waits && (r.prev == nil || !r.state.inFlight() && r.prev.state.inFlight() && q.waiter() == r)
	if r.state.inFlight() {
		r.state.to(requestAbandoned)
		r.batch.present.Add(-1)
	} else {
		r.state.to(requestGone)
	}
	if !r.Waits {
		return
	}
	q.leave(r)
	if q.waiting == 0 {
		q.stop()
	} else if ahead {
		q.ask = true
		q.send()
	} else {
		q.hurry()
	}
}

// waiter returns the first waiting caller that is not in flight; nil if there is none. q.mu is held.
func (q *queue) waiter() *request {
	r := q.first
	for r != nil && r.state.inFlight() {
		r = r.next
	}
	return r
}

// plan decides, when b is complete, whether the next batch is sent at once, after a linger, or when the first waiting
// caller can be served. q.mu is held.
func (q *queue) plan(b *batch, g protocol.AcquireReply) {
	if q.first == nil {
		q.stop()
	}
	next, took := q.waiter(), time.Since(b.call.Started())
	urgent := q.urgent(next)
	if q.took == 0 {
		q.took = took
	}
	q.took += (took - q.took) / 8
	switch {
	case q.inFlight != nil || q.linger > 0:
	case g.Rate > 0 && !g.Local() && took >= q.client.tuning.Linger && len(b.answered) > 0 && (urgent || next == nil && len(b.answered) > 1):
		q.linger = len(b.answered) + len(q.trying) + q.waiting
		q.set(took / 10)
	case urgent:
		q.send()
	case next != nil && next.lastBatch != b.number:
		q.rest()
	case next != nil && g.Local():
		q.set(min(max(next.free.Sub(q.client.clock()), 0), g.Retry))
	case next != nil:
		q.fairShare.Saw(q.client.identity, g.Shared())
		q.sleep(next, g, b.beaten)
		q.checkForRedisson()
	}
}

// urgent reports whether a call is needed at once; next is the result of waiter. q.mu is held.
func (q *queue) urgent(next *request) bool {
	return q.ask || q.ledger.Refilling() || len(q.trying) > 0 || next != nil && next.state == requestQueued
}

// LingerThreshold is how long a batch takes before the queue lingers after it, for up to a tenth of its time. Callers
// that have just been answered mostly ask again at once; without the linger they would miss the next batch and wait for
// two.
const LingerThreshold = 2 * time.Millisecond

// stop ends the sleep of a queue without waiting callers. A linger goes on. q.mu is held.
func (q *queue) stop() {
	q.polls = 0
	if q.timer != nil && q.linger == 0 {
		q.timer.Stop()
	}
}

// A long sleep is cut into polls, because changes made by other processes, such as a raised rate or released permits,
// send no signal. Polls double with each one that slept to its end. A batch that is sent meanwhile for a caller that
// does not wait asks for the waiting callers, too, and does not lengthen the polls.
const (
	shortestPoll = time.Second
	longestPoll  = 15 * time.Second

	// A poll shortly before the permits return would be in vain: a sleep that ends so soon after it has none.
	pollSlack = shortestPoll / 8
)

// sleep sets the timer to when next can be served according to g, or to when the fair share of this process allows it. beaten:
// another process took the permits of next. q.mu is held.
func (q *queue) sleep(next *request, g protocol.AcquireReply, beaten bool) {
	now, since := q.client.clock(), q.since(&g)
	q.yieldUntil = q.fairShare.Divide(g.Shared(), since, next.free.Sub(since), next.N)
	if q.pollWithin(next.free.Sub(now)) {
		q.yieldUntil = time.Time{}
	} else {
		q.polls = 0
		next.together = since.Add(g.Together).Sub(next.free)
		at := q.turn(next, now)
		if beaten {
			at = q.gather(next, at)
		}
		q.set(at.Sub(now))
	}
	q.client.watch()
}

// gather returns when to ask for permits of r and those that return shortly afterwards: at the time given, or later. If several
// callers wait, here or in other processes, one call then takes them all. q.mu is held.
func (q *queue) gather(r *request, at time.Time) time.Time {
	if together := r.free.Add(r.together); at.Before(together) {
		return q.soonest(together)
	}
	return at
}

// turn returns when this process may ask for next: once its permits are free, and before yieldUntil only as far as the
// fair share has room, or if a caller leaves before that. q.mu is held.
func (q *queue) turn(next *request, now time.Time) time.Time {
	at := now
	if next.free.After(now) {
		at = next.free
	}
	if at.Before(q.yieldUntil) {
		at = q.soonest(q.fairShare.Ready(at, q.yieldUntil, next.N))
	}
	return at
}

// pollWithin sets the timer to the next poll, less up to a tenth of the time until then at random, and reports whether the
// queue polls before so long a wait is over. q.mu is held.
func (q *queue) pollWithin(wait time.Duration) bool {
	longest := min(shortestPoll<<q.polls, longestPoll)
	if wait <= longest+pollSlack {
		return false
	}
	q.set(longest - rand.N(longest/10))
	q.polling = true
	return true
}

// room returns how many permits the waiting callers may ask for now in addition to those of the first one; below 0,
// none of them may ask, but those up to the given one, if there is one. q.mu is held.
func (q *queue) room() (permits int64, upTo *request) {
	if next, now := q.waiter(), q.client.clock(); next != nil && now.Before(q.yieldUntil) {
		return q.fairShare.Room(now, next.N), q.lastDue(now)
	}
	return math.MaxInt64, nil
}

// rest sets the timer to when the queue may ask for its first caller, which the last batch left out. q.mu is held.
func (q *queue) rest() {
	now := q.client.clock()
	if wait := q.turn(q.waiter(), now).Sub(now); !q.pollWithin(wait) {
		q.set(wait)
	}
}

// set makes the timer call onTimer after the wait. q.mu is held.
func (q *queue) set(wait time.Duration) {
	q.polling = false
	q.asksAt = q.client.clock().Add(wait)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, q.onTimer)
	} else {
		q.timer.Reset(wait)
	}
}

// A pool is a Redis client that shows how many connections it has: a closed one has none.
type pool interface{ PoolStats() *redis.PoolStats }

// watch checks every 100 ms, while callers wait, whether the Redis client was closed, and wakes them then. Otherwise
// they would notice it only when their timers fire. A client without connections may also have lost them all, so a PING
// decides.
func (c *Client) watch() {
	const often = 100 * time.Millisecond
	connections, known := c.Topology().Redis().(pool)
	if !known || !c.watching.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(often, func() {
		c.watching.Store(false)
		if c.waiting.Load() == 0 {
			return
		}
		if connections.PoolStats().TotalConns == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), c.exchange.Timeout())
			defer cancel()
			if errors.Is(c.Topology().Redis().Process(ctx, redis.NewStatusCmd(ctx, "ping")), redis.ErrClosed) {
				c.wake("")
			}
		}
		c.watch()
	})
}

// onTimer sends the next batch.
func (q *queue) onTimer() {
	q.mu.Lock()
	defer q.exit()
	if q.linger > 0 {
		q.linger = 0
		q.send()
		return
	}
	if q.waiting == 0 {
		return
	}
	if q.polling {
		q.polls = min(q.polls+1, 4)
		q.yieldUntil = time.Time{} // which may be far away if the clock has gone back
	}
	if next, now := q.waiter(), q.client.clock(); next != nil && q.waiting > 1 && !now.Before(next.free) {
		if at := q.gather(next, now); now.Before(at) {
			q.set(at.Sub(now))
			return
		}
	}
	q.ask = true
	q.send()
}
