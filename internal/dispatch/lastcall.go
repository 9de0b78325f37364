package dispatch

import (
	"iter"
	"time"
)

// lastcall.go bounds how long a queue leaves free permits to others: no caller leaves without its permits because of that.

// timerSlack is how much later than it should a timer may fire without costing a caller its permits.
const timerSlack = 5 * time.Millisecond

// lastCall returns when a caller asks at the latest for permits that are free from a given time on, if the caller leaves at end
// and calls take so long. The time in hand is that of two calls and timerSlack, or half of the rest of the time if that is
// less: so a caller whose permits other clients take each time asks a few times at most before it leaves.
func lastCall(free, end time.Time, took time.Duration) time.Time {
	at := end.Add(-2*took - min(timerSlack, end.Sub(free)/2))
	if at.Before(free) {
		return free
	}
	return at
}

// lastCalls returns the waiting callers whose last call is before a given time, in order, with these times. It leaves out those
// whose permits will not be free before they leave, behind the callers in front. q.mu is held.
func (q *queue) lastCalls(before time.Time) iter.Seq2[*request, time.Time] {
	return func(yield func(*request, time.Time) bool) {
		var free time.Time // no permits for r are free before
		var sum int64      // for r and the callers in front
		returned := q.fairShare.Returned()
		for r := q.waiter(); r != nil; r = r.next {
			if r.state.inFlight() {
				continue
			}
			if r.free.After(free) {
				free = r.free
			}
			if !free.Before(before) {
				return
			}
			if sum += r.N; sum > max(r.N, q.rate) {
				return
			}
			if !free.Before(r.end) || sum > r.N && returned(q.rate-sum).After(r.end) {
				continue
			}
			if at := lastCall(free, r.end, q.took); at.Before(before) && !yield(r, at) {
				return
			}
		}
	}
}

// soonest returns the given time, or that of an earlier last call. q.mu is held.
func (q *queue) soonest(at time.Time) time.Time {
	for _, last := range q.lastCalls(at) {
		if last.Before(at) {
			at = last
		}
	}
	return at
}

// walkPause is the least time between two walks of hurry through the queue.
const walkPause = time.Millisecond

// hurry sets the timer earlier if a last call is due before it fires. If many callers come or leave at once, they share a walk
// through the queue. q.mu is held.
func (q *queue) hurry() {
	if next := q.waiter(); next == nil || !next.free.Before(q.asksAt) || q.inFlight != nil || q.linger > 0 {
		return
	}
	if wait := walkPause - time.Since(q.walkedAt); wait > 0 {
		if !q.walkDue {
			q.walkDue = true
			time.AfterFunc(wait, func() {
				q.mu.Lock()
				defer q.exit()
				q.walkDue = false
				q.hurry()
			})
		}
		return
	}
	q.walkedAt = time.Now()
	if at := q.soonest(q.asksAt); at.Before(q.asksAt) {
		q.set(at.Sub(q.client.clock()))
	}
}

// lastDue returns the last waiting caller whose last call is due, or will be before a call made now ends; nil: none. q.mu is
// held.
func (q *queue) lastDue(now time.Time) (last *request) {
	for r := range q.lastCalls(now.Add(2*q.took + timerSlack)) {
		last = r
	}
	return last
}
