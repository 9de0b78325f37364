package dispatch

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/localgrant"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Several limiters at once (AllowAll): callers of this process who ask the same limiters share calls, which travel in the
// pipelines of all batches. None of them waits for permits, so a set has no timer. Its callers are served in the order of
// arrival, but callers who ask for the same numbers of permits as an earlier one of their call are served together with it.

// A set is limiters that are asked together, and the callers who ask them. Sets of a client with the same limiters and
// settings are one.
type set struct {
	client   *Client
	hash     uint64 // of the limiters
	limiters []*Limiter
	targets  []exchange.Target // the same

	mu       sync.Mutex      // guards the fields below
	queued   []*jointRequest // callers that are not in flight
	inFlight *jointBatch     // the next batch is sent once this one is complete or detached
	detached int             // stalled batches in flight, which the next one does not wait for
	rebuild  []bool          // the next batch finishes a rebuild of the free permits of these limiters
}

// sets holds the sets of a client that have callers.
type sets struct {
	mu  sync.Mutex // guards the field below
	all map[uint64]*set
}

// enterSet returns the set of some limiters with its mutex held. The caller unlocks it with exit.
func (c *Client) enterSet(limiters []*Limiter) *set {
	var hash maphash.Hash
	hash.SetSeed(hashSeed)
	for _, l := range limiters {
		maphash.WriteComparable(&hash, queueKey{l.Key(), l.settings})
	}
	sum := hash.Sum64()
	c.sets.mu.Lock()
	defer c.sets.mu.Unlock()
	s := c.sets.all[sum]
	if s == nil || !slices.EqualFunc(s.limiters, limiters, same) { // another set may have the same hash
		s = &set{client: c, hash: sum, limiters: limiters, rebuild: make([]bool, len(limiters))}
		for _, l := range limiters {
			s.targets = append(s.targets, l)
		}
		if c.sets.all == nil {
			c.sets.all = map[uint64]*set{}
		}
		c.sets.all[sum] = s
	}
	s.mu.Lock()
	return s
}

func same(a, b *Limiter) bool { return a.Key() == b.Key() && a.settings == b.settings }

// exit unlocks the set, and forgets it if nobody uses it.
func (s *set) exit() {
	idle := s.idle()
	s.mu.Unlock()
	if !idle {
		return
	}
	all := &s.client.sets
	all.mu.Lock()
	defer all.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle() && all.all[s.hash] == s {
		delete(all.all, s.hash)
	}
}

// idle reports whether no caller and no batch uses the set. s.mu is held.
func (s *set) idle() bool { return len(s.queued) == 0 && s.inFlight == nil && s.detached == 0 }

// A jointRequest is what one caller asks of a set. Its fields are guarded by set.mu until done receives; from then on they
// belong to the caller.
type jointRequest struct {
	permits []int64  // of each limiter
	sources []Source // of each limiter, filled in with a grant; nil: not needed
	done    chan struct{}

	results []Result
	failed  int // index of the limiter that err is about; -1: of none
	err     error
	state   requestState
	batch   *jointBatch // the last one that carried it
}

// AllowAll asks all limiters for permits, their leases or else one script: all of them grant, or none does. leased reports
// whether the leases granted. If it fails because of one limiter, failed is the index of that, else -1. A grant fills in the
// sources, unless they are nil; after an error the caller must not use them again, since giving back may go on in the
// background.
func (c *Client) AllowAll(
	ctx context.Context, permits []int64, limiters []*Limiter, sources []Source,
) (results []Result, leased bool, failed int, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, -1, err
	}
	if results, ok := c.allFromLeases(permits, limiters, sources); ok {
		return results, true, -1, nil
	}
	results, failed, err = c.allowAll(ctx, permits, limiters, sources)
	return results, false, failed, err
}

// allowAll is AllowAll without leases.
func (c *Client) allowAll(
	ctx context.Context, permits []int64, limiters []*Limiter, sources []Source,
) (results []Result, failed int, err error) {
	r, ok := c.jointRequests.Get().(*jointRequest)
	if !ok {
		r = &jointRequest{done: make(chan struct{}, 1)}
	}
	r.permits, r.sources, r.failed = permits, sources, -1
	s := c.enterSet(limiters)
	s.queued = append(s.queued, r)
	s.send()
	s.exit()
	select {
	case <-r.done:
		results, failed, err = r.results, r.failed, c.forCaller(ctx, r.err)
		c.recycleJoint(r)
		return results, failed, err
	case <-ctx.Done():
		return s.abandon(r, ctx.Err())
	}
}

// recycleJoint returns r to the pool. No goroutine may use r afterwards.
func (c *Client) recycleJoint(r *jointRequest) {
	*r = jointRequest{done: r.done}
	c.jointRequests.Put(r)
}

// abandon ends r because its caller's context ended, unless r is settled. What a call in flight grants it stays taken, unless
// it can be given back (sources): that happens in the background after the reply.
func (s *set) abandon(r *jointRequest, cause error) ([]Result, int, error) {
	s.mu.Lock()
	defer s.exit()
	switch {
	case r.state == requestSettled:
		return r.results, r.failed, r.err
	case r.state.inFlight() && r.sources != nil:
		go s.giveBack(r)
		return nil, -1, script.Unknown(cause)
	case r.state.inFlight():
		r.state.to(requestAbandoned)
		r.batch.present.Add(-1)
		return nil, -1, script.Unknown(cause)
	}
	r.state.to(requestGone)
	s.queued = slices.DeleteFunc(s.queued, func(other *jointRequest) bool { return other == r })
	return nil, -1, cause
}

// giveBack waits for the reply to r, whose caller's context ended, and gives back what it was granted.
func (s *set) giveBack(r *jointRequest) {
	<-r.done
	if r.err == nil && r.results[0].Allowed {
		for i, l := range s.limiters {
			_, _ = l.Undo(context.Background(), r.permits[i], r.sources[i])
		}
	}
	s.client.recycleJoint(r)
}

// A jointBatch is one call of a set for many callers. It is filled while set.mu is held; then it belongs to the goroutine
// that makes the call.
type jointBatch struct {
	flight
	allowAllBody // a group is callers that ask for the same numbers of permits
	set          *set
	members      [][]*jointRequest // the callers of each group
	callers      int               // in all groups

	answered []*jointRequest // settled by this batch: appended to with set.mu held, signalled after the observer was called
}

// jointBatches is the pool of joint batches. recycle returns one.
var jointBatches = sync.Pool{New: func() any { return &jointBatch{} }}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *jointBatch) recycle() {
	clear(b.answered)
	*b = jointBatch{
		flight: flight{call: b.call.Emptied()}, allowAllBody: allowAllBody{request: b.request},
		members: emptied(b.members), answered: b.answered[:0],
	}
	jointBatches.Put(b)
}

// send sends the next batch, unless one is in flight or nobody asks. s.mu is held.
func (s *set) send() {
	if s.inFlight != nil || len(s.queued) == 0 {
		return
	}
	b := jointBatches.Get().(*jointBatch)
	b.set, b.limiters = s, s.limiters
	b.request.Next(len(s.limiters))
	b.call.Begin(s.client.exchange, b, b, s.targets)
	most := math.MaxInt
	for i, l := range s.limiters {
		m := &b.request.Members[i]
		m.Encoder, m.Rebuild = &l.encoder, s.rebuild[i]
		m.Check, m.Free = l.unchecked()
		if l.settings.RecordPerRequest {
			most = maxRequests
		}
	}
	for b.callers < most && len(s.queued) > 0 && b.add(s.queued[0]) {
		s.queued[0] = nil
		s.queued = s.queued[1:]
	}
	b.state.to(batchSent)
	s.inFlight = b
	s.client.exchange.Send(&b.call)
}

// add adds r to the group of its numbers and reports whether there was room.
func (b *jointBatch) add(r *jointRequest) bool {
	groups := b.request.Groups
	at := slices.IndexFunc(groups, func(g protocol.JointGroup) bool { return slices.Equal(g.Sizes, r.permits) })
	if at < 0 {
		if at = len(groups); at == MaxGroups {
			return false
		}
		b.request.Groups = append(groups, protocol.JointGroup{Sizes: r.permits})
		b.members = oneMore(b.members)
	}
	b.request.Groups[at].Count++
	b.members[at] = append(b.members[at], r)
	b.callers++
	b.present.Add(1)
	r.state.to(requestInFlight)
	r.batch = b
	return true
}

// Done completes b. If nothing uses it any more, it is recycled. An error is about the limiter that refused to decide, if one
// did.
func (b *jointBatch) Done(o exchange.Outcome) {
	var g protocol.AllowAllReply
	failed := -1
	switch {
	case o.Err == nil:
		g = b.reply
	case errors.Is(o.Err, script.ErrNotInitialized) || errors.Is(o.Err, script.ErrUntold):
		failed = b.failed
	}
	b.complete(g, failed, o)
	if o.Unused {
		b.recycle()
	}
}

// decide makes a local decision on b.
func (b *jointBatch) decide(retry time.Duration) (protocol.AllowAllReply, bool) {
	if !b.call.CanDecide() {
		return protocol.AllowAllReply{}, false
	}
	locals := make([]*localgrant.Limiter, len(b.limiters))
	for i, l := range b.limiters {
		locals[i] = &l.local
	}
	c := b.set.client
	return c.localLimiters.DecideAll(locals, b.request.Groups, c.clock(), retry)
}

// Away completes b with a local decision, if the process can decide. set.mu may be held.
func (b *jointBatch) Away(retry time.Duration) bool {
	g, known := b.decide(retry)
	if known {
		go b.complete(g, -1, exchange.Outcome{})
	}
	return known
}

// Stalled lets the set send its next batch before b, which takes too long, is complete.
func (b *jointBatch) Stalled() {
	s := b.set
	s.mu.Lock()
	defer s.exit()
	if !b.mayDetach(s.detached) {
		return
	}
	b.state.to(batchDetached)
	s.inFlight = nil
	s.detached++
	s.send()
}

// complete settles the callers of b with a reply or an error, and sends the next batch.
func (b *jointBatch) complete(g protocol.AllowAllReply, failed int, o exchange.Outcome) {
	s := b.set
	s.mu.Lock()
	detached := b.state == batchDetached
	b.state.to(batchComplete)
	err, local := o.Err, g.Members != nil && g.Local()
	if o.Away {
		if decided, known := b.decide(o.Retry); known {
			g, err, local = decided, nil, true
		}
	}
	if detached {
		s.detached--
	} else {
		s.inFlight = nil
	}
	calls := make([]Call, len(s.limiters))
	if err == nil {
		s.distribute(b, g, calls)
	} else {
		for _, members := range b.members {
			b.failAll(members, failed, o.Err, calls)
		}
		if !detached && o.Silent {
			queued := s.queued // they waited for b, and would wait as long again
			s.queued = nil
			for i := range calls {
				calls[i].Callers = len(queued)
			}
			b.failAll(queued, -1, o.Cause, calls)
		}
	}
	for i, l := range s.limiters {
		call := &calls[i]
		call.Callers += b.callers
		call.Limiter, call.Latency, call.Attempts = l.name, time.Since(b.call.Started()), b.call.Attempts()
		call.Fallback, call.Err = local, o.Err
		if err == nil && !local {
			m := g.Members[i]
			call.Repaired, call.RateMismatch = m.Notes.Repaired(), m.Notes.Has(protocol.RateMismatch)
			s.rebuild[i] = m.Notes.Has(protocol.RebuildPending)
			l.learn(m.Rate, m.Interval)
			l.saw(m.Rate, m.Interval, m.Free, m.Notes, b.request.Members[i].Check)
		}
	}
	s.send()
	s.exit()
	if err == nil && !local {
		for i, l := range s.limiters {
			l.afterAllowAll(calls[i])
		}
	}
	if observe := s.client.observe; observe != nil {
		for _, call := range calls {
			observe(call)
		}
	}
	for _, r := range b.answered {
		r.done <- struct{}{}
	}
}

// finish settles r, as b is complete, unless its caller has left, and reports whether it did. An error is about the limiter
// with the index failed. s.mu is held.
func (b *jointBatch) finish(r *jointRequest, results []Result, failed int, err error) bool {
	if r.state == requestAbandoned {
		r.state.to(requestGone)
		return false
	}
	r.state.to(requestSettled)
	r.results, r.failed, r.err = results, failed, err
	b.answered = append(b.answered, r)
	return true
}

// failAll settles requests with an error, which is about the limiter with the index failed. s.mu is held.
func (b *jointBatch) failAll(requests []*jointRequest, failed int, err error, calls []Call) {
	for _, r := range requests {
		if b.finish(r, nil, failed, err) {
			for i := range calls {
				calls[i].Denied++
			}
		}
	}
}

// distribute applies a reply to the callers of b. A refused caller whose wait is not known asks again. s.mu is held.
func (s *set) distribute(b *jointBatch, g protocol.AllowAllReply, calls []Call) {
	free := make([]int64, len(s.limiters)) // after each caller
	for i, m := range g.Members {
		free[i] = m.Free
	}
	for at := len(b.members) - 1; at >= 0; at-- { // backwards, so that the permits left after each caller are known
		granted, _ := g.Granted(at, b.request.Groups[at])
		for n := int(granted) - 1; n >= 0; n-- {
			r := b.members[at][n]
			results := make([]Result, len(s.limiters))
			for i, m := range g.Members {
				results[i] = Result{Allowed: true, Limit: m.Rate, Remaining: free[i], NextAfter: m.NextAfter, ResetAfter: m.ResetAfter}
				if r.sources != nil {
					r.sources[i] = Source{g.Local(), m.At}
				}
			}
			claimed := b.finish(r, results, -1, nil)
			for i, size := range b.request.Groups[at].Sizes {
				free[i] += size
				calls[i].Permits += size
				if claimed {
					calls[i].Granted++
				} else {
					calls[i].Unclaimed += size
				}
			}
		}
	}
	var again []*jointRequest
	for at, members := range b.members {
		granted, exceeded := g.Granted(at, b.request.Groups[at])
		for _, r := range members[max(granted, 0):] {
			if granted < 0 {
				if b.finish(r, nil, exceeded, ErrExceedsRate) {
					calls[exceeded].Denied++
				}
				continue
			}
			results, known := make([]Result, len(s.limiters)), true
			for i, m := range g.Members {
				wait, is := g.Wait(at, i)
				known = known && is
				results[i] = Result{Limit: m.Rate, Remaining: m.Free, RetryAfter: wait, NextAfter: m.NextAfter, ResetAfter: m.ResetAfter}
			}
			if !known && r.state == requestInFlight {
				r.state.to(requestQueued)
				again = append(again, r)
			} else if b.finish(r, results, -1, nil) {
				for i, result := range results {
					if result.RetryAfter > 0 {
						calls[i].Denied++
					}
				}
			}
		}
	}
	s.queued = append(again, s.queued...)
}
