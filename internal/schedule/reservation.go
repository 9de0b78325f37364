package schedule

import (
	"math"
	"slices"
	"time"
)

// reservation.go keeps order between callers of one limiter and callers of sets of limiters that
// contain it. A request of a set waits in the queue of the set, and has a Reservation in the queue
// of each of its limiters. The rules:
//
//   - Callers that wait for permits of a limiter have one order, that of their arrival.
//   - A call for a caller leaves free what those in front of it wait for.
//   - A request that waits for another limiter until a later time leaves the permits of this one to
//     those behind it, until an interval before: a permit that they take by then is back in time.
//   - Until the first reply to a request, that time is not known, and its permits are kept free. So
//     those behind it are not refused: they are asked for again once it is known.
//   - What is kept free changes only by the events of the queue that has the reservation: Reserve,
//     Redate and Unreserve.
//
// Nothing is reserved in Redis: what is kept is an argument of each call. So a limiter may idle for
// one request of a set, with no more permits than that wants, for at most one interval.

// A Reservation is what a request of a set waits for at one of its limiters.
type Reservation struct {
	N int64 // permits
	// the set: its own requests are no reason to keep permits free of each other
	Owner any

	place int64     // in the order of arrival
	from  time.Time // they are kept free from then on; zero: not known yet, so they are
}

// counts reports whether the permits are kept free at a time.
func (res *Reservation) counts(now time.Time) bool { return now.After(res.from) }

// Reserve adds a reservation behind all requests that wait. after is that of the request in front
// in the same set; nil: there is none. The new one does not count earlier.
func (q *Queue) Reserve(res, after *Reservation) {
	q.line.places++
	res.place = q.line.places
	if after != nil {
		res.from = after.from
	}
	q.reservations = append(q.reservations, res)
	q.ledger.End()
}

// Redate notes that a reservation counts from a time on. It reports whether requests behind it are
// to be asked for again, here and in the queues of other sets: they have waited for this date, or
// less is kept free of them now.
func (q *Queue) Redate(res *Reservation, from, now time.Time) (news bool) {
	news = res.from.IsZero() || res.counts(now) && !now.After(from)
	res.from = from
	if news && q.line.rear != nil && q.line.rear.place > res.place {
		q.change()
	}
	return news
}

// Unreserve takes away a reservation: its request has left or, by a call that was sent at a time,
// has its permits. Like Redate, it reports whether requests behind it are to be asked for again.
func (q *Queue) Unreserve(res *Reservation, served time.Time) (news bool) {
	at := slices.Index(q.reservations, res)
	q.reservations = slices.Delete(q.reservations, at, at+1)
	if news = served.IsZero() || res.from.IsZero(); news {
		q.Freed()
	} else {
		q.Overlapped(served)
	}
	return news
}

// Freed notes that fewer permits may be kept free of the waiting requests than before.
func (q *Queue) Freed() {
	if q.line.length > 0 {
		q.change()
	}
}

// Overlapped notes that another queue was granted permits of a limiter of this one, by a call that
// was sent at a time. If a call of this queue was in flight meanwhile, Redis may have executed it
// later, and then left free what had been granted: it is made again.
func (q *Queue) Overlapped(sent time.Time) {
	if q.line.length > 0 && (q.inFlight != nil || q.detached > 0 || !q.answered.Before(sent)) {
		q.change()
	}
}

// Reserved returns how many permits requests of sets wait for at a time.
func (q *Queue) Reserved(now time.Time) int64 {
	n, _ := q.reserved(now, 0, math.MaxInt64)
	return n
}

// Reservations returns the reservations of requests of sets.
func (q *Queue) Reservations() []*Reservation { return q.reservations }

// Behind reports whether res is behind another reservation, and of another set.
func (res *Reservation) Behind(other *Reservation) bool {
	return res.place > other.place && res.Owner != other.Owner
}

// A Front is what callers wait for in front of a request.
type Front struct {
	Permits int64
	Undated bool // it is not known from when on some of them count
}

// InFront returns, for each of some reservations in order, what callers wait for that are behind
// the reservation before it and in front of this one, at a time. It counts other reservations, but
// not those of the same owner.
func (q *Queue) InFront(reservations []*Reservation, now time.Time) []Front {
	front := make([]Front, len(reservations))
	r, others := q.line.first, q.reservations
	for i, res := range reservations {
		for ; r != nil && r.place < res.place; r = r.next {
			front[i].Permits += r.N
		}
		for ; len(others) > 0 && others[0].place < res.place; others = others[1:] {
			if other := others[0]; other.Owner != res.Owner && other.counts(now) {
				front[i].Permits += other.N
				front[i].Undated = front[i].Undated || other.from.IsZero()
			}
		}
	}
	return front
}

// reserved returns how many permits requests of sets wait for at a time that are behind a place and
// in front of another one, and whether it is not known from when on some of them count.
func (q *Queue) reserved(now time.Time, behind, front int64) (n int64, undated bool) {
	for _, res := range q.reservations {
		if res.place > behind && res.place < front && res.counts(now) {
			n += res.N
			undated = undated || res.from.IsZero()
		}
	}
	return n, undated
}
