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
//
// Nothing is reserved in Redis: what is kept is an argument of each call. So a limiter may idle for
// one request of a set, with no more permits than that wants, for at most one interval.

// A Keep is what a request of a set waits for at one of its limiters.
type Keep struct {
	N     int64     // permits
	From  time.Time // until then, they are not kept free
	Owner any       // the set: its own requests are no reason to keep permits free of each other

	place int64 // in the order of arrival
}

// Hold adds a keep behind all requests that wait.
func (q *Queue) Hold(k *Keep) {
	q.line.places++
	k.place = q.line.places
	q.keeps = append(q.keeps, k)
}

// Drop takes away a keep: its request has left or, by a call that was sent at a time, has its
// permits.
func (q *Queue) Drop(k *Keep, served time.Time) {
	at := slices.Index(q.keeps, k)
	q.keeps = slices.Delete(q.keeps, at, at+1)
	if served.IsZero() {
		q.recheck = q.recheck || q.line.length > 0
	} else {
		q.Overlapped(served)
	}
}

// Overlapped notes that another queue was granted permits of a limiter of this one, by a call that
// was sent at a time. If a call of this queue was in flight meanwhile, Redis may have executed it
// later, and then left free what had been granted: it is made again.
func (q *Queue) Overlapped(sent time.Time) {
	q.recheck = q.recheck || q.line.length > 0 && (q.inFlight != nil || q.detached > 0 || !q.answered.Before(sent))
}

// Kept returns how many permits requests of sets wait for at a time.
func (q *Queue) Kept(now time.Time) int64 { return q.kept(now, 0, math.MaxInt64) }

// Keeps returns the keeps of requests of sets.
func (q *Queue) Keeps() []*Keep { return q.keeps }

// InFront returns, for each of some keeps in order, how many permits callers wait for that are
// behind the keep before it and in front of this one, at a time. It counts other keeps, but not
// those of the same owner.
func (q *Queue) InFront(keeps []*Keep, now time.Time) []int64 {
	front := make([]int64, len(keeps))
	r, others := q.line.first, q.keeps
	for i, k := range keeps {
		for ; r != nil && r.place < k.place; r = r.next {
			front[i] += r.N
		}
		for ; len(others) > 0 && others[0].place < k.place; others = others[1:] {
			if others[0].Owner != k.Owner && now.After(others[0].From) {
				front[i] += others[0].N
			}
		}
	}
	return front
}

// kept returns how many permits requests of sets wait for at a time that are behind a place and in
// front of another one.
func (q *Queue) kept(now time.Time, behind, front int64) (n int64) {
	for _, k := range q.keeps {
		if k.place > behind && k.place < front && now.After(k.From) {
			n += k.N
		}
	}
	return n
}
