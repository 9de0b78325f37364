package dispatch

import (
	"context"
	"maps"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// registry.go has the queues of single limiters: those in use, and a few that were used recently.
// Nothing is kept of other names.

// SpareQueues is how many idle queues of limiters, and of sets, are kept at most, since what was
// used once is mostly used again. So a caller that comes back finds what is known of other clients.
const SpareQueues = 256

// spares are parked queues, each once; most are idle. The lock of their table guards them.
type spares struct {
	ring [SpareQueues]*queue
	next int // index in ring that the next parked queue takes
}

// park parks a queue in the place of the one that was parked first. If that one is idle it is
// dropped, and returned; otherwise it is parked again when it becomes idle.
func (s *spares) park(q *queue) (dropped *queue) {
	out := s.ring[s.next]
	s.ring[s.next] = q
	s.next = (s.next + 1) % SpareQueues
	if out == nil || !out.drop() {
		return nil
	}
	return out
}

// A registry holds the queues of a client. Lock order: registry.mu before queue.mu.
type registry struct {
	mu   sync.Mutex // guards the fields below
	all  map[queueKey]*queue
	most int // queues that all has held since it was made: a map does not shrink
	spares
}

// A queueKey identifies a queue. Limiters with equal keys share it.
type queueKey struct {
	name     string // of the configuration key
	settings limiter.Settings
}

// enter returns the queue of l, locked. exit unlocks it.
func (c *Client) enter(l *Limiter) *queue { return c.find(l, true) }

// find returns the queue of l, locked. If there is none, it makes one, or returns nil.
func (c *Client) find(l *Limiter, makes bool) *queue {
	if q := l.queue.Load(); q != nil && q.lock() {
		return q
	}
	key := queueKey{l.Key(), l.Settings}
	c.registry.mu.Lock()
	defer c.registry.mu.Unlock()
	q := c.registry.all[key]
	switch {
	case q == nil && !makes:
		return nil
	case q == nil:
		q = c.registry.queueOf(l)
		c.registry.all[key] = q
		c.registry.most = max(c.registry.most, len(c.registry.all))
	}
	q.lock()
	l.queue.Store(q)
	return q
}

// queueOf returns a new queue of a limiter.
func (ls *registry) queueOf(l *Limiter) *queue {
	s := &l.Settings
	q := newQueue(ls, schedule.Settings{
		Granularity: s.Bucket() > 0, DenyCache: s.DenyCache > 0, Enforced: s.Enforced,
		Lease: s.Lease, Holding: &l.client.holding,
	}, l)
	q.targets[0] = &queueTarget{Limiter: l}
	return q
}

// A singleBody is the body of a batch for one limiter.
type singleBody struct {
	limiter.Acquire
	batch *batch
}

func (b *singleBody) prepare(of *batch) {
	b.batch, b.Limiter = of, &of.queue.limiters[0].Limiter
	b.Ask.Check, b.Free = b.Limiter.Unchecked()
	b.Request.Next(of.queue.grants)
}

func (b *singleBody) checks(int) bool { return b.Ask.Check }

// granted keeps the ids of the record if later batches may join it.
func (b *singleBody) granted() {
	if b.Limiter.Settings.Bucket() > 0 {
		b.batch.queue.grants.Add(b.Request.ID())
	}
}

// Enforce sets the limiter's own rate in the place of another one. If no attempt has had an effect,
// the batch may bring a lease afterwards.
func (b *singleBody) Enforce(ctx context.Context, a *script.Attempts) error {
	err := b.Acquire.Enforce(ctx, a)
	if q := b.batch.queue; err == nil && !a.MaybeExecuted() {
		q.look(func(s *schedule.Queue) {
			if !b.Limiter.Changing() {
				s.Renew(&b.batch.Batch)
			}
		})
	}
	return err
}

// body returns the body of a batch for one limiter.
func (*registry) body(b *batch) batchBody { return &b.single }

// A queueTarget is a limiter as the calls of its queue ask it: if the Redis client shows no nodes,
// each queue has a breaker.
type queueTarget struct {
	*Limiter
	breaker breaker.Breaker
}

// Breaker returns the breaker of the queue.
func (t *queueTarget) Breaker() *breaker.Breaker { return &t.breaker }

// idle parks the queue of a limiter.
func (ls *registry) idle(q *queue) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	out := ls.park(q)
	if out == nil {
		return
	}
	l := out.limiters[0]
	l.queue.CompareAndSwap(out, nil)
	delete(ls.all, queueKey{l.Key(), l.Settings})
	if ls.most > 16*SpareQueues && len(ls.all) < ls.most/8 {
		ls.most, ls.all = len(ls.all), maps.Collect(maps.All(ls.all))
	}
}
