package schedule

import (
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

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
		if at := lastCallAt(start.Add(c.free), start.Add(c.end), c.took).Sub(start); at != c.at {
			t.Errorf("%s: free at %v, end at %v, calls of %v: %v, expected %v", c.name, c.free, c.end, c.took, at, c.at)
		}
	}
}

// A leaving is a waiting caller for some permits, which are free, and who leaves, at a time.
type leaving struct {
	n         int64
	free, end time.Duration // end 0: not known
	inFlight  bool
}

// newQueue returns the queue of a limiter with a rate of 10, and with waiting requests that were
// refused or are in flight.
func newQueue(callers ...leaving) (*Queue, []*Request) {
	q := New(Settings{Linger: LingerThreshold, Jitter: func(d time.Duration) time.Duration { return 0 }})
	q.rates.First = 10
	var all []*Request
	for _, caller := range callers {
		r := &Request{
			Permits:  protocol.Permits{First: caller.n},
			Kind:     Wait,
			standing: standing{free: start.Add(caller.free), state: Refused},
		}
		if caller.inFlight {
			r.state, r.batch = InFlight, new(Batch)
		}
		if caller.end != 0 {
			r.End = start.Add(caller.end)
		}
		q.line.add(r)
		if caller.inFlight {
			q.line.left(r)
		}
		all = append(all, r)
	}
	return q, all
}

// at returns a moment.
func at(since time.Duration) Moment { return Moment{Clock: start.Add(since), Mono: start.Add(since)} }

func TestLastCallsOfAQueue(t *testing.T) {
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
		{
			"the last one leaves first", time.Second, []leaving{{n: 1, end: 200 * ms}, {n: 1, end: 100 * ms}},
			[]int{0, 1},
			95 * ms,
		},
		{
			"not before the permits of those in front are free", time.Second,
			[]leaving{{n: 1, free: 98 * ms}, {n: 1, end: 100 * ms}}, []int{1}, 99 * ms,
		},
		{
			"those in front get theirs later", time.Second, []leaving{{n: 1, free: 100 * ms}, {n: 1, end: 100 * ms}},
			nil,
			time.Second,
		},
		{
			"more than the rate for all", time.Second, []leaving{{n: 6, end: 200 * ms}, {n: 5, end: 100 * ms}},
			[]int{0},
			195 * ms,
		},
		{"more than the rate alone", time.Second, []leaving{{n: 11, end: 100 * ms}}, []int{0}, 95 * ms},
		{
			"one in flight is left out", time.Second,
			[]leaving{{n: 10, end: 50 * ms, inFlight: true}, {n: 1, end: 100 * ms}},
			[]int{1}, 95 * ms,
		},
	} {
		q, all := newQueue(c.callers...)
		var last []int
		for r := range q.lastCalls(start.Add(c.before)) {
			last = append(last, slices.Index(all, r))
		}
		soonest := q.earlierLastCall(start.Add(time.Second)).Sub(start)
		if !slices.Equal(last, c.last) || soonest != c.soonest {
			t.Errorf("%s: last calls of %v, the soonest at %v; expected %v, %v",
				c.name, last, soonest, c.last, c.soonest)
		}
	}
}

// The permits of a caller are free, and it waits only for the one in front of it. When that leaves,
// it gets its last call, although the permits are left to Redisson.
func TestLastCallBehindOneThatLeaves(t *testing.T) {
	s := newStory(t)
	own := wait(5)
	s.join(own)
	b := s.sends(own)
	s.q.Settle(s.m, b, s.reply(b, 5, 0, 1))
	front, behind := wait(10), wait(1)
	behind.End = start.Add(130 * ms)
	s.join(front, behind)
	b = s.sends(front, behind)
	g := s.reply(b, 5, time.Second, 0, 0)
	g.First.Notes = protocol.ForeignWriter
	s.q.Settle(s.m, b, g)
	s.pass(100 * ms)
	s.q.Leave(front)
	s.sends()
	s.wakes(25 * ms) // 5 ms before behind leaves, and 25 ms before the permits have been left to Redisson
	s.pass(25 * ms)
	s.sends(behind)
}

// If many callers leave at once, the first of them and the pause after it cost a walk through the
// line each. The last call of a caller behind them, which becomes possible with the last of them,
// is not missed.
func TestCallersThatLeaveShareWalks(t *testing.T) {
	callers := []leaving{{n: 1}}
	for range 10_000 {
		callers = append(callers, leaving{n: 1})
	}
	q, all := newQueue(append(callers, leaving{n: 1, end: 100 * ms})...)
	q.wakeAt(at(0), start.Add(time.Hour), PermitsFree, time.Time{})
	for _, r := range all[1 : len(all)-1] {
		if q.Leave(r); q.due(at(0)) {
			t.Fatal("a batch is due")
		}
	}
	if wake, cause := q.Wake(); wake.Sub(start) != walkPause || cause != MayBeLast {
		t.Errorf("the queue wakes after %v, expected %v", wake, walkPause)
	}
	due := q.due(at(walkPause))
	if wake, cause := q.Wake(); due || wake.Sub(start) != 95*ms || cause != LastCall {
		t.Errorf("a batch is due: %v; the queue wakes after %v, expected 95 ms", due, wake)
	}
	if !q.due(at(95 * ms)) {
		t.Error("no batch is due for the last call")
	}
}
