package schedule

import (
	"math"
	"slices"
	"time"
)

// keep.go keeps order between callers of one limiter and callers of sets of limiters that contain
// it. A request of a set waits in the queue of the set, and has a Keep in the queue of each of its
// limiters. The rules:
//
//   - Callers that wait for permits of a limiter have one order, that of their arrival.
//   - A call for a caller leaves free what those in front of it wait for.
//   - A request that waits for another limiter until a later time leaves the permits of this one to
//     those behind it, until an interval before: a permit that they take by then is back in time.
//   - Until the first reply to a request, that time is not known, and its permits are kept free. So
//     those behind it are not refused: they are asked for again once it is known.
//   - What is kept free changes only by the events of the queue that has the keep: Hold, Redate and
//     Drop.
//
// Nothing is reserved in Redis: what is kept is an argument of each call. So a limiter may idle for
// one request of a set, with no more permits than that wants, for at most one interval.

// A Keep is what a request of a set waits for at one of its limiters.
type Keep struct {
	N int64 // permits
	// the set: its own requests are no reason to keep permits free of each other
	Owner any

	place int64     // in the order of arrival
	from  time.Time // they are kept free from then on; zero: not known yet, so they are
}

// counts reports whether the permits are kept free at a time.
func (k *Keep) counts(now time.Time) bool { return now.After(k.from) }

// Hold adds a keep behind all requests that wait. after is that of the request in front in the
// same set; nil: there is none. The new one does not count earlier.
func (q *Queue) Hold(k, after *Keep) {
	q.line.places++
	k.place = q.line.places
	if after != nil {
		k.from = after.from
	}
	q.keeps = append(q.keeps, k)
	q.ledger.End()
}

// Redate notes that a keep counts from a time on. It reports whether requests behind it are to be
// asked for again, here and in the queues of other sets: they have waited for this date, or less is
// kept free of them now.
func (q *Queue) Redate(k *Keep, from, now time.Time) (news bool) {
	news = k.from.IsZero() || k.counts(now) && !now.After(from)
	k.from = from
	if news && q.line.rear != nil && q.line.rear.place > k.place {
		q.change()
	}
	return news
}

// Drop takes away a keep: its request has left or, by a call that was sent at a time, has its
// permits. Like Redate, it reports whether requests behind it are to be asked for again.
func (q *Queue) Drop(k *Keep, served time.Time) (news bool) {
	at := slices.Index(q.keeps, k)
	q.keeps = slices.Delete(q.keeps, at, at+1)
	if news = served.IsZero() || k.from.IsZero(); news {
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

// Kept returns how many permits requests of sets wait for at a time.
func (q *Queue) Kept(now time.Time) int64 {
	n, _ := q.kept(now, 0, math.MaxInt64)
	return n
}

// Keeps returns the keeps of requests of sets.
func (q *Queue) Keeps() []*Keep { return q.keeps }

// Behind reports whether k is behind another keep, and of another set.
func (k *Keep) Behind(other *Keep) bool { return k.place > other.place && k.Owner != other.Owner }

// A Front is what callers wait for in front of a request.
type Front struct {
	Permits int64
	Undated bool // it is not known from when on some of them count
}

// InFront returns, for each of some keeps in order, what callers wait for that are behind the keep
// before it and in front of this one, at a time. It counts other keeps, but not those of the same
// owner.
func (q *Queue) InFront(keeps []*Keep, now time.Time) []Front {
	front := make([]Front, len(keeps))
	r, others := q.line.first, q.keeps
	for i, k := range keeps {
		for ; r != nil && r.place < k.place; r = r.next {
			front[i].Permits += r.N
		}
		for ; len(others) > 0 && others[0].place < k.place; others = others[1:] {
			if other := others[0]; other.Owner != k.Owner && other.counts(now) {
				front[i].Permits += other.N
				front[i].Undated = front[i].Undated || other.from.IsZero()
			}
		}
	}
	return front
}

// kept returns how many permits requests of sets wait for at a time that are behind a place and in
// front of another one, and whether it is not known from when on some of them count.
func (q *Queue) kept(now time.Time, behind, front int64) (n int64, undated bool) {
	for _, k := range q.keeps {
		if k.place > behind && k.place < front && k.counts(now) {
			n += k.N
			undated = undated || k.from.IsZero()
		}
	}
	return n, undated
}
