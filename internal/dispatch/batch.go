package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// batch.go makes a call of each batch of a queue, and tells all parts of the client what its reply
// means for them. Package schedule decides which callers a batch carries, and what the reply means
// for each of them.

// An Ask holds the parameters of one caller's request.
type Ask struct {
	N int64 // permits; of a set, they are an argument of ServeAll
	// the result has NextAfter, ResetAfter, and RetryAfter even if the caller does not wait
	Detail  bool
	Fresh   bool      // the deny cache does not answer
	Waits   bool      // the request stays queued until it is granted
	Until   time.Time // the end of the caller's timeout, by the client's clock; zero: none
	Sources []Source  // of the limiters, filled in with a grant; nil: not needed
	Taken   int64     // filled in, if a request that waits may take instalments: permits that it took
}

// A Source tells where granted permits came from, so that they can be given back.
type Source struct {
	Local bool  // granted by this process, not by Redis
	At    int64 // score of the record, or when the process granted, µs
}

// A request is an Ask under way. It is guarded by queue.mu until done receives; from then on it
// belongs to the caller.
type request struct {
	schedule.Request
	ctx     context.Context // of the caller
	done    chan struct{}   // capacity 1: it receives once, when the request is settled
	sources []Source        // of the limiters, filled in with a grant; nil: not needed
}

// newRequest returns a request for a. The pool belongs to the client and is not global: a channel
// belongs to the synctest bubble of one test, as a client does.
func (c *Client) newRequest(ctx context.Context, a *Ask, kind schedule.Kind) *request {
	r, ok := c.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.Request = schedule.Request{
		Permits: protocol.Permits{First: a.N}, Kind: kind, Detail: a.Detail, Next: a.Detail, Until: a.Until,
		End: a.Until, Owner: r,
	}
	r.ctx, r.sources = ctx, a.Sources
	return r
}

// recycle returns r to the pool. Its caller must have received from done.
func (c *Client) recycle(r *request) {
	*r = request{done: r.done}
	c.requests.Put(r)
}

// A batch is a schedule.Batch with its call.
type batch struct {
	schedule.Batch              // guarded by queue.mu; what it asks does not change once it is sent
	body           batchBody    // one of those below
	single         singleBody   // if the queue is of one limiter
	joint          allowAllBody // if it is of a set
	reply          protocol.Reply
	queue          *queue
	call           exchange.Call
	present        atomic.Int32 // callers that have not left
	denials        int64        // denyCache.Changes when it was sent
}

// batches is the pool of batches. recycle returns one.
var batches = sync.Pool{New: func() any {
	b := new(batch)
	b.Owner, b.single.ask, b.single.reply, b.joint.reply = b, &b.Ask, &b.reply, &b.reply
	return b
}}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *batch) recycle() {
	b.Batch.Reset()
	b.call = b.call.Emptied()
	b.queue, b.body, b.single.limiter, b.joint.limiters, b.reply = nil, nil, nil, nil, protocol.Reply{}
	batches.Put(b)
}

// Cancelled reports whether all callers have left, so that no permits are to be taken for them.
func (b *batch) Cancelled() bool { return b.present.Load() == 0 }

// open returns an empty batch of the queue.
func (q *queue) open() *schedule.Batch {
	b := batches.Get().(*batch)
	b.queue, b.body = q, q.body(b)
	b.Changing = q.ledger != nil && q.client.lender.changes(q.limiters[0].Key())
	b.denials = q.client.denyCache.Changes()
	return &b.Batch
}

// begin makes the call of a batch.
func (q *queue) begin(b *batch) {
	b.body.prepare(b)
	b.call.Begin(q.client.exchange, b.body, b, q.targets)
	b.present.Store(int32(max(b.Requests(), 1))) // without requests, the queue wants it
}

// Stalled lets the queue send its next batch.
func (b *batch) Stalled() { b.queue.stalled(b) }

// Done completes b. If nothing uses it any more, it is recycled.
func (b *batch) Done(o exchange.Outcome) {
	var g *protocol.Reply
	if o.Err == nil {
		g = &b.reply
		for i, l := range b.queue.limiters {
			l.learn(g.Of(i).Rate, g.Of(i).Interval)
		}
	} else if decided, known := b.decideLocally(o); known {
		g = &decided
	}
	b.complete(g, o)
	if o.Unused {
		b.recycle()
	}
}

// complete ends b with a reply of Redis or of the process; nil if there is none. It settles the
// callers and tells the observer.
func (b *batch) complete(g *protocol.Reply, o exchange.Outcome) {
	q := b.queue
	var one [1]Call
	var calls []Call
	q.event(func(*schedule.Queue) { calls = q.settle(one[:0], b, g, o) })
	if observe := q.client.config.Observe; observe != nil {
		for _, call := range calls {
			observe(call)
		}
	}
	for _, r := range b.Settled {
		r.Owner.(*request).done <- struct{}{}
	}
}

// settle settles the callers of b, keeps what the reply says about each limiter, and lets the queue
// send its next batch. It appends what the observer is told of each limiter.
func (q *queue) settle(calls []Call, b *batch, g *protocol.Reply, o exchange.Outcome) []Call {
	m := q.client.now()
	var f schedule.Facts
	if g == nil {
		f = q.fail(m, b, o)
	} else {
		if !g.Local() {
			q.saw(b, g)
		}
		f = q.schedule.Settle(m, &b.Batch, g)
		for _, refusal := range b.Refusals {
			q.remember(m, refusal, b.denials)
		}
		if q.joins && !g.Local() && f.First.Own > 0 {
			q.grants.Add(b.single.request.ID())
		}
	}
	for _, r := range b.Settled {
		q.settled(r)
	}
	if f.Sleeps {
		q.client.watch()
		q.checkForRedisson()
	}
	for i, l := range q.limiters {
		of := f.Of(i)
		call := Call{
			Limiter: l.name, Callers: b.Requests() + f.Behind, Granted: f.Granted, Denied: of.Denied, Permits: of.Own,
			Unclaimed: of.Unclaimed,
			Waiting:   q.schedule.Waiting(),
			Latency:   m.Mono.Sub(b.call.Started()),
			Attempts:  b.call.Attempts(),
			Err:       o.Err,
		}
		if g != nil {
			call.Repaired, call.RateMismatch = g.Of(i).Notes.Repaired(), g.Of(i).Notes.Has(protocol.RateMismatch)
			call.Fallback, call.Leased = g.Local(), g.Ahead
		}
		call.Returned, call.Void = q.ledger.Tell()
		if l.settings.DenyCache > 0 {
			call.DenyCacheHits = q.client.denyCache.Hits(l.Key())
		}
		calls = append(calls, call)
	}
	return calls
}

// fail ends b with an error, which is about the limiter of a set that refused to decide, if one
// did. If Redis hangs, the requests that had to wait for b fail, too.
func (q *queue) fail(m schedule.Moment, b *batch, o exchange.Outcome) schedule.Facts {
	var behind error
	if o.Silent {
		behind = o.Cause
	}
	return q.schedule.Fail(m, &b.Batch, b.body.about(o.Err), behind)
}

// saw keeps what a reply of Redis says about each limiter.
func (q *queue) saw(b *batch, g *protocol.Reply) {
	for i, l := range q.limiters {
		of := g.Of(i)
		l.saw(of.Rate, of.Interval, of.Free, of.Notes, b.body.checks(i))
	}
}

// remember stores a refusal in the deny cache. denials is denyCache.Changes before the call.
func (q *queue) remember(m schedule.Moment, refusal denycache.Refusal, denials int64) {
	l := q.limiters[0]
	refusal.Enforced = l.enforced
	q.client.denyCache.Add(l.settings.DenyCache, l.Key(), refusal, m.Clock, denials)
}

// settled is called for each request that a batch has settled.
func (q *queue) settled(r *schedule.Request) {
	if r.Kind == schedule.Wait {
		q.client.waiting.Add(-1)
	}
	own, o := r.Owner.(*request), &r.Outcome
	if !o.First.Allowed {
		return
	}
	for i := range own.sources {
		own.sources[i] = Source{o.Local, o.Of(i).At}
	}
}
