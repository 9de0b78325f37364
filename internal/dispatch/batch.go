package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// batch.go makes a call of each batch of a queue, and tells all parts of the client what its reply means for them. Package
// schedule decides which callers a batch carries, and what the reply means for each of them.

// An Ask holds the parameters of one caller's request.
type Ask struct {
	N      int64     // permits
	Detail bool      // the result has NextAfter, ResetAfter, and RetryAfter even if the caller does not wait
	Waits  bool      // the request stays queued until it is granted
	Until  time.Time // the end of the caller's timeout, by the client's clock; zero: none
	Source *Source   // filled in with a grant; nil: not needed
}

// A Source tells where granted permits came from, so that they can be given back.
type Source struct {
	Local bool  // granted by this process, not by Redis
	At    int64 // score of the record, or when the process granted, µs
}

// A request is an Ask under way. It is guarded by queue.mu until done receives; from then on it belongs to the caller.
type request struct {
	schedule.Request
	ctx    context.Context // of the caller
	done   chan struct{}   // capacity 1: it receives once, when the request is settled
	source *Source         // filled in with a grant; nil: not needed
}

// newRequest returns a request for a. The pool belongs to the client and is not global: a channel belongs to the
// synctest bubble of one test, as a client does.
func (c *Client) newRequest(ctx context.Context, a *Ask, kind schedule.Kind) *request {
	r, ok := c.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.Request = schedule.Request{N: a.N, Kind: kind, Detail: a.Detail, Next: a.Detail, Until: a.Until, End: a.Until, Owner: r}
	r.ctx, r.source = ctx, a.Source
	return r
}

// recycle returns r to the pool. Its caller must have received from done.
func (c *Client) recycle(r *request) {
	*r = request{done: r.done}
	c.requests.Put(r)
}

// A flight is what the batches of queues and sets have in common.
type flight struct {
	call    exchange.Call
	present atomic.Int32 // callers that have not left
}

// Cancelled reports whether all callers have left, so that no permits are to be taken for them.
func (f *flight) Cancelled() bool { return f.present.Load() == 0 }

// A batch is a schedule.Batch with its call.
type batch struct {
	schedule.Batch // guarded by queue.mu; what it asks does not change once it is sent
	flight
	acquireBody
	queue   *queue
	target  [1]exchange.Target // of the call
	denials int64              // denyCache.Changes when it was sent
	ticket  lease.Ticket       // for the lease that it brings
}

// batches is the pool of batches. recycle returns one.
var batches = sync.Pool{New: func() any {
	b := new(batch)
	b.Owner, b.ask = b, &b.Ask
	return b
}}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *batch) recycle() {
	b.Batch.Reset()
	b.call = b.call.Emptied()
	b.queue, b.limiter, b.target[0], b.reply = nil, nil, nil, protocol.AcquireReply{}
	batches.Put(b)
}

// next returns the next batch of the queue; nil if there is nothing to ask.
func (q *queue) next(m schedule.Moment) *batch {
	b := batches.Get().(*batch)
	b.queue, b.limiter, b.target[0] = q, q.limiter, &q.target
	b.Ask.Rebuild = q.rebuild
	b.Ask.Check, b.free = q.limiter.unchecked()
	b.denials, b.ticket = q.client.denyCache.Changes(), q.ledger.Ticket()
	if !q.schedule.Fill(m, &b.Batch, q.wish) {
		b.recycle()
		return nil
	}
	b.call.Begin(q.client.exchange, b, b, b.target[:])
	b.request.Next(q.grants)
	b.present.Store(int32(max(b.Requests(), 1))) // without requests, the queue wants it
	return b
}

// Stalled lets the queue send its next batch.
func (b *batch) Stalled() { b.queue.stalled(b) }

// Enforce sets the limiter's own rate in the place of another one. If no attempt has had an effect, b may bring a lease
// afterwards.
func (b *batch) Enforce(ctx context.Context, a *script.Attempts) error {
	err := b.acquireBody.Enforce(ctx, a)
	if err == nil && !a.MaybeExecuted() {
		b.queue.renew(b)
	}
	return err
}

// renew lets b bring a lease, after its call has changed the rate itself.
func (q *queue) renew(b *batch) {
	ticket := q.ledger.Ticket()
	if q.client.lender.changes(q.limiter.Key()) {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b.ticket = ticket
}

// Done completes b. If nothing uses it any more, it is recycled.
func (b *batch) Done(o exchange.Outcome) {
	var g *protocol.AcquireReply
	if o.Err == nil {
		g = &b.reply
		b.limiter.learn(g.Rate, g.Interval)
	} else if decided, known := b.decideLocally(o); known {
		g = &decided
	}
	b.complete(g, o)
	if o.Unused {
		b.recycle()
	}
}

// complete ends b with a reply of Redis or of the process; nil if there is none. It settles the callers and tells the observer.
func (b *batch) complete(g *protocol.AcquireReply, o exchange.Outcome) {
	info := b.queue.settle(b, g, o)
	if observe := b.queue.client.config.Observe; observe != nil {
		observe(info)
	}
	for _, r := range b.Settled {
		r.Owner.(*request).done <- struct{}{}
	}
}

// settle settles the callers of b, keeps what the reply says about the limiter, and lets the queue send its next batch.
func (q *queue) settle(b *batch, g *protocol.AcquireReply, o exchange.Outcome) Call {
	q.mu.Lock()
	defer q.exit()
	m := q.client.now()
	info := Call{Limiter: q.limiter.name, Latency: m.Mono.Sub(b.call.Started()), Attempts: b.call.Attempts(), Err: o.Err}
	info.Returned, info.Void = q.ledger.Tell()
	var f schedule.Facts
	if g == nil {
		f = q.fail(m, b, o)
	} else {
		info.Repaired, info.RateMismatch = g.Notes.Repaired(), g.Notes.Has(protocol.RateMismatch)
		info.Fallback, info.Leased = g.Local(), g.Ahead
		if !g.Local() {
			q.saw(m, b, g)
		}
		f = q.schedule.Settle(m, &b.Batch, g)
		q.keep(m, b, g, &f)
		if f.Refused {
			q.schedule.Reserve(m, &b.Batch, g.Local())
		}
	}
	for _, r := range b.Settled {
		q.settled(r)
	}
	if f.Sleeps {
		q.client.watch()
		q.checkForRedisson()
	}
	info.Callers, info.Granted, info.Denied, info.Waiting = b.Requests()+f.Behind, f.Granted, f.Denied, q.schedule.Waiting()
	info.Permits, info.Unclaimed = f.Own, f.Unclaimed
	if q.limiter.settings.DenyCache > 0 {
		info.DenyCacheHits = q.client.denyCache.Hits(q.limiter.Key())
	}
	return info
}

// fail ends b with an error. If Redis hangs, the requests that had to wait for b fail, too.
func (q *queue) fail(m schedule.Moment, b *batch, o exchange.Outcome) schedule.Facts {
	var behind error
	if o.Silent {
		behind = o.Cause
	}
	return q.schedule.Fail(m, &b.Batch, o.Err, behind)
}

// saw keeps what a reply of Redis says about the limiter, and the lease that it brings.
func (q *queue) saw(m schedule.Moment, b *batch, g *protocol.AcquireReply) {
	q.rebuild = g.Notes.Has(protocol.RebuildPending)
	q.ledger.Saw(g.Interval)
	if g.Ahead > 0 {
		q.hold(b, g)
	} else if b.Requests() == 0 {
		q.ledger.Refused(m.Mono) // a call for a lease alone was in vain
	}
	q.limiter.saw(g.Rate, g.Interval, g.Free, g.Notes, b.Ask.Check)
}

// keep keeps what became of the callers of b: for the deny cache, for the next lease, and for retries that search records.
func (q *queue) keep(m schedule.Moment, b *batch, g *protocol.AcquireReply, f *schedule.Facts) {
	if f.Refused {
		q.ledger.Refused(m.Mono)
		for _, r := range b.Settled {
			q.remember(m, b, r, g)
		}
	}
	if !b.Ask.UpTo {
		q.ledger.Granted(f.Own)
	}
	if !g.Local() && f.Own > 0 && q.limiter.settings.Bucket() > 0 {
		q.grants.Add(b.request.ID())
	}
}

// remember stores the refusal of a caller that does not wait in the deny cache. It stores nothing if the permits are free but
// reserved for waiting callers, which may leave, if the process decided locally, or if another rate than the enforced one is in
// force.
func (q *queue) remember(m schedule.Moment, b *batch, r *schedule.Request, g *protocol.AcquireReply) {
	s, o := &q.limiter.settings, &r.Outcome
	if s.DenyCache == 0 || r.Kind != schedule.Try || o.Allowed || o.Err != nil || r.N <= g.Free || g.Local() ||
		s.Enforced && g.Notes.Has(protocol.RateMismatch) {
		return
	}
	since := q.schedule.Since(m, g)
	q.client.denyCache.Add(s.DenyCache, q.limiter.Key(), denycache.Refusal{
		N: r.N, Limit: g.Rate, Left: g.Free, Interval: g.Interval, Enforced: q.limiter.enforced,
		Free: since.Add(o.RetryAfter), Next: since.Add(o.NextAfter), Reset: since.Add(o.ResetAfter),
	}, m.Clock, b.denials)
}

// settled is called for each request that a batch has settled.
func (q *queue) settled(r *schedule.Request) {
	if r.Kind == schedule.Wait {
		q.ledger.Unbar()
		q.client.waiting.Add(-1)
	}
	if source := r.Owner.(*request).source; source != nil && r.Outcome.Allowed {
		*source = Source{r.Outcome.Local, r.Outcome.At}
	}
}
