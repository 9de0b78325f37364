package schedule

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// sets.go has what the queue of a set tells the queues of its limiters, and what these tell the
// sets that wait for them. A queue changes no other one: it says what has happened (Effects.Tell
// and Effects.Outdated), and that is an event of the other queue.

// SetSettings are what the Queue of a set knows of its limiters.
type SetSettings struct {
	Lending []int // those that have leases
	// returns what Queue.InFront of one of them does; nil: nobody is in front
	InFront func(limiter int, reservations []*Reservation, now time.Time) []Front
}

// A Notice is an event for the queue of one limiter of the set that tells it. One of Dates, Ended
// and Tally is set.
type Notice struct {
	Limiter int // numbered from 0
	Dates   []Date
	// its request has left or, by a call that was sent at Served, has its permits
	Ended  *Reservation
	Served time.Time // zero: it has left
	// what a call for the set came to at the limiter, which has leases: the call itself takes none
	Tally *Tally
}

// A Date tells from when on a reservation counts, by a reply to a batch.
type Date struct {
	*Reservation
	From   time.Time
	number int64 // of the batch
}

// An Outdated is an event for the queue of a set: see Queue.Outdated.
type Outdated struct {
	Set   any // Reservation.Owner
	Since time.Time
}

// Merged merges the events of each set into one, which is outdated since the earliest time.
func Merged(all []Outdated) (merged []Outdated) {
	places := make(map[any]int, len(all))
	for _, o := range all {
		at, known := places[o.Set]
		switch {
		case !known:
			places[o.Set] = len(merged)
			merged = append(merged, o)
		case o.Since.Before(merged[at].Since):
			merged[at].Since = o.Since
		}
	}
	return merged
}

// Hear notes what a set tells the queue of one of its limiters.
func (q *Queue) Hear(m Moment, n Notice) {
	switch {
	case n.Ended != nil:
		q.unreserve(n.Ended, n.Served)
	case n.Dates != nil:
		q.redate(n.Dates, m.Clock)
	default:
		q.jointCall(m, *n.Tally)
	}
}

// Outdated notes that the calls of a set which were in flight at a time, or were sent later, may
// have left permits free for callers that do not need them any more: these have left, or were
// granted them by another call. So if there was such a call, the next one is due. The zero time:
// all calls so far.
func (q *Queue) Outdated(since time.Time) {
	if q.line.length > 0 && (q.inFlight != nil || q.detached > 0 || !q.answered.Before(since)) {
		q.change()
	}
}

// outdate tells other sets than owner that their calls are outdated, if they have a request behind
// a place.
func (q *Queue) outdate(place int64, owner any, since time.Time) {
	for _, res := range q.reservations {
		if res.place > place && res.Owner != owner {
			q.effects.Outdated = append(q.effects.Outdated, Outdated{res.Owner, since})
		}
	}
}

// tellOthers tells other queues what became of the waiting requests of a batch.
func (q *Queue) tellOthers(b *Batch) {
	served, left := int64(math.MaxInt64), int64(math.MaxInt64) // places of the first of them
	for _, r := range b.Settled {
		switch {
		case r.Kind != Wait:
		case r.Outcome.First.Allowed:
			q.release(r, b.started)
			served = min(served, r.place)
		default:
			q.release(r, time.Time{})
			left = min(left, r.place)
		}
	}
	q.outdate(served, nil, b.started)
	q.outdate(left, nil, time.Time{})
}

// release tells the limiters of a set that a request waits no longer: it has its permits, by a call
// that was sent at served, or has left (the zero time).
func (q *Queue) release(r *Request, served time.Time) {
	for i, res := range r.Reservations {
		q.effects.Tell = append(q.effects.Tell, Notice{Limiter: i, Ended: res, Served: served})
	}
	r.Reservations = nil
}

// tellTallies tells the limiters of a set that have leases what a call came to.
func (q *Queue) tellTallies(f *Facts) {
	for _, i := range q.settings.Set.Lending {
		tally := *f.Of(i)
		q.effects.Tell = append(q.effects.Tell, Notice{Limiter: i, Tally: &tally})
	}
}

// lookInFront asks the limiters of a set what callers in front of its waiting requests wait for.
func (q *Queue) lookInFront(now time.Time) {
	if q.settings.Set.InFront == nil || q.line.length == 0 {
		return
	}
	for i := range q.settings.Limiters {
		var reservations []*Reservation
		for r := range q.Line() {
			reservations = append(reservations, r.Reservations[i])
		}
		r := q.line.first
		for _, f := range q.settings.Set.InFront(i, reservations, now) {
			if i == 0 {
				r.front = inFront{}
			}
			if f.Permits > 0 {
				permits := protocol.Same(q.settings.Limiters, int64(0))
				*permits.Of(i) = f.Permits
				r.front.add(inFront{permits, f.Undated})
			}
			r = r.next
		}
	}
}

// date tells the limiters of a set, after a reply, from when on the reservations of its waiting
// requests count, as far as that is known. At one limiter, that is an interval (of this limiter)
// before the request can have its permits of all others: not before those in front have theirs, and
// in an interval, the line is granted no more than the rate.
func (q *Queue) date(b *Batch, g *protocol.Reply) {
	if q.line.rear == nil || q.line.rear.Reservations == nil {
		return
	}
	for limiter := range q.settings.Limiters {
		if dates := q.dates(limiter, b.number, g); dates != nil {
			q.effects.Tell = append(q.effects.Tell, Notice{Limiter: limiter, Dates: dates})
		}
	}
}

// dates returns the dates of the reservations at one limiter that are known.
func (q *Queue) dates(limiter int, number int64, g *protocol.Reply) (dates []Date) {
	sums := make([]int64, q.settings.Limiters)     // of the line, up to r
	free := make([]time.Time, q.settings.Limiters) // the latest one of these; zero: not known
	for r := range q.Line() {
		var from time.Time
		for other := range q.settings.Limiters {
			if other == limiter {
				continue
			}
			sums[other] += *r.Permits.Of(other)
			free[other] = latest(free[other], r.FreeAt(other))
			rounds := time.Duration((sums[other] - 1) / max(g.Of(other).Rate, 1))
			if !free[other].IsZero() {
				from = latest(from, free[other].Add(rounds*g.Of(other).Interval-g.Of(limiter).Interval))
			}
		}
		if from.IsZero() { // it has no reply yet
			continue
		}
		dates = append(dates, Date{r.Reservations[limiter], from, number})
	}
	return dates
}
