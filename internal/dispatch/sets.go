package dispatch

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// sets.go asks several limiters that grant together: a set of limiters has a queue, as one limiter
// has. A waiting request of a set has a schedule.Reservation in the queue of each limiter of the
// set, so that all who wait for a limiter keep their order.

// sets holds the queues of sets: those in use, and a few that were used recently.
type sets struct {
	// guards the fields below, and the order of reservations: requests have the same one at all
	// limiters
	mu  sync.Mutex
	all map[uint64]*queue
	spares
}

// setSeed seeds the hashes of sets.
var setSeed = maphash.MakeSeed()

// enterSet returns the queue of some limiters, locked. exit unlocks it. If r waits, its
// reservations are added.
func (c *Client) enterSet(limiters []*Limiter, r *request) *queue {
	last := limiters[0].set.Load()
	if last != nil && r.Kind != schedule.Wait && slices.Equal(last.limiters, limiters) && last.lock() {
		return last
	}
	var hash maphash.Hash
	hash.SetSeed(setSeed)
	for _, l := range limiters {
		maphash.WriteComparable(&hash, queueKey{l.Key(), l.Settings})
	}
	sum := hash.Sum64()
	c.sets.mu.Lock()
	defer c.sets.mu.Unlock()
	q := c.sets.all[sum]
	if q == nil || !slices.EqualFunc(q.limiters, limiters, same) { // another set may have the same hash
		q = c.sets.queueOf(sum, limiters)
		if c.sets.all == nil {
			c.sets.all = map[uint64]*queue{}
		}
		c.sets.all[sum] = q
	}
	q.lock()
	limiters[0].set.Store(q)
	if r.Kind == schedule.Wait {
		r.reserve(q)
	}
	return q
}

func same(a, b *Limiter) bool { return a.Key() == b.Key() && a.Settings == b.Settings }

// reserve adds the reservations of a request of a set. The limiters take no permits ahead while it
// waits.
func (r *request) reserve(set *queue) {
	for i, l := range set.limiters {
		res := &schedule.Reservation{N: *r.Permits.Of(i), Owner: set}
		l.look(func(q *queue) {
			q.schedule.Reserve(res, set.schedule.LastReservation(i))
			q.giveBackLater(q.ledger.Leftovers()) // what else follows can wait
		})
		r.Reservations = append(r.Reservations, res)
	}
}

// tell lets other queues know what has happened at q: first all limiters of a set, and then the
// sets behind it.
func (q *queue) tell(fx *schedule.Effects) {
	outdated := fx.Outdated
	for _, n := range fx.Tell {
		l := q.client.enter(q.limiters[n.Limiter])
		l.schedule.Hear(q.client.Moment(), n)
		outdated = append(outdated, l.exitAlone(context.Background(), nil).Outdated...)
	}
	for _, o := range schedule.Merged(outdated) {
		o.Set.(*queue).event(func(set *schedule.Queue) { set.Outdated(o.Since) })
	}
}

// queueOf returns a new queue of a set.
func (s *sets) queueOf(set uint64, limiters []*Limiter) *queue {
	settings := schedule.SetSettings{
		InFront: func(i int, reservations []*schedule.Reservation, now time.Time) (front []schedule.Front) {
			limiters[i].look(func(q *queue) { front = q.schedule.InFront(reservations, now) })
			return front
		},
	}
	for i, l := range limiters {
		if l.Settings.Lease > 0 {
			settings.Lending = append(settings.Lending, i)
		}
	}
	return newQueue(setTable{s, set}, schedule.Settings{Set: settings}, limiters...)
}

// An allowAllBody is the body of a batch for several limiters.
type allowAllBody struct {
	limiter.AllowAll
	limiters []*Limiter
}

func (b *allowAllBody) prepare(of *batch) {
	q := of.queue
	b.limiters, b.Failed = q.limiters, -1
	b.Request.Next(len(q.limiters), &of.Ask)
	for i, l := range q.limiters {
		part := &b.Request.Parts[i]
		part.Encoder, part.Rebuild = l.Encoder(), q.schedule.Rebuild(i)
		part.Check, part.Free = l.Unchecked()
	}
}

func (b *allowAllBody) checks(i int) bool { return b.Request.Parts[i].Check }
func (b *allowAllBody) granted()          {}

// Enforce sets the own rate of the limiter that refused.
func (b *allowAllBody) Enforce(ctx context.Context, _ *script.Attempts) error {
	b.Request.Parts[b.Failed].Sets++
	return b.limiters[b.Failed].Enforce(ctx)
}

// A setTable is the table of sets as one of them sees it.
type setTable struct {
	*sets
	set uint64 // which one
}

// body returns the body of a batch for several limiters.
func (setTable) body(b *batch) batchBody { return &b.joint }

// idle parks the queue of a set.
func (t setTable) idle(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.park(q)
	if out == nil {
		return
	}
	out.limiters[0].set.CompareAndSwap(out, nil)
	if hash := out.table.(setTable).set; t.all[hash] == out {
		delete(t.all, hash)
	}
}

// ServeAll answers a request to several limiters, from their leases or else by one script: all of
// them grant, or none does. leased reports whether the leases granted. There are as many results as
// limiters, also if the request ends without a reply. An error about one limiter is a
// schedule.MemberError. A grant fills in the sources.
func (c *Client) ServeAll(
	ctx context.Context, permits []int64, a *Ask, limiters []*Limiter,
) (results []Result, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if results, ok := c.allFromLeases(permits, limiters, a.Sources); ok {
		return results, true, nil
	}
	r := c.newRequest(ctx, a, schedule.Try)
	r.Permits = protocol.Permits{First: permits[0], Rest: permits[1:]}
	outcome, err := c.enterSet(limiters, r).serve(ctx, r)
	if err != nil {
		return nil, false, err
	}
	return outcome.Results(len(limiters)), false, nil
}
