package dispatch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Batches: while a call of a limiter is in flight, later callers of this process queue, and the next call carries all
// of them. This file forms groups out of callers and maps a reply to them. It does not decide when a waiting caller
// asks again.

const (
	MaxGroups   = 256 // groups in one batch
	maxRequests = 256 // callers in one batch if each grant gets a record of its own (WithRecordPerRequest)
)

// An Ask holds the parameters of one caller's request.
type Ask struct {
	N      int64     // permits
	Detail bool      // the result has NextAfter, ResetAfter, and RetryAfter even if the caller does not wait
	Waits  bool      // the request stays queued until it is granted
	Got    *int64    // takes fewer permits rather than none, and is filled in with their number; nil: all or nothing
	Until  time.Time // the end of the caller's timeout, by the client's clock; zero: none
	Source *Source   // filled in with a grant; nil: not needed
}

// A Source tells where granted permits came from, so that they can be given back.
type Source struct {
	Local bool  // granted by this process, not by Redis
	At    int64 // score of the record, or when the process granted, µs
}

// A request is an Ask under way. The fields below done are guarded by queue.mu until done receives; from then on they
// belong to the caller.
type request struct {
	Ask
	done chan struct{} // capacity 1: it receives once, when the request is settled

	result     Result
	err        error
	cached     bool // a refusal is stored in the deny cache, which needs the times of a result
	state      requestState
	batch      *batch        // the last one that carried it
	lastBatch  int64         // number of that batch
	free       time.Time     // when its permits will be free, by the client's clock; zero: not known, or now, but for callers in front
	end        time.Time     // when its caller leaves: the end of its timeout or of its context; zero: not known
	together   time.Duration // how long after free other permits are free that return together with its own
	last       bool          // the timeout is over: the next reply settles it
	prev, next *request      // neighbours in the queue
}

// newRequest returns a request for a. The pool belongs to the client and is not global: a channel belongs to the
// synctest bubble of one test, as a client does.
func (c *Client) newRequest(a *Ask) *request {
	r, ok := c.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.Ask = *a
	return r
}

// recycle returns r to the pool. Its caller must have received from done.
func (c *Client) recycle(r *request) {
	*r = request{done: r.done}
	c.requests.Put(r)
}

// A flight is what batches of both kinds have in common.
type flight struct {
	call    exchange.Call
	present atomic.Int32 // callers that are not cancelled
	state   batchState   // guarded by the mutex of the queue or set
}

// Cancelled reports whether all callers are cancelled, so that no permits are to be taken for them.
func (f *flight) Cancelled() bool { return f.present.Load() == 0 }

// maxDetached is how many batches of one queue or set may be detached at once.
const maxDetached = 3

// mayDetach reports whether a queue or set, which has detached so many batches, may go on without this one. It may not once
// the call timeout is over. The mutex of the queue or set is held.
func (f *flight) mayDetach(detached int) bool {
	return f.state == batchSent && f.call.InTime() && detached < maxDetached
}

// A batch is one call for many callers. It is filled while queue.mu is held; then it belongs to the goroutine that
// makes the call. Its state is guarded by queue.mu.
type batch struct {
	flight
	acquireBody // a group is callers that ask for the same number of permits and stand next to each other
	queue       *queue
	number      int64              // sequence number in its queue, from 1
	target      [1]exchange.Target // of the call
	members     [][]*request       // the callers of each group
	callers     int                // in all groups
	full        bool               // ask.Partial because the batch is full. Without full, the fair share leaves the rest to other clients
	beaten      bool               // nothing was granted, though permits of a waiting caller were due: another client was first
	changes     int64              // denyCache.Changes when it was sent
	ticket      lease.Ticket       // for the lease that it brings
	answered    []*request         // settled by this batch: appended to with queue.mu held, signalled after the observer was called
}

// batches is the pool of batches. recycle returns one.
var batches = sync.Pool{New: func() any { return &batch{} }}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *batch) recycle() {
	clear(b.answered)
	*b = batch{
		flight:      flight{call: b.call.Emptied()},
		acquireBody: acquireBody{ask: protocol.Ask{Groups: b.ask.Groups[:0]}, request: b.request},
		members:     emptied(b.members), answered: b.answered[:0],
	}
	batches.Put(b)
}

// emptied returns the members of a batch without callers and without groups. It keeps their memory for oneMore.
func emptied[R any](members [][]*R) [][]*R {
	for i := range members {
		clear(members[i])
		members[i] = members[i][:0]
	}
	return members[:0]
}

// oneMore returns members with one more group, which has no callers.
func oneMore[R any](members [][]*R) [][]*R {
	if n := len(members); n < cap(members) {
		return members[:n+1]
	}
	return append(members, nil)
}

// add adds r to the group of its size and reports whether there was room. A waiting caller joins only the last group,
// which keeps the order; another caller joins any group behind the strict ones. Waiting callers, which are added first,
// get at most half of the room, so that the others get a reply however long the queue is.
func (b *batch) add(r *request, perRequest bool) bool {
	groups, requests := MaxGroups, maxRequests
	if r.Waits {
		groups, requests = MaxGroups/2, maxRequests/2
	}
	if perRequest && b.callers >= requests {
		return false
	}
	from := len(b.members) - 1
	if !r.Waits {
		from = b.ask.Strict
	}
	at := len(b.members)
	for i := max(from, 0); i < len(b.members); i++ {
		if b.ask.Groups[i].Size == r.N {
			at = i
			break
		}
	}
	if at == len(b.members) {
		if at >= groups {
			return false
		}
		b.members = oneMore(b.members)
		b.ask.Groups = append(b.ask.Groups, protocol.Group{Size: r.N})
		if r.Waits {
			b.ask.Strict++
		}
	}
	b.ask.Groups[at].Count++
	b.members[at] = append(b.members[at], r)
	b.callers++
	b.present.Add(1)
	b.ask.Detail = b.ask.Detail || r.Detail || r.cached
	b.ask.Next = b.ask.Next || r.Detail
	r.state.to(requestInFlight)
	r.batch, r.lastBatch = b, b.number
	return true
}

// newBatch returns the next batch of the queue, without callers. q.mu is held.
func (q *queue) newBatch() *batch {
	q.batches++
	b := batches.Get().(*batch)
	b.queue, b.number, b.ask.Rebuild = q, q.batches, q.rebuild
	b.ask.Check, b.free = q.limiter.unchecked()
	b.changes, b.ticket = q.client.denyCache.Changes(), q.ledger.Ticket()
	b.limiter, b.target[0] = q.limiter, &q.target
	b.call.Begin(q.client.exchange, b, b, b.target[:])
	b.request.Next(q.grants)
	return b
}

// sendAlone sends a batch for a caller who takes fewer permits rather than none, beside those of the queue. q.mu is held.
func (q *queue) sendAlone(r *request) {
	b := q.newBatch()
	b.ask.UpTo = true
	b.add(r, false)
	b.state.to(batchSent)
	q.alone++
	q.client.exchange.Send(&b.call)
}

// send sends the next batch, unless a batch is in flight, the queue lingers, or there is nothing to ask. q.mu is held.
func (q *queue) send() {
	if q.inFlight != nil || q.linger > 0 {
		return
	}
	q.ask = false
	b := q.newBatch()
	perRequest := q.limiter.settings.RecordPerRequest
	b.ask.Apart = q.detached > 0 && q.limiter.settings.Bucket() > 0
	room, upTo := q.room()
	for r := q.first; r != nil && !b.ask.Partial; r = r.next {
		if !r.state.inFlight() {
			may := room >= 0 || upTo != nil
			b.full = may && !b.add(r, perRequest)
			b.ask.Partial = !may || b.full
			room -= r.N
		}
		if r == upTo {
			upTo = nil
		}
	}
	added := 0
	for _, r := range q.trying {
		if r.state == requestQueued && !b.add(r, perRequest) {
			break
		}
		added++
	}
	q.trying = slices.Delete(q.trying, 0, added)
	if b.ask.Lease = q.wish(b); b.ask.Lease > 0 && b.callers == 0 {
		b.present.Add(1) // the queue wants it
	}
	if b.callers == 0 && b.ask.Lease == 0 {
		b.recycle()
		if q.waiter() != nil {
			q.rest()
		}
		return
	}
	b.state.to(batchSent)
	q.inFlight = b
	q.client.exchange.Send(&b.call)
}

// detach lets the queue send its next batch before b, which takes too long, is complete. It does nothing once the call
// timeout of b is over: b is then completed at once, and may fail the requests queued behind it.
func (q *queue) detach(b *batch) {
	q.mu.Lock()
	defer q.exit()
	if q.inFlight != b || !b.mayDetach(q.detached) {
		return
	}
	b.state.to(batchDetached)
	q.inFlight = nil
	q.detached++
	if next := q.waiter(); q.urgent(next) {
		q.send()
	} else if next != nil {
		q.rest()
	}
}

// Stalled lets the queue send its next batch.
func (b *batch) Stalled() { b.queue.detach(b) }

// Done completes b. If nothing uses it any more, it is recycled.
func (b *batch) Done(o exchange.Outcome) {
	var g protocol.AcquireReply
	if o.Err == nil {
		g = b.reply
	}
	b.complete(g, o)
	if o.Unused {
		b.recycle()
	}
}

// Enforce sets the limiter's own rate in the place of another one. If no attempt has had an effect, b may bring a lease
// afterwards.
func (b *batch) Enforce(ctx context.Context, a *script.Attempts) error {
	err := b.acquireBody.Enforce(ctx, a)
	if err == nil && !a.MaybeExecuted() {
		b.renewed()
	}
	return err
}

// renewed lets b bring a lease, after its call has changed the rate itself.
func (b *batch) renewed() {
	ticket := b.queue.ledger.Ticket()
	if b.queue.client.changes.underWay(b.limiter.Key()) {
		return
	}
	b.queue.mu.Lock()
	defer b.queue.mu.Unlock()
	b.ticket = ticket
}

// complete settles the callers of b with a reply or an error and plans the queue's next batch.
func (b *batch) complete(g protocol.AcquireReply, o exchange.Outcome) {
	q := b.queue
	q.mu.Lock()
	detached := b.state == batchDetached
	b.state.to(batchComplete)
	g, err := b.decideLocally(g, o)
	switch {
	case b.ask.UpTo:
		q.alone--
	case detached:
		q.detached--
	default:
		q.inFlight = nil
	}
	returned, void := q.ledger.Tell()
	info := Call{
		Limiter: q.limiter.name, Callers: b.callers, Latency: time.Since(b.call.Started()),
		Attempts: b.call.Attempts(), Repaired: g.Notes.Repaired(), RateMismatch: g.Notes.Has(protocol.RateMismatch),
		Fallback: g.Local(), Leased: g.Ahead, Returned: returned, Void: void, Err: o.Err,
	}
	if err != nil {
		for _, members := range b.members {
			for _, r := range members {
				if r.state == requestInFlight {
					info.Denied++
				}
				q.finish(b, r, o.Err)
			}
		}
		if !detached && !b.ask.UpTo && o.Silent {
			q.failQueued(b, o.Cause, &info)
		}
	} else {
		if !g.Local() {
			q.rebuild = g.Notes.Has(protocol.RebuildPending)
			q.rate = g.Rate
			q.ledger.Saw(g.Interval)
			if g.Ahead > 0 {
				q.hold(b, g, detached)
			} else if b.callers == 0 {
				q.ledger.Refused(time.Now()) // a call for a lease alone was in vain
			}
			q.limiter.saw(g.Rate, g.Interval, g.Free, g.Notes, b.ask.Check)
		}
		if b.ask.UpTo {
			q.settleUpTo(b, g, &info)
		} else {
			q.distribute(b, &g, &info)
		}
		if !g.Local() && info.Permits+g.Ahead > 0 && q.limiter.settings.Bucket() > 0 {
			q.grants.Add(b.request.ID())
		}
		q.mayPass = 0
		if g.Local() && q.first != nil && q.first.N > g.Rate {
			q.mayPass = g.Rate
		}
	}
	q.plan(b, g)
	q.behind(b, g)
	info.Waiting = q.waiting
	if q.limiter.settings.DenyCache > 0 {
		info.DenyCacheHits = q.client.denyCache.Hits(q.limiter.Key())
	}
	q.exit()
	if q.client.observe != nil {
		q.client.observe(info)
	}
	for _, r := range b.answered {
		r.done <- struct{}{}
	}
}

// failQueued fails the requests that had to wait for b, which timed out, without making a call for them. Otherwise they
// could wait for a server that hangs for twice the call timeout. Waiting callers whose permits are not free yet stay.
// q.mu is held.
func (q *queue) failQueued(b *batch, late error, info *Call) {
	count := func(r *request) {
		info.Callers++
		info.Denied++
		q.finish(b, r, late)
	}
	for _, r := range q.trying {
		if r.state == requestQueued {
			count(r)
		}
	}
	clear(q.trying)
	q.trying = q.trying[:0]
	now, free := q.client.clock(), time.Time{}
	for r := q.first; r != nil; {
		next := r.next
		if r.free.After(free) {
			free = r.free
		}
		if r.state == requestQueued || r.state == requestRefused && !now.Before(free) {
			count(r)
		}
		r = next
	}
}

// finish settles r with err, as b is complete, unless its caller has left. q.mu is held.
func (q *queue) finish(b *batch, r *request, err error) {
	if r.state == requestAbandoned {
		r.state.to(requestGone)
		return
	}
	if r.Waits {
		q.leave(r)
	}
	r.state.to(requestSettled)
	r.err = err
	b.answered = append(b.answered, r)
}

// mayWait reports whether r, which was refused, stays queued for permits that are free at the given time.
func (r *request) mayWait(free time.Time) bool {
	return r.Waits && !r.last && (r.Until.IsZero() || free.Before(r.Until))
}

// again keeps r, which the batch did not settle, for the next batch. q.mu is held.
func (q *queue) again(r *request) {
	r.state.to(requestQueued)
	q.ask = true
	if !r.Waits {
		q.trying = append(q.trying, r)
	}
}

// since returns the time, by the client's clock, from which the waits in g count: the time of the request, to the µs.
// With WithServerTime that moment is not known exactly by this clock; the current time is never too early.
func (q *queue) since(g *protocol.AcquireReply) time.Time {
	if q.limiter.settings.ServerTime {
		return q.client.clock()
	}
	return time.UnixMicro(g.Now)
}

// distribute applies a reply to the callers of b. Permits granted to cancelled callers go to the requests behind them,
// in order, where they fit; they never pass a waiting caller that needs more. The reply settles each caller that does
// not wait, unless expired records remain (protocol.More), or all waiting callers in b were served and the next batch is
// sent for the rest of the queue anyway. q.mu is held.
func (q *queue) distribute(b *batch, g *protocol.AcquireReply, info *Call) {
	more := g.Notes.Has(protocol.More)
	since := q.since(g)
	var spare, own int64
	free := g.Free
	for i := len(b.members) - 1; i >= 0; i-- { // backwards, so that the permits left after each caller are known
		size, granted := b.ask.Groups[i].Size, g.Granted(i, b.ask.Groups[i])
		for at := int(granted) - 1; at >= 0; at-- {
			r := b.members[i][at]
			own += size
			if r.state == requestAbandoned {
				r.state.to(requestGone)
				spare += size
			} else {
				q.grant(b, r, g, free, info)
			}
			free += size
		}
	}
	if own > 0 && !g.Local() { // local grants have no record
		q.fairShare.Granted(g.At, g.Interval, own)
	}
	left, ahead := g.Free, false // permits that callers may ask for again; whether a waiting caller in front is not served
	for i, members := range b.members {
		granted := g.Granted(i, b.ask.Groups[i])
		ahead = ahead || b.ask.Partial && i >= b.ask.Strict
		for _, r := range members[max(granted, 0):] {
			refusal := Result{Limit: g.Rate, Remaining: g.Free, RetryAfter: g.Wait(i), NextAfter: g.NextAfter, ResetAfter: g.ResetAfter}
			switch due := since.Add(refusal.RetryAfter); {
			case r.state == requestAbandoned:
				r.state.to(requestGone)
				continue
			case granted < 0:
				info.Denied++
				q.finish(b, r, ErrExceedsRate)
			case !ahead && r.N <= spare:
				spare -= r.N
				q.grant(b, r, g, g.Free, info)
			case more && (!r.Waits || r.mayWait(q.client.clock())):
				q.again(r)
			case r.Waits && !r.last && r.N <= left || !r.Waits && b.full && !g.Local() && r.N <= left:
				left -= r.N
				q.again(r) // a caller in front has left, or the next batch is sent for the rest of the queue anyway
			case r.mayWait(due):
				r.state.to(requestRefused)
				b.beaten = b.beaten || own == 0 && !r.free.IsZero() && !since.Before(r.free)
				if r.free, r.result = due, refusal; r.N <= g.Free {
					r.free = time.Time{} // it waits only for the callers in front, who may leave
				}
				if r.N <= g.Rate { // a request above the local limit waits for Redis and does not block those behind it
					left = 0
				}
			default:
				info.Denied++
				q.ledger.Refused(time.Now())
				r.result = refusal
				q.remember(b, r, g, since)
				q.finish(b, r, nil)
			}
			ahead = ahead || r.Waits && r.state != requestSettled && r.N <= g.Rate
		}
	}
	info.Unclaimed = spare
	info.Permits = own
	q.ledger.Granted(own)
}

// settleUpTo applies a reply to the only caller of b, who takes what it is granted. q.mu is held.
func (q *queue) settleUpTo(b *batch, g protocol.AcquireReply, info *Call) {
	r := b.members[0][0]
	got := g.Granted(0, b.ask.Groups[0])
	info.Permits = got
	switch {
	case r.state == requestAbandoned:
		r.state.to(requestGone)
		info.Unclaimed = got
		return
	case got == 0 && g.Notes.Has(protocol.More): // expired records remain
		r.state.to(requestQueued)
		q.sendAlone(r)
		return
	case got == 0:
		info.Denied++
	default:
		info.Granted++
	}
	*r.Got = got
	if r.Source != nil {
		*r.Source = Source{g.Local(), g.At}
	}
	q.finish(b, r, nil)
}

// behind corrects the results of refused callers that do not wait: free permits are reserved for the waiting callers,
// so Remaining is 0, and RetryAfter is at least the time until the first waiting caller can be served. q.mu is held.
func (q *queue) behind(b *batch, g protocol.AcquireReply) {
	now := q.client.clock()
	for _, r := range b.answered {
		free := r.N <= r.result.Remaining // but reserved for waiting callers
		if r.Waits || r.err != nil || r.result.Allowed || q.first == nil && !free {
			continue
		}
		r.result.Remaining = 0
		if !g.Local() { // a local reply contains the wait for waiting callers already
			if free {
				r.result.RetryAfter = time.Millisecond
			}
			if q.first != nil {
				r.result.RetryAfter = max(r.result.RetryAfter, q.turn(q.first, now).Sub(now))
			}
		}
		r.result.NextAfter = r.result.RetryAfter
		r.result.ResetAfter = max(r.result.ResetAfter, r.result.RetryAfter)
	}
}

// remember stores the refusal of a caller that does not wait in the deny cache; its times count from since. It stores
// nothing if the permits are free but reserved for waiting callers, which may leave, if the process decided locally, or
// if another rate than the enforced one is in force.
func (q *queue) remember(b *batch, r *request, g *protocol.AcquireReply, since time.Time) {
	s := q.limiter.settings
	if s.DenyCache == 0 || r.Waits || r.N <= g.Free || g.Local() || s.Enforced && g.Notes.Has(protocol.RateMismatch) {
		return
	}
	refusal := denycache.Refusal{
		N: r.N, Limit: g.Rate, Left: g.Free, Interval: g.Interval, Enforced: q.limiter.enforced,
		Free: since.Add(r.result.RetryAfter), Next: since.Add(r.result.NextAfter), Reset: since.Add(r.result.ResetAfter),
	}
	q.client.denyCache.Add(s.DenyCache, q.limiter.Key(), refusal, q.client.clock(), b.changes)
}

// grant settles r with its permits; free is what remains after it. q.mu is held.
func (q *queue) grant(b *batch, r *request, g *protocol.AcquireReply, free int64, info *Call) {
	if r.Source != nil {
		*r.Source = Source{g.Local(), g.At}
	}
	r.result = Result{Allowed: true, Limit: g.Rate, Remaining: free, NextAfter: g.NextAfter, ResetAfter: g.ResetAfter}
	info.Granted++
	q.finish(b, r, nil)
}
