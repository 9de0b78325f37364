package schedule

import (
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
//   - What is kept free grows with time, as reservations begin to count. Apart from that it changes
//     only by the events of the queue that has the reservations: Reserve and Hear.
//
// Nothing is reserved in Redis: what is kept is an argument of each call. So a limiter may idle for
// one request of a set, with no more permits than that wants, for at most one interval.

// A Reservation is what a request of a set waits for at one of its limiters.
type Reservation struct {
	N int64 // permits
	// the set: its requests keep no permits from each other
	Owner any

	place int64     // in the order of arrival; 0: it was taken away
	from  time.Time // they are kept free after that; zero: it is not known yet, so they are
	dated int64     // number of the batch of the set whose reply has told that
}

// counts reports whether the permits are kept free at a time.
func (res *Reservation) counts(now time.Time) bool { return now.After(res.from) }

// Reserve adds a reservation behind all requests that wait. after is that of the request in front
// in the same set; nil: there is none. The new one does not count earlier.
func (q *Queue) Reserve(res, after *Reservation) {
	q.line.places++
	res.place = q.line.places
	if after != nil {
		res.from, res.dated = after.from, after.dated
	}
	q.reservations = append(q.reservations, res)
	q.ledger.End()
}

// redate notes from when on reservations count. Requests behind one of them are asked for again,
// here and in the queues of other sets, if they have waited for its date, or fewer permits are kept
// from them now. One that counts goes on to count if its new date is shortly to come: as long as
// the permits of another limiter have just been taken, each reply names a date that has almost
// come, and two sets would make each other ask without end.
func (q *Queue) redate(dates []Date, now time.Time) {
	var first *Reservation // of which the date is news
	for _, d := range dates {
		res, from := d.Reservation, d.From
		if d.number < res.dated || res.place == 0 { // a later reply has told it, or the request has left
			continue
		}
		if wait := from.Sub(now); !res.from.IsZero() && res.counts(now) && wait >= 0 && wait < timerSlack {
			from = res.from
		}
		news := res.from.IsZero() || res.counts(now) && !now.After(from)
		res.dated, res.from = d.number, from
		if news && first == nil {
			first = res
		}
	}
	if first != nil {
		q.outdateBehind(first, time.Time{})
	}
}

// unreserve takes away a reservation. Like redate, it lets requests behind it be asked for again.
func (q *Queue) unreserve(res *Reservation, served time.Time) {
	at := slices.Index(q.reservations, res)
	q.reservations = slices.Delete(q.reservations, at, at+1)
	if res.from.IsZero() { // what was behind it had to wait
		served = time.Time{}
	}
	q.outdateBehind(res, served)
	res.place = 0
}

// outdateBehind notes that fewer permits are kept from the requests behind a reservation: calls for
// these are outdated, here and in the queues of other sets.
func (q *Queue) outdateBehind(res *Reservation, since time.Time) {
	if q.line.rear != nil && q.line.rear.place > res.place {
		q.Outdated(since)
	}
	q.outdate(res.place, res.Owner, since)
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
			front[i].Permits += r.all()
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
