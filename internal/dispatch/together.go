package dispatch

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/localgrant"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// together.go asks several limiters at once (AllowAll): callers of this process that ask the same limiters share calls, which
// travel in the pipelines of all batches. It does for a schedule.Set what queue.go and batch.go do for a schedule.Queue.

// A set is limiters that are asked together. Sets of a client with the same limiters and settings are one.
type set struct {
	client   *Client
	hash     uint64 // of the limiters
	limiters []*Limiter
	targets  []exchange.Target // the same

	mu       sync.Mutex // guards the fields below
	schedule *schedule.Set
	rebuild  []bool // the next batch finishes a rebuild of the free permits of these limiters
}

// sets holds the sets of a client that have callers.
type sets struct {
	mu  sync.Mutex // guards the field below
	all map[uint64]*set
}

// enterSet returns the set of some limiters, locked. exit unlocks it.
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
		s = newSet(c, sum, limiters)
		if c.sets.all == nil {
			c.sets.all = map[uint64]*set{}
		}
		c.sets.all[sum] = s
	}
	s.mu.Lock()
	return s
}

func newSet(c *Client, hash uint64, limiters []*Limiter) *set {
	s := &set{client: c, hash: hash, limiters: limiters, rebuild: make([]bool, len(limiters))}
	perRequest := false
	for _, l := range limiters {
		s.targets = append(s.targets, l)
		perRequest = perRequest || l.settings.RecordPerRequest
	}
	s.schedule = schedule.NewSet(len(limiters), perRequest)
	return s
}

func same(a, b *Limiter) bool { return a.Key() == b.Key() && a.settings == b.settings }

// exit sends the batch that is due, and unlocks the set. It forgets the set if nobody uses it.
func (s *set) exit() { s.exitFor(context.Background(), nil) }

// exitFor is exit for the goroutine that waits for r until ctx ends. It makes the call itself, if that is for r alone; nil: it does not.
func (s *set) exitFor(ctx context.Context, r *setRequest) {
	var due *setBatch
	if s.schedule.Due() {
		due = s.next()
	}
	idle := s.schedule.Idle()
	inline := r != nil && due != nil && due.Requests() == 1 && r.InFlight() && !hurried(ctx)
	s.mu.Unlock()
	if due != nil {
		s.client.exchange.Send(&due.call, inline)
	}
	if !idle {
		return
	}
	all := &s.client.sets
	all.mu.Lock()
	defer all.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.schedule.Idle() && all.all[s.hash] == s {
		delete(all.all, s.hash)
	}
}

// A setRequest is what one caller asks of a set. It is guarded by set.mu until done receives; from then on it belongs to the
// caller.
type setRequest struct {
	schedule.SetRequest
	sources []Source // of each limiter, filled in with a grant; nil: not needed
	done    chan struct{}
}

// settled fills in the sources after a grant.
func (r *setRequest) settled() {
	for i := range r.sources {
		if r.At != nil {
			r.sources[i] = Source{r.Local, r.At[i]}
		}
	}
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
	r, ok := c.setRequests.Get().(*setRequest)
	if !ok {
		r = &setRequest{done: make(chan struct{}, 1)}
	}
	r.SetRequest, r.sources = schedule.SetRequest{Permits: permits, Owner: r, Failed: -1}, sources
	s := c.enterSet(limiters)
	s.schedule.Join(&r.SetRequest)
	s.exitFor(ctx, r)
	select {
	case <-r.done:
		results, failed, err = r.Results, r.Failed, c.forCaller(ctx, r.Err)
		c.recycleSetRequest(r)
	case <-ctx.Done():
		results, failed, err = s.abandon(r, ctx.Err())
	}
	return results, false, failed, err
}

// recycleSetRequest returns r to the pool. No goroutine may use r afterwards.
func (c *Client) recycleSetRequest(r *setRequest) {
	*r = setRequest{done: r.done}
	c.setRequests.Put(r)
}

// abandon ends r because its caller's context ended, unless r is settled. What a call in flight grants it stays taken, unless
// it can be given back (sources): that happens in the background after the reply.
func (s *set) abandon(r *setRequest, cause error) ([]Result, int, error) {
	s.mu.Lock()
	defer s.exit()
	switch {
	case r.Settled():
		return r.Results, r.Failed, r.Err
	case r.InFlight() && r.sources != nil:
		go s.giveBack(r)
		return nil, -1, script.Unknown(cause)
	}
	if carrier := s.schedule.Leave(&r.SetRequest); carrier != nil {
		carrier.Owner.(*setBatch).present.Add(-1)
		cause = script.Unknown(cause)
	}
	return nil, -1, cause
}

// giveBack waits for the reply to r, whose caller's context ended, and gives back what it was granted.
func (s *set) giveBack(r *setRequest) {
	<-r.done
	if r.Err == nil && r.Results[0].Allowed {
		for i, l := range s.limiters {
			_, _ = l.Undo(context.Background(), r.Permits[i], r.sources[i])
		}
	}
	s.client.recycleSetRequest(r)
}

// A setBatch is a schedule.SetBatch with its call.
type setBatch struct {
	schedule.SetBatch // guarded by set.mu; what it asks does not change once it is sent
	flight
	allowAllBody
	set *set
}

// setBatches is the pool of batches of sets. recycle returns one.
var setBatches = sync.Pool{New: func() any {
	b := new(setBatch)
	b.Owner = b
	return b
}}

// recycle returns b to the pool. No goroutine may use b afterwards.
func (b *setBatch) recycle() {
	b.SetBatch.Reset()
	b.call = b.call.Emptied()
	b.set, b.limiters = nil, nil
	setBatches.Put(b)
}

// next returns the next batch of the set.
func (s *set) next() *setBatch {
	b := setBatches.Get().(*setBatch)
	s.schedule.Fill(&b.SetBatch)
	b.set, b.limiters, b.failed = s, s.limiters, -1
	b.request.Next(len(s.limiters))
	b.request.Groups = b.Groups
	for i, l := range s.limiters {
		m := &b.request.Members[i]
		m.Encoder, m.Rebuild = &l.encoder, s.rebuild[i]
		m.Check, m.Free = l.unchecked()
	}
	b.call.Begin(s.client.exchange, b, b, s.targets)
	b.present.Store(int32(b.Requests()))
	return b
}

// Done completes b. If nothing uses it any more, it is recycled.
func (b *setBatch) Done(o exchange.Outcome) {
	var g *protocol.AllowAllReply
	if o.Err == nil {
		g = &b.reply
	} else if o.Away {
		if decided, known := b.decide(o.Retry); known {
			g = &decided
		}
	}
	b.complete(g, o)
	if o.Unused {
		b.recycle()
	}
}

// decide makes a local decision on b.
func (b *setBatch) decide(retry time.Duration) (protocol.AllowAllReply, bool) {
	if !b.call.CanDecide() {
		return protocol.AllowAllReply{}, false
	}
	locals := make([]*localgrant.Limiter, len(b.limiters))
	for i, l := range b.limiters {
		locals[i] = &l.local
	}
	c := b.set.client
	return c.localLimiters.DecideAll(locals, b.Groups, c.clock(), retry)
}

// Away completes b with a local decision, if the process can decide. If all callers have left, it decides nothing: the call is
// not sent.
func (b *setBatch) Away(retry time.Duration) bool {
	if b.Cancelled() {
		return false
	}
	g, known := b.decide(retry)
	if known {
		go b.complete(&g, exchange.Outcome{})
	}
	return known
}

// Stalled lets the set send its next batch before b, which takes too long, is complete.
func (b *setBatch) Stalled() {
	b.set.mu.Lock()
	defer b.set.exit()
	if b.call.InTime() {
		b.set.schedule.Stalled(&b.SetBatch)
	}
}

// complete ends b with a reply of Redis or of the process; nil if there is none. It settles the callers, and tells the observer and
// the leases of the limiters.
func (b *setBatch) complete(g *protocol.AllowAllReply, o exchange.Outcome) {
	calls := b.set.settle(b, g, o)
	for i, l := range b.limiters {
		if g != nil && !g.Local() {
			l.afterAllowAll(calls[i])
		}
	}
	if observe := b.set.client.config.Observe; observe != nil {
		for _, call := range calls {
			observe(call)
		}
	}
	for _, r := range b.Settled {
		r.Owner.(*setRequest).done <- struct{}{}
	}
}

// settle settles the callers of b, keeps what the reply says about the limiters, and lets the set send its next batch. It returns
// what the observer is told about each limiter.
func (s *set) settle(b *setBatch, g *protocol.AllowAllReply, o exchange.Outcome) []Call {
	s.mu.Lock()
	defer s.exit()
	var facts []schedule.Facts
	if g == nil {
		facts = slices.Repeat([]schedule.Facts{s.fail(b, o)}, len(s.limiters))
	} else {
		facts = s.schedule.Settle(&b.SetBatch, g)
		for _, r := range b.Settled {
			r.Owner.(*setRequest).settled()
		}
	}
	calls := make([]Call, len(s.limiters))
	for i, l := range s.limiters {
		f := &facts[i]
		calls[i] = Call{
			Limiter: l.name, Callers: b.Requests() + f.Behind, Granted: f.Granted, Denied: f.Denied, Permits: f.Own,
			Unclaimed: f.Unclaimed, Latency: time.Since(b.call.Started()), Attempts: b.call.Attempts(), Err: o.Err,
		}
		if g != nil && g.Local() {
			calls[i].Fallback = true
		} else if g != nil {
			s.saw(b, i, &g.Members[i], &calls[i])
		}
	}
	return calls
}

// fail ends b with an error, which is about the limiter that refused to decide, if one did. If Redis hangs, the requests that had
// to wait for b fail, too.
func (s *set) fail(b *setBatch, o exchange.Outcome) schedule.Facts {
	failed := -1
	if errors.Is(o.Err, script.ErrNotInitialized) || errors.Is(o.Err, script.ErrUntold) {
		failed = b.failed
	}
	var behind error
	if o.Silent {
		behind = o.Cause
	}
	return s.schedule.Fail(&b.SetBatch, failed, o.Err, behind)
}

// saw keeps what a reply of Redis says about one limiter.
func (s *set) saw(b *setBatch, i int, m *protocol.MemberReply, call *Call) {
	call.Repaired, call.RateMismatch = m.Notes.Repaired(), m.Notes.Has(protocol.RateMismatch)
	s.rebuild[i] = m.Notes.Has(protocol.RebuildPending)
	s.limiters[i].learn(m.Rate, m.Interval)
	s.limiters[i].saw(m.Rate, m.Interval, m.Free, m.Notes, b.request.Members[i].Check)
}
