package dispatch

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// sets.go asks several limiters that grant together: a set of limiters has a queue, as one limiter
// has. A waiting request of a set has a schedule.Keep in the queue of each limiter of the set, so
// that all who wait for a limiter keep their order.

// sets holds the queues of sets that have callers.
type sets struct {
	// guards the field below, and the order of keeps: requests have the same one at all limiters
	mu  sync.Mutex
	all map[uint64]*queue
}

// A keep is a schedule.Keep in the queue of one limiter.
type keep struct {
	*schedule.Keep
	queue *queue
}

// enterSet returns the queue of some limiters, locked. exit unlocks it. If r waits, its keeps are
// added.
func (c *Client) enterSet(limiters []*Limiter, r *request) *queue {
	var hash maphash.Hash
	hash.SetSeed(hashSeed)
	for _, l := range limiters {
		maphash.WriteComparable(&hash, queueKey{l.Key(), l.settings})
	}
	sum := max(hash.Sum64(), 1)
	c.sets.mu.Lock()
	defer c.sets.mu.Unlock()
	q := c.sets.all[sum]
	if q == nil || !slices.EqualFunc(q.limiters, limiters, same) { // another set may have the same hash
		q = newQueue(sum, limiters...)
		if c.sets.all == nil {
			c.sets.all = map[uint64]*queue{}
		}
		c.sets.all[sum] = q
	}
	q.mu.Lock()
	if r.Kind == schedule.Wait {
		r.hold(q)
	}
	return q
}

func same(a, b *Limiter) bool { return a.Key() == b.Key() && a.settings == b.settings }

// hold adds the keeps of a request of a set. The limiters take no permits ahead while it waits.
func (r *request) hold(set *queue) {
	for i, l := range set.limiters {
		q := l.client.enter(l)
		k := keep{&schedule.Keep{N: r.Of(i), Owner: set.set}, q}
		q.schedule.Hold(k.Keep)
		q.ledger.Bar()
		q.mu.Unlock()
		r.keeps = append(r.keeps, k)
	}
}

// dropKeeps takes away the keeps of a request of a set, which has left or was served by a call that
// was sent at a time.
func (r *request) dropKeeps(served time.Time) {
	for _, k := range r.keeps {
		k.queue.mu.Lock()
		k.queue.schedule.Drop(k.Keep, served)
		k.queue.ledger.Unbar()
		k.queue.exit()
	}
	r.keeps = nil
}

// lookInFront tells the waiting requests of a set what callers in front of them wait for at each
// limiter.
func (q *queue) lookInFront(now time.Time) {
	var waiting []*request
	for r := range q.schedule.Line() {
		waiting = append(waiting, r.Owner.(*request))
		r.Front = nil
	}
	if len(waiting) == 0 {
		return
	}
	for i := range q.limiters {
		keeps := make([]*schedule.Keep, len(waiting))
		for at, r := range waiting {
			keeps[at] = r.keeps[i].Keep
		}
		of := waiting[0].keeps[i].queue
		of.mu.Lock()
		front := of.schedule.InFront(keeps, now)
		of.mu.Unlock()
		for at, n := range front {
			if n == 0 {
				continue
			}
			r := waiting[at]
			if r.Front == nil {
				r.Front = make([]int64, len(q.limiters))
			}
			r.Front[i] = n
		}
	}
}

// dateKeeps tells the keeps of a set from when on they count: an interval before the permits of all
// other limiters are free, which grant no more than their rate to the line in an interval.
func (q *queue) dateKeeps(g *protocol.Reply) {
	if !q.isSet() || g.Local() {
		return
	}
	sums := make([]int64, len(q.limiters)) // of the line, up to r
	for r := range q.schedule.Line() {
		r := r.Owner.(*request)
		for i := range sums {
			sums[i] += r.keeps[i].N
		}
		for i, k := range r.keeps {
			var from time.Time
			for other := range sums {
				m := g.Of(other)
				rounds := (sums[other] - 1) / max(m.Rate, 1)
				free := r.FreeAt(other)
				if at := free.Add(time.Duration(rounds)*m.Interval - g.Of(i).Interval); other != i && !free.IsZero() &&
					at.After(from) {
					from = at
				}
			}
			k.queue.mu.Lock()
			k.From = from
			k.queue.mu.Unlock()
		}
	}
}

// setsBehind returns the sets that have a request which waits for the limiter of q.
func (q *queue) setsBehind() (sets []uint64) {
	for _, k := range q.schedule.Keeps() {
		if set := k.Owner.(uint64); !slices.Contains(sets, set) {
			sets = append(sets, set)
		}
	}
	return sets
}

// forget drops the queue of a set if nobody uses it.
func (s *sets) forget(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.idle() && s.all[q.set] == q {
		delete(s.all, q.set)
	}
}

// list returns the chosen queues of sets.
func (s *sets) list(chosen func(*queue) bool) (found []*queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.all {
		if chosen(q) {
			found = append(found, q)
		}
	}
	return found
}

// wakeSets tells the queues of some sets what has happened.
func (c *Client) wakeSets(sets []uint64, event func(*schedule.Queue)) {
	if len(sets) == 0 {
		return
	}
	tell(c.sets.list(func(q *queue) bool { return slices.Contains(sets, q.set) }), event)
}

// ServeAll answers a request to several limiters, from their leases or else by one script: all of
// them grant, or none does. leased reports whether the leases granted. There are as many results as
// limiters, also if the request ends without a reply. An error about one limiter is a
// schedule.MemberError. A grant fills in the sources; after an error the caller must not use them
// again, since giving back may go on in the background.
func (c *Client) ServeAll(
	ctx context.Context, permits []int64, a *Ask, limiters []*Limiter,
) (results []Result, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if results, ok := c.allFromLeases(permits, limiters, a.Sources); ok {
		return results, true, nil
	}
	a.N, a.Rest = permits[0], permits[1:]
	r := c.newRequest(ctx, a, schedule.Try)
	if a.Waits {
		c.waits(ctx, r)
	}
	outcome, err := c.enterSet(limiters, r).serve(ctx, r)
	if err != nil {
		return nil, false, err
	}
	results = make([]Result, len(limiters))
	for i := range results {
		results[i] = outcome.Of(i).Result
	}
	return results, false, nil
}
