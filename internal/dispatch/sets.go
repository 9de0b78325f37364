package dispatch

import (
	"context"
	"hash/maphash"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// sets.go asks several limiters that grant together: a set of limiters has a queue, as one limiter
// has. A waiting request of a set has a schedule.Reservation in the queue of each limiter of the
// set, so that all who wait for a limiter keep their order.

// sets holds the queues of sets that have callers.
type sets struct {
	// guards the field below, and the order of reservations: requests have the same one at all
	// limiters
	mu  sync.Mutex
	all map[uint64]*queue
}

// A reservation is a schedule.Reservation in the queue of one limiter.
type reservation struct {
	*schedule.Reservation
	queue *queue
}

// enterSet returns the queue of some limiters, locked. exit unlocks it. If r waits, its
// reservations are added.
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
		r.reserve(q)
	}
	return q
}

func same(a, b *Limiter) bool { return a.Key() == b.Key() && a.settings == b.settings }

// reserve adds the reservations of a request of a set. The limiters take no permits ahead while it
// waits.
func (r *request) reserve(set *queue) {
	var front []reservation // of the request in front
	if last := set.schedule.Last(); last != nil {
		front = last.Owner.(*request).reservations
	}
	for i, l := range set.limiters {
		q := l.client.enter(l)
		res := reservation{&schedule.Reservation{N: r.Of(i), Owner: set.set}, q}
		var after *schedule.Reservation
		if front != nil {
			after = front[i].Reservation
		}
		q.schedule.Reserve(res.Reservation, after)
		q.client.lender.giveBackLater(q, q.ledger.Returns()) // what else follows can wait
		q.mu.Unlock()
		r.reservations = append(r.reservations, res)
	}
}

// unreserve takes away the reservations of a request of a set, which has left or was served by a
// call that was sent at a time. The queues that have requests behind it look again.
func (r *request) unreserve(served time.Time) {
	if len(r.reservations) == 0 {
		return
	}
	client, sets, freed := r.reservations[0].queue.client, []uint64(nil), false
	for _, res := range r.reservations {
		res.queue.event(func(s *schedule.Queue) {
			freed = s.Unreserve(res.Reservation, served) || freed
			sets = append(sets, res.queue.setsBehind(res.Reservation)...)
		})
	}
	r.reservations = nil
	client.wakeSets(sets, func(set *schedule.Queue) {
		if freed {
			set.Freed()
		} else {
			set.Overlapped(served)
		}
	})
}

// lookInFront tells the waiting requests of a set what callers in front of them wait for at each
// limiter.
func (q *queue) lookInFront(now time.Time) {
	var waiting []*request
	for r := range q.schedule.Line() {
		waiting = append(waiting, r.Owner.(*request))
		r.Front, r.Undated = nil, false
	}
	if len(waiting) == 0 {
		return
	}
	for i := range q.limiters {
		reservations := make([]*schedule.Reservation, len(waiting))
		for at, r := range waiting {
			reservations[at] = r.reservations[i].Reservation
		}
		var front []schedule.Front
		waiting[0].reservations[i].queue.look(func(s *schedule.Queue) { front = s.InFront(reservations, now) })
		for at, f := range front {
			if f.Permits == 0 {
				continue
			}
			r := waiting[at]
			if r.Front == nil {
				r.Front = make([]int64, len(q.limiters))
			}
			r.Front[i] = f.Permits
			r.Undated = r.Undated || f.Undated
		}
	}
}

// redate tells the queues of the limiters, after a reply to the set, from when on the reservations
// of its waiting requests count. They look again if that changes what they keep free now.
func (q *queue) redate(g *protocol.Reply) {
	now := q.client.Clock()
	var again []*queue
	var sets []uint64
	q.look(func(set *schedule.Queue) {
		last := set.Last()
		if last == nil {
			return
		}
		for i, res := range last.Owner.(*request).reservations {
			res.queue.look(func(s *schedule.Queue) {
				var first *schedule.Reservation // of which the date is news
				for res, from := range q.dates(i, g) {
					if s.Redate(res, from, now) && first == nil {
						first = res
					}
				}
				if first != nil {
					again, sets = append(again, res.queue), append(sets, res.queue.setsBehind(first)...)
				}
			})
		}
	})
	for _, of := range again {
		of.event(func(*schedule.Queue) {})
	}
	q.client.wakeSets(sets, (*schedule.Queue).Freed)
}

// dates returns from when on the reservations of a set at one limiter count, as far as replies have
// told that: an interval before the permits of all other limiters are free, which grant no more
// than their rate to the line in an interval. No request has its permits before those in front have
// theirs.
func (q *queue) dates(limiter int, g *protocol.Reply) iter.Seq2[*schedule.Reservation, time.Time] {
	return func(yield func(*schedule.Reservation, time.Time) bool) {
		sums := make([]int64, len(q.limiters))     // of the line, up to r
		free := make([]time.Time, len(q.limiters)) // the latest one of these; zero: not known
		for r := range q.schedule.Line() {
			var from time.Time
			for other := range q.limiters {
				if other == limiter {
					continue
				}
				sums[other] += r.Of(other)
				if at := r.FreeAt(other); at.After(free[other]) {
					free[other] = at
				}
				rounds := time.Duration((sums[other] - 1) / max(g.Of(other).Rate, 1))
				at := free[other].Add(rounds*g.Of(other).Interval - g.Of(limiter).Interval)
				if !free[other].IsZero() && at.After(from) {
					from = at
				}
			}
			if !from.IsZero() && !yield(r.Owner.(*request).reservations[limiter].Reservation, from) {
				return
			}
		}
	}
}

// setsBehind returns the sets that have a request which waits for the limiter of q, behind that of
// a reservation; nil: all of them.
func (q *queue) setsBehind(res *schedule.Reservation) (sets []uint64) {
	for _, other := range q.schedule.Reservations() {
		if res == nil || other.Behind(res) {
			sets = append(sets, other.Owner.(uint64))
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
	if q.schedule.Idle() && s.all[q.set] == q {
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

// wakeSets tells the queues of some sets, which may be listed repeatedly, what has happened.
func (c *Client) wakeSets(sets []uint64, event func(*schedule.Queue)) {
	if len(sets) == 0 {
		return
	}
	slices.Sort(sets)
	queues := make([]*queue, 0, len(sets))
	c.sets.mu.Lock()
	for _, set := range slices.Compact(sets) {
		if q := c.sets.all[set]; q != nil {
			queues = append(queues, q)
		}
	}
	c.sets.mu.Unlock()
	tell(queues, event)
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
