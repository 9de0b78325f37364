package dispatch

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

func TestLastCall(t *testing.T) {
	for _, c := range []struct {
		name            string
		free, end, took time.Duration // since a time
		at              time.Duration
	}{
		{"the time of two calls and 5 ms in hand", 0, 100 * ms, 2 * ms, 91 * ms},
		{"no call was made yet", 0, 100 * ms, 0, 95 * ms},
		{"half of a short rest", 0, 6 * ms, 0, 3 * ms},
		{"half of a short rest and two calls", 0, 6 * ms, ms, ms},
		{"no time for two calls", 0, 6 * ms, 3 * ms, 0},
		{"slow calls", 10 * ms, 100 * ms, time.Second, 10 * ms},
		{"the permits return at the end", 100 * ms, 100 * ms, 0, 100 * ms},
	} {
		start := time.UnixMilli(1_700_000_000_000)
		if at := lastCall(start.Add(c.free), start.Add(c.end), c.took).Sub(start); at != c.at {
			t.Errorf("%s: free at %v, end at %v, calls of %v: %v, expected %v", c.name, c.free, c.end, c.took, at, c.at)
		}
	}
}

// A queue of callers for some permits each, whose permits are free and who leave at a time.
type leaving struct {
	n         int64
	free, end time.Duration // end 0: not known
	inFlight  bool
}

// refused adds a caller that was refused, or is in flight.
func (q *queue) refused(caller leaving, start time.Time) *request {
	r := &request{Ask: Ask{N: caller.n, Waits: true}, prev: q.last, free: start.Add(caller.free), state: requestRefused}
	if caller.inFlight {
		r.state = requestInFlight
	}
	if caller.end != 0 {
		r.end = start.Add(caller.end)
	}
	if q.last = r; r.prev == nil {
		q.first = r
	} else {
		r.prev.next = r
	}
	q.waiting++
	return r
}

func TestLastCallsOfAQueue(t *testing.T) {
	start := time.UnixMilli(1_700_000_000_000)
	for _, c := range []struct {
		name    string
		before  time.Duration
		callers []leaving
		last    []int         // callers with a last call
		soonest time.Duration // of 1 s
	}{
		{"nobody leaves", time.Second, []leaving{{n: 1}, {n: 1}}, nil, time.Second},
		{"the first one", time.Second, []leaving{{n: 1, end: 100 * ms}}, []int{0}, 95 * ms},
		{"too late to matter", 90 * ms, []leaving{{n: 1, end: 100 * ms}}, nil, 95 * ms},
		{"behind one that stays", time.Second, []leaving{{n: 1}, {n: 1, end: 100 * ms}}, []int{1}, 95 * ms},
		{"the last one leaves first", time.Second, []leaving{{n: 1, end: 200 * ms}, {n: 1, end: 100 * ms}}, []int{0, 1}, 95 * ms},
		{"not before the permits of those in front are free", time.Second, []leaving{{n: 1, free: 98 * ms}, {n: 1, end: 100 * ms}}, []int{1}, 99 * ms},
		{"those in front get theirs later", time.Second, []leaving{{n: 1, free: 100 * ms}, {n: 1, end: 100 * ms}}, nil, time.Second},
		{"more than the rate for all", time.Second, []leaving{{n: 6, end: 200 * ms}, {n: 5, end: 100 * ms}}, []int{0}, 195 * ms},
		{"more than the rate alone", time.Second, []leaving{{n: 11, end: 100 * ms}}, []int{0}, 95 * ms},
		{"one in flight is left out", time.Second, []leaving{{n: 10, end: 50 * ms, inFlight: true}, {n: 1, end: 100 * ms}}, []int{1}, 95 * ms},
	} {
		q := newQueue(newLimiter())
		q.rate = 10
		var all []*request
		for _, caller := range c.callers {
			r := q.refused(caller, start)
			all = append(all, r)
		}
		var last []int
		for r := range q.lastCalls(start.Add(c.before)) {
			last = append(last, slices.Index(all, r))
		}
		if soonest := q.soonest(start.Add(time.Second)).Sub(start); !slices.Equal(last, c.last) || soonest != c.soonest {
			t.Errorf("%s: last calls of %v, the soonest at %v; expected %v, %v", c.name, last, soonest, c.last, c.soonest)
		}
	}
}

// If many callers leave at once, the first of them and the pause after it cost a walk through the queue each. The last call of a
// caller behind them, which becomes possible with the last of them, is not missed.
func TestCallersThatLeaveShareWalks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, start := newQueue(newLimiter()), time.Now()
		q.mu.Lock()
		q.rate = 10
		q.refused(leaving{n: 1}, start)
		var front []*request
		for range 10_000 {
			front = append(front, q.refused(leaving{n: 1}, start))
		}
		q.refused(leaving{n: 1, end: 100 * ms}, start)
		q.set(time.Hour)
		for _, r := range front {
			q.drop(r)
		}
		if !q.walkDue || q.asksAt.Sub(start) != time.Hour {
			t.Errorf("another walk is due: %v; the queue asks after %v", q.walkDue, q.asksAt.Sub(start))
		}
		q.mu.Unlock()
		time.Sleep(walkPause)
		synctest.Wait()
		q.mu.Lock()
		if at := q.asksAt.Sub(start); q.walkDue || at != 95*ms {
			t.Errorf("another walk is due: %v; the queue asks after %v", q.walkDue, at)
		}
		q.stop()
		q.mu.Unlock()
	})
}
