package dispatch

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// batch.go makes a call of each batch of a queue, and tells all parts of the client what its reply
// means for them. Package schedule decides which callers a batch carries, and what the reply means
// for each of them.

// A batchBody is what the call of a batch asks, of one limiter (singleBody) or of a set
// (allowAllBody).
type batchBody interface {
	exchange.Body
	prepare(b *batch)        // takes over what b asks
	checks(limiter int) bool // reports whether it adds up the records of a limiter
	About(err error) error   // returns err with the limiter that it is about
	granted()                // notes that Redis has granted permits to callers
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
	returns        bool         // what it grants and no caller gets is given back; guarded by queue.mu
	denials        int64        // DenyCache.Changes when it was sent
}

// batches is the pool of batches. recycle returns one.
var batches = sync.Pool{New: func() any {
	b := new(batch)
	b.Owner, b.single.Ask, b.single.Reply, b.joint.Reply = b, &b.Ask, &b.reply, &b.reply
	return b
}}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *batch) recycle() {
	b.Batch.Reset()
	b.call = b.call.Emptied()
	b.queue, b.body, b.single.Limiter, b.joint.limiters, b.reply = nil, nil, nil, nil, protocol.Reply{}
	b.returns = false
	batches.Put(b)
}

// Cancelled reports whether all callers have left, so that no permits are to be taken for them.
func (b *batch) Cancelled() bool { return b.present.Load() == 0 }

// open returns an empty batch of the queue.
func (q *queue) open() *schedule.Batch {
	b := batches.Get().(*batch)
	b.queue, b.body = q, q.table.body(b)
	b.Changing = q.ledger != nil && q.limiters[0].Changing()
	b.denials = q.client.DenyCache.Changes()
	return &b.Batch
}

// begin makes the call of a batch.
func (q *queue) begin(b *batch) {
	b.body.prepare(b)
	b.call.Begin(q.client.Exchange, b.body, b, q.targets)
	b.present.Store(int32(max(b.Requests(), 1))) // without requests, the queue wants it
}

// Stalled lets the queue send its next batch before b, which takes too long, is complete. It does
// nothing once the call timeout of b is over: b is then completed at once, and may fail the
// requests queued behind it.
func (b *batch) Stalled() {
	b.queue.event(func(s *schedule.Queue) {
		if b.call.InTime() {
			s.Stalled(&b.Batch)
		}
	})
}

// Done completes b. If nothing uses it any more, it is recycled.
func (b *batch) Done(o exchange.Outcome) {
	g := &b.reply
	if o.Err != nil {
		g = nil
		if o.Away {
			if decided, known := b.decide(o.Retry); known {
				g = &decided
			}
		}
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
	var one [1]limiter.CallInfo
	var infos []limiter.CallInfo
	q.event(func(*schedule.Queue) { infos = q.settle(one[:0], b, g, o) })
	for _, info := range infos {
		q.client.Observe(info)
	}
	for _, r := range b.Settled {
		r.Owner.(*request).done <- struct{}{}
	}
}

// settle settles the callers of b, keeps what the reply says about each limiter, and lets the queue
// send its next batch. It appends what the observer is told of each limiter.
func (q *queue) settle(infos []limiter.CallInfo, b *batch, g *protocol.Reply, o exchange.Outcome) []limiter.CallInfo {
	m := q.client.Moment()
	var f schedule.Facts
	if g == nil {
		f = q.schedule.Fail(m, &b.Batch, b.body.About(o.Err), o.Behind)
	} else {
		for i, l := range q.limiters {
			if of := g.Of(i); !g.Local() {
				l.Saw(of.Rate, of.Interval, of.Free, of.Notes, b.body.checks(i))
			}
		}
		f = q.schedule.Settle(m, &b.Batch, g)
		for _, refusal := range b.Refusals {
			q.limiters[0].Remember(refusal, m.Clock, b.denials)
		}
		if !g.Local() && f.First.Own > 0 {
			b.body.granted()
		}
	}
	for _, r := range b.Settled {
		q.settled(r)
	}
	if f.Sleeps {
		q.client.WatchClosed()
		q.checkForRedisson()
	}
	for i, l := range q.limiters {
		of := f.Of(i)
		if b.returns && of.Unclaimed > 0 {
			go l.Undo(context.Background(), of.Unclaimed, Source{g.Local(), g.Of(i).At})
		}
		info := l.CallInfo(&b.call, m.Mono, o.Err)
		info.Callers = limiter.Callers{
			Carried: b.Requests() + f.Behind, Granted: f.Granted, Denied: of.Denied, Waiting: q.schedule.Waiting(),
		}
		info.Permits = limiter.Permits{Granted: of.Own, Unclaimed: of.Unclaimed}
		if g != nil {
			info.Noted(g.Of(i).Notes)
			info.Permits.Leased = g.Ahead
		}
		info.Permits.Returned, info.Permits.Void = q.ledger.Tell()
		if l.Settings.DenyCache > 0 {
			info.DenyCacheHits = q.client.DenyCache.Hits(l.Key())
		}
		infos = append(infos, info)
	}
	return infos
}

// settled is called for each request that a batch has settled.
func (q *queue) settled(r *schedule.Request) {
	if r.Kind == schedule.Wait {
		q.client.Blocked.Add(-1)
	}
	own, o := r.Owner.(*request), &r.Outcome
	if !o.First.Allowed {
		return
	}
	for i := range own.sources {
		own.sources[i] = Source{o.Local, o.Of(i).At}
	}
}
