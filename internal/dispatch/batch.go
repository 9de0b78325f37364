package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// batch.go makes a call of each batch of a queue, and tells all parts of the client what its reply
// means for them. Package schedule decides which callers a batch carries, and what the reply means
// for each of them.

// An Ask holds the parameters of one caller's request.
type Ask struct {
	N    int64   // permits; of the first limiter of a set
	Rest []int64 // permits of the other limiters of a set
	// the result has NextAfter, ResetAfter, and RetryAfter even if the caller does not wait
	Detail  bool
	Fresh   bool      // the deny cache does not answer
	Waits   bool      // the request stays queued until it is granted
	Until   time.Time // the end of the caller's timeout, by the client's clock; zero: none
	Source  *Source   // filled in with a grant; nil: not needed
	Sources []Source  // the same, of the limiters of a set
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
	ctx          context.Context // of the caller
	done         chan struct{}   // capacity 1: it receives once, when the request is settled
	source       *Source         // filled in with a grant; nil: not needed
	sources      []Source        // the same, of the limiters of a set
	reservations []reservation   // of a waiting request of a set, one for each limiter
}

// newRequest returns a request for a. The pool belongs to the client and is not global: a channel
// belongs to the synctest bubble of one test, as a client does.
func (c *Client) newRequest(ctx context.Context, a *Ask, kind schedule.Kind) *request {
	r, ok := c.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.Request = schedule.Request{
		N: a.N, Rest: a.Rest, Kind: kind, Detail: a.Detail, Next: a.Detail, Until: a.Until, End: a.Until, Owner: r,
	}
	r.ctx, r.source, r.sources = ctx, a.Source, a.Sources
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
	acquireBody                 // if the queue is of one limiter
	joint          allowAllBody // if it is of a set
	queue          *queue
	call           exchange.Call
	present        atomic.Int32 // callers that have not left
	denials        int64        // denyCache.Changes when it was sent
}

// batches is the pool of batches. recycle returns one.
var batches = sync.Pool{New: func() any {
	b := new(batch)
	b.Owner, b.ask, b.joint.reply = b, &b.Ask, &b.reply
	return b
}}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *batch) recycle() {
	b.Batch.Reset()
	b.call = b.call.Emptied()
	b.queue, b.limiter, b.joint.limiters, b.reply = nil, nil, nil, protocol.Reply{}
	batches.Put(b)
}

// Cancelled reports whether all callers have left, so that no permits are to be taken for them.
func (b *batch) Cancelled() bool { return b.present.Load() == 0 }

// open returns an empty batch of the queue.
func (q *queue) open(m schedule.Moment) *schedule.Batch {
	b := batches.Get().(*batch)
	b.queue, b.limiter = q, q.limiter
	if q.isSet() {
		q.lookInFront(m.Clock)
	} else {
		b.Ask.Check, b.free = q.limiter.unchecked()
		b.Changing = q.ledger != nil && q.client.lender.changes(q.limiter.Key())
	}
	b.denials = q.client.denyCache.Changes()
	return &b.Batch
}

// begin makes the call of a batch.
func (q *queue) begin(b *batch) {
	if q.isSet() {
		q.prepare(b)
		b.call.Begin(q.client.exchange, &b.joint, b, q.targets)
	} else {
		b.call.Begin(q.client.exchange, b, b, q.targets)
		b.request.Next(q.grants)
	}
	b.present.Store(int32(max(b.Requests(), 1))) // without requests, the queue wants it
}

// prepare fills in what a batch asks of each limiter of a set.
func (q *queue) prepare(b *batch) {
	b.joint.limiters, b.joint.failed = q.limiters, -1
	b.joint.request.Next(len(q.limiters), &b.Ask)
	for i, l := range q.limiters {
		part := &b.joint.request.Parts[i]
		part.Encoder, part.Rebuild = &l.encoder, q.schedule.Rebuild(i)
		part.Check, part.Free = l.unchecked()
	}
}

// Stalled lets the queue send its next batch.
func (b *batch) Stalled() { b.queue.stalled(b) }

// Enforce sets the limiter's own rate in the place of another one. If no attempt has had an effect,
// b may bring a lease afterwards.
func (b *batch) Enforce(ctx context.Context, a *script.Attempts) error {
	err := b.acquireBody.Enforce(ctx, a)
	if err == nil && !a.MaybeExecuted() {
		b.queue.look(func(s *schedule.Queue) {
			if !b.limiter.client.lender.changes(b.limiter.Key()) {
				s.Renew(&b.Batch)
			}
		})
	}
	return err
}

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
	var behind []uint64
	q.event(func(*schedule.Queue) { calls, behind = q.settle(one[:0], b, g, o) })
	if sent := b.call.Started(); calls[0].Granted > 0 {
		q.client.wakeSets(behind, func(set *schedule.Queue) { set.Overlapped(sent) })
	}
	if !q.isSet() && slices.ContainsFunc(b.Settled, gaveUp) {
		q.client.wakeSets(behind, (*schedule.Queue).Freed)
	}
	if q.isSet() && g != nil && !g.Local() {
		for i, l := range q.limiters {
			l.afterAllowAll(calls[i])
		}
		q.redate(g)
	}
	if observe := q.client.config.Observe; observe != nil {
		for _, call := range calls {
			observe(call)
		}
	}
	for _, r := range b.Settled {
		r := r.Owner.(*request)
		served := time.Time{}
		if r.Outcome.Allowed {
			served = b.call.Started()
		}
		r.unreserve(served)
		r.done <- struct{}{}
	}
}

// gaveUp reports whether a request that waited has ended without its permits.
func gaveUp(r *schedule.Request) bool { return r.Kind == schedule.Wait && !r.Outcome.Allowed }

// settle settles the callers of b, keeps what the reply says about each limiter, and lets the queue
// send its next batch. It appends what the observer is told of each limiter, and returns the sets
// that have callers behind those of b.
func (q *queue) settle(calls []Call, b *batch, g *protocol.Reply, o exchange.Outcome) (told []Call, behind []uint64) {
	m := q.client.now()
	var f schedule.Facts
	if g == nil {
		f = q.fail(m, b, o)
	} else {
		if !g.Local() {
			q.saw(b, g)
		}
		f = q.schedule.Settle(m, &b.Batch, g)
		q.keep(m, b, g, &f)
		if f.Refused {
			q.schedule.Correct(m, &b.Batch, g.Local())
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
		if !q.isSet() {
			call.Returned, call.Void = q.ledger.Tell()
			if l.settings.DenyCache > 0 {
				call.DenyCacheHits = q.client.denyCache.Hits(l.Key())
			}
		}
		calls = append(calls, call)
	}
	return calls, q.setsBehind(nil)
}

// fail ends b with an error, which is about the limiter of a set that refused to decide, if one
// did. If Redis hangs, the requests that had to wait for b fail, too.
func (q *queue) fail(m schedule.Moment, b *batch, o exchange.Outcome) schedule.Facts {
	var behind error
	if o.Silent {
		behind = o.Cause
	}
	err := o.Err
	if q.isSet() {
		err = ofMember(err, &b.joint.failed)
	}
	return q.schedule.Fail(m, &b.Batch, err, behind)
}

// ofMember tells which limiter of several an error is about, if one of them refused to decide.
// After any other error, an attempt may still be under way and write failed, which is not read
// then.
func ofMember(err error, failed *int) error {
	if (errors.Is(err, script.ErrNotInitialized) || errors.Is(err, script.ErrUntold)) && *failed >= 0 {
		return schedule.MemberError{Limiter: *failed, Err: err}
	}
	return err
}

// saw keeps what a reply of Redis says about each limiter.
func (q *queue) saw(b *batch, g *protocol.Reply) {
	for i, l := range q.limiters {
		of, checked := g.Of(i), b.Ask.Check
		if q.isSet() {
			checked = b.joint.request.Parts[i].Check
		}
		l.saw(of.Rate, of.Interval, of.Free, of.Notes, checked)
	}
}

// keep keeps what became of the callers of b: for the deny cache, and for retries that search
// records.
func (q *queue) keep(m schedule.Moment, b *batch, g *protocol.Reply, f *schedule.Facts) {
	if f.Refused {
		for _, r := range b.Settled {
			if r.Kind == schedule.Try && !r.Outcome.Allowed && r.Outcome.Err == nil {
				q.remember(m, r.N, r.Outcome.Result, g, b.denials)
			}
		}
	}
	if !q.isSet() && !g.Local() && f.Own > 0 && q.limiter.settings.Bucket() > 0 {
		q.grants.Add(b.request.ID())
	}
}

// remember stores a refusal of n permits for a caller that does not wait in the deny cache. denials
// is denyCache.Changes before the call. It stores nothing if the permits are free but reserved for
// waiting callers, which may leave, if the process decided locally, or if another rate than the
// enforced one is in force.
func (q *queue) remember(m schedule.Moment, n int64, r Result, g *protocol.Reply, denials int64) {
	s := &q.limiter.settings
	if s.DenyCache == 0 || q.isSet() || n <= g.Free || g.Local() || s.Enforced && g.Notes.Has(protocol.RateMismatch) {
		return
	}
	since := q.schedule.Since(m, g)
	q.client.denyCache.Add(s.DenyCache, q.limiter.Key(), denycache.Refusal{
		N: n, Limit: g.Rate, Left: g.Free, Interval: g.Interval, Enforced: q.limiter.enforced,
		Free: since.Add(r.RetryAfter), Next: since.Add(r.NextAfter), Reset: since.Add(r.ResetAfter),
	}, m.Clock, denials)
}

// settled is called for each request that a batch has settled.
func (q *queue) settled(r *schedule.Request) {
	if r.Kind == schedule.Wait {
		q.client.waiting.Add(-1)
	}
	own, o := r.Owner.(*request), &r.Outcome
	if !o.Allowed {
		return
	}
	if own.source != nil {
		*own.source = Source{o.Local, o.At}
	}
	for i := range own.sources {
		own.sources[i] = Source{o.Local, o.Of(i).At}
	}
}
