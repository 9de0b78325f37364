package dispatch

import (
	"maps"
	"sync"

	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// The registry of a client's queues: those in use, and a few that were used recently. Nothing is
// kept of other names.

// SpareQueues is how many idle queues are kept at most, since a name that was used once is mostly
// used again.
const SpareQueues = 256

// A registry holds the queues of a client. Lock order: registry.mu before queue.mu.
type registry struct {
	mu    sync.Mutex // guards the fields below
	all   map[queueKey]*queue
	most  int                 // queues that all has held since it was made: a map does not shrink
	spare [SpareQueues]*queue // a ring of parked queues, each once; most are idle
	next  int                 // index in spare that the next parked queue takes
}

// A queueKey identifies a queue. Limiters with equal keys share it.
type queueKey struct {
	name     string // of the configuration key
	settings Settings
}

// enter returns the queue of l, locked. exit unlocks it.
func (c *Client) enter(l *Limiter) *queue {
	if q := l.queue.Load(); q != nil && q.lock() {
		return q
	}
	key := queueKey{l.Key(), l.settings}
	c.registry.mu.Lock()
	q := c.registry.all[key]
	if q == nil {
		q = c.registry.queueOf(l)
		c.registry.all[key] = q
		c.registry.most = max(c.registry.most, len(c.registry.all))
	}
	q.lock()
	c.registry.mu.Unlock()
	l.queue.Store(q)
	return q
}

// queueOf returns a new queue of a limiter.
func (ls *registry) queueOf(l *Limiter) *queue {
	s := &l.settings
	q := newQueue(ls, func(b *batch) batchBody { return &b.single }, schedule.Settings{
		Granularity: s.Bucket() > 0, DenyCache: s.DenyCache > 0, Enforced: s.Enforced,
		Lease: s.Lease, Holding: &l.client.lender.holding,
	}, l)
	q.targets[0] = &queueTarget{Limiter: l}
	return q
}

// idle parks a queue in the place of the one that was parked first. That one is dropped if it is
// idle; otherwise it is parked again when it becomes idle.
func (ls *registry) idle(q *queue) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	out := ls.spare[ls.next]
	ls.spare[ls.next] = q
	ls.next = (ls.next + 1) % SpareQueues
	if out == nil || !out.drop() {
		return
	}
	l := out.limiters[0]
	l.queue.CompareAndSwap(out, nil)
	delete(ls.all, queueKey{l.Key(), l.settings})
	if ls.most > 16*SpareQueues && len(ls.all) < ls.most/8 {
		ls.most, ls.all = len(ls.all), maps.Collect(maps.All(ls.all))
	}
}

// list returns the queues of the chosen limiters.
func (ls *registry) list(chosen func(*Limiter) bool) []*queue {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	var found []*queue
	for _, q := range ls.all {
		if chosen(q.limiters[0]) {
			found = append(found, q)
		}
	}
	return found
}
