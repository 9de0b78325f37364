package schedule

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// A story is a queue of a limiter of 10/s, to which a test sends events one after the other.
type story struct {
	t *testing.T
	q *Queue
	m Moment
}

func newStory(t *testing.T) *story {
	q, _ := newQueue()
	q.settings.Identity = record.NewIdentity("me")
	return &story{t, q, at(0)}
}

// join adds requests.
func (s *story) join(requests ...*Request) {
	for _, r := range requests {
		s.q.Join(r)
	}
}

// tries returns a request that does not wait.
func tries(n int64) *Request { return &Request{Permits: protocol.Permits{First: n}} }

// wait returns a waiting request.
func wait(n int64) *Request { return &Request{Permits: protocol.Permits{First: n}, Kind: Wait} }

// sends expects a batch with these requests to be due, and sends it; without requests it expects
// none.
func (s *story) sends(requests ...*Request) *Batch {
	s.t.Helper()
	b := new(Batch)
	if !s.q.due(s.m) || !s.q.fill(s.m, b) {
		if b = nil; len(requests) > 0 {
			s.t.Error("no batch is due")
		}
		return b
	}
	var carried []*Request
	for _, members := range b.members {
		carried = append(carried, members...)
	}
	if !slices.Equal(carried, requests) {
		s.t.Errorf("the batch has %d requests, expected %d, or others", len(carried), len(requests))
	}
	return b
}

// pass lets some time pass.
func (s *story) pass(d time.Duration) { s.m = Moment{Clock: s.m.Clock.Add(d), Mono: s.m.Mono.Add(d)} }

// replyOf returns a reply of one limiter.
func replyOf(m protocol.Member) *protocol.Reply {
	return &protocol.Reply{Members: protocol.Members{First: m}}
}

// reply returns a reply to a batch, by which so many requests of each group are granted, and the
// others have a wait.
func (s *story) reply(b *Batch, free int64, wait time.Duration, granted ...int64) *protocol.Reply {
	now := s.m.Clock.UnixMicro()
	g := &protocol.Reply{
		Members: protocol.Members{First: protocol.Member{
			Now: now, At: now, Rate: 10, Interval: time.Second, Free: free, Origin: record.NoOrigin, Together: wait,
		}},
	}
	g.MakeOutcomes(len(granted))
	for i, n := range granted {
		g.SetGranted(i, n)
		g.SetWait(i, 0, wait.Microseconds())
	}
	return g
}

// refuse settles a batch whose requests are refused for some time.
func (s *story) refuse(b *Batch, wait time.Duration) Facts {
	return s.q.Settle(s.m, b, s.reply(b, 0, wait, make([]int64, len(b.members))...))
}

// wakes expects the queue to wake after some time from now; 0: never.
func (s *story) wakes(after time.Duration) {
	s.t.Helper()
	due := s.q.due(s.m)
	got, _ := s.q.Wake()
	switch {
	case due:
		s.t.Error("a batch is due")
	case after == 0 && !got.IsZero() || after != 0 && got != s.m.Mono.Add(after):
		s.t.Errorf("the queue wakes after %v, expected %v", got.Sub(s.m.Mono), after)
	}
}

func TestWhichRequestsAskAtOnce(t *testing.T) {
	s := newStory(t)
	first := wait(2)
	s.join(first)
	s.refuse(s.sends(first), 100*ms)
	behind := wait(1)
	s.join(behind)
	s.wakes(100 * ms) // it waits for the first one
	timed := wait(1)
	timed.Until = start.Add(time.Second)
	s.join(timed)
	s.refuse(s.sends(first, behind, timed), 100*ms)
	above := wait(11)
	s.join(above)
	s.refuse(s.sends(first, behind, timed, above), 100*ms)
	try := tries(1)
	s.join(try)
	s.refuse(s.sends(first, behind, timed, above, try), 100*ms)
	s.pass(100 * ms)
	s.refuse(s.sends(first, behind, timed, above), 100*ms)
	s.q.Leave(behind)
	s.wakes(100 * ms)
	s.q.Leave(first)
	s.wakes(100 * ms) // the reply has told when the permits of the next one are free
	s.pass(100 * ms)
	b := s.sends(timed, above)
	if s.q.Leave(timed) != b {
		t.Error("the request that leaves is not in the batch")
	}
	s.wakes(0)
	s.q.Settle(s.m, b, s.reply(b, 9, 100*ms, 1, 0))
	if above.state != Refused || timed.state != Gone {
		t.Errorf("the requests are %v and %v", timed.state, above.state)
	}
	s.wakes(100 * ms)
}

// If the first caller leaves, the next one is asked for at once if it waited only for that one, or
// if the process decides, whose replies count those in front. Otherwise its reply has told when its
// permits are free, however many callers leave in front of it, and polls are not put off.
func TestTheNextOneAfterTheFirstHasLeft(t *testing.T) {
	for name, c := range map[string]struct {
		free  int64
		local bool
		asks  bool
	}{
		"its permits return later": {}, "its permits are free": {free: 1, asks: true},
		"the process decides": {local: true, asks: true},
	} {
		s := newStory(t)
		first, next := wait(2), wait(1)
		s.join(first, next)
		b := s.sends(first, next)
		g := s.reply(b, c.free, 500*ms, 0, 0)
		if g.SetWait(1, 0, 700_000); c.local {
			g.First.Notes |= protocol.Local
		}
		s.q.Settle(s.m, b, g)
		s.q.Leave(first)
		if c.asks {
			s.sends(next)
		} else {
			s.wakes(700 * ms)
		}
		if s.t.Failed() {
			t.Fatal(name)
		}
	}
	s := newStory(t)
	all := []*Request{wait(1), wait(1), wait(1)}
	s.join(all...)
	s.refuse(s.sends(all...), time.Minute)
	poll, _ := s.q.Wake()
	for _, r := range all[:2] {
		s.pass(100 * ms)
		s.q.Leave(r)
		s.sends()
		if wake, _ := s.q.Wake(); wake != poll {
			t.Errorf("after a caller has left, the queue polls %v later", wake.Sub(poll))
		}
	}
}

// If the context of several callers ends, the first one that leaves makes no call for the others.
// The rest of the queue goes on.
func TestCallersThatAreAboutToLeaveAreNotAskedFor(t *testing.T) {
	s := newStory(t)
	leaving := map[*Request]bool{}
	s.q.settings.Leaving = func(r *Request) bool { return leaving[r] }
	first, second, third, stays := wait(1), wait(1), wait(1), wait(1)
	s.join(first, second, third, stays)
	s.refuse(s.sends(first, second, third, stays), time.Second)
	try := tries(1)
	s.join(try)
	leaving[first], leaving[second], leaving[third], leaving[try] = true, true, true, true
	s.q.Leave(first)
	s.refuse(s.sends(stays), time.Second)
	for _, r := range []*Request{second, third, try} {
		if carrier := s.q.Leave(r); carrier != nil || r.state != Gone {
			t.Errorf("a request that was not asked for is %v, in the batch %v", r.state, carrier)
		}
	}
	s.wakes(time.Second)
	leaving[stays] = true
	s.q.Changed()
	s.sends()
	if s.q.Leave(stays); !s.q.Idle() {
		t.Error("without a caller, the queue is not idle")
	}
	s.wakes(0)
}

// However long the line is, a batch has room for requests that do not wait.
func TestALongLineLeavesRoomForTries(t *testing.T) {
	for _, perRequest := range []bool{false, true} {
		s := newStory(t)
		s.q.settings.RecordPerRequest = perRequest
		for i := range int64(2 * MaxGroups) {
			s.join(wait(1 + i%2)) // each has a group of its own
		}
		try := tries(1)
		s.join(try)
		if b := new(Batch); !s.q.due(s.m) || !s.q.fill(s.m, b) ||
			!try.InFlight() {
			t.Errorf(
				"with a record for each request %v, the first batch has %d requests, but not the one that does not wait",
				perRequest, b.Requests(),
			)
		}
	}
}

// A request above what the process grants while Redis is away waits for Redis; those that are small
// enough pass it.
func TestSmallRequestsPassWhileRedisIsAway(t *testing.T) {
	s := newStory(t)
	large, small := wait(5), wait(1)
	s.join(large, small)
	b := s.sends(large, small)
	g := s.reply(b, 1, 100*ms, 0, 0)
	g.First.Rate, g.Retry = 3, 50*ms
	g.First.Notes |= protocol.Local
	s.q.Settle(s.m, b, g)
	b = s.sends(large, small)
	g = s.reply(b, 0, 100*ms, 0, 1)
	g.First.Rate, g.Retry = 3, 50*ms
	g.First.Notes |= protocol.Local
	s.q.Settle(s.m, b, g)
	s.wakes(50 * ms) // then it looks whether Redis is back
	next := wait(3)
	s.join(next)
	s.sends(large, next)
}

// A stalled batch does not hold up the next one; a fourth does, until one of them is answered.
func TestStalled(t *testing.T) {
	s := newStory(t)
	s.q.settings.Granularity = true
	var all []*Batch
	for i := range MaxDetached + 1 {
		r := wait(1)
		s.join(r)
		b := s.sends(r)
		if b.Ask.Apart != (i > 0) {
			t.Errorf("the batch has records of its own: %v", b.Ask.Apart)
		}
		all = append(all, b)
		if s.q.Stalled(b) != (i < MaxDetached) {
			t.Errorf("the queue goes on without batch %d, or not", i)
		}
	}
	late := wait(1)
	s.join(late)
	s.wakes(0)
	s.q.Settle(s.m, all[0], s.reply(all[0], 9, 0, 1))
	if s.q.detached != MaxDetached || all[MaxDetached].state != BatchDetached {
		t.Errorf("%d batches are detached, and the last one is %v", s.q.detached, all[MaxDetached].state)
	}
	s.sends(late)
}

// If the only caller behind a stalled call is found to leave, the queue does not wake for it.
func TestACallerBehindAStalledCallIsAboutToLeave(t *testing.T) {
	s := newStory(t)
	leaving := map[*Request]bool{}
	s.q.settings.Leaving = func(r *Request) bool { return leaving[r] }
	stalled, behind, try := wait(1), wait(1), tries(1)
	s.join(stalled)
	s.q.Stalled(s.sends(stalled))
	s.join(behind)
	s.refuse(s.sends(behind), 100*ms)
	s.wakes(100 * ms)
	s.join(try)
	leaving[behind], leaving[try] = true, true
	s.sends()
	s.wakes(0)
}

// A full batch after a change leaves out the requests behind it. Those had their replies before the
// change, so they are asked for as soon as the ones in front are granted.
func TestAChangeReachesRequestsThatAFullBatchLeavesOut(t *testing.T) {
	s := newStory(t)
	s.q.settings.RecordPerRequest = true
	front, behind := crowd(MaxRequests/2), crowd(MaxRequests/2)
	s.join(front...)
	stalled := s.sends(front...)
	s.q.Stalled(stalled)
	s.join(behind...)
	s.refuse(s.sends(behind...), time.Minute)
	s.refuse(stalled, time.Minute)
	s.q.Changed()
	b := s.sends(front...)
	s.q.Settle(s.m, b, s.reply(b, 0, 0, MaxRequests/2))
	s.sends(behind...)
}

// crowd returns waiting requests for one permit each.
func crowd(n int) (all []*Request) {
	for range n {
		all = append(all, wait(1))
	}
	return all
}

// The requests that wait for a call fail with it if Redis hangs, but not those whose permits are
// not free yet.
func TestRequestsFailWithTheCallThatTheyWaitFor(t *testing.T) {
	failed, behind := errors.New("failed"), errors.New("behind")
	s := newStory(t)
	later, try, queued, waiting := wait(5), tries(1), tries(1), wait(1)
	s.join(later)
	stalled := s.sends(later)
	s.q.Stalled(stalled)
	s.join(try)
	b := s.sends(try)
	s.refuse(stalled, 100*ms)
	s.join(queued, waiting)
	f := s.q.Fail(s.m, b, failed, behind)
	if f.First.Denied != 3 || f.Behind != 2 || try.Outcome.Err != failed || queued.Outcome.Err != behind ||
		waiting.Outcome.Err != behind {
		t.Errorf("%+v; errors %v, %v, %v", f, try.Outcome.Err, queued.Outcome.Err, waiting.Outcome.Err)
	}
	s.wakes(100 * ms)
	s.pass(100 * ms)
	s.q.Fail(s.m, s.sends(later), failed, behind)
	if later.Outcome.Err != failed || !s.q.Idle() {
		t.Errorf("the request ends with %v; the queue is idle: %v", later.Outcome.Err, s.q.Idle())
	}
}

// A call that failed says nothing about how long calls take.
func TestFailuresAreNotMeasured(t *testing.T) {
	s := newStory(t)
	for _, fails := range []bool{true, false} {
		r := tries(1)
		s.join(r)
		b := s.sends(r)
		if fails {
			s.pass(3 * time.Second)
			s.q.Fail(s.m, b, ErrExceedsRate, nil)
		} else {
			s.pass(ms)
			s.q.Settle(s.m, b, s.reply(b, 9, 0, 1))
		}
	}
	if s.q.pacer.took != ms {
		t.Errorf("calls take %v, expected 1 ms", s.q.pacer.took)
	}
}

// The last batch counts as unanswered also if the one before it has stalled, too.
func TestUnansweredBehindStalledBatches(t *testing.T) {
	s := newStory(t)
	var last *Batch
	for range 2 {
		r := &Request{Permits: protocol.Permits{First: 1}, Kind: Wait}
		s.join(r)
		last = s.sends(r)
		s.pass(time.Second)
		s.q.Stalled(last)
	}
	if at := s.q.Unanswered(); !at.Equal(last.started) {
		t.Errorf("the last batch was sent at %v, and is unanswered since %v", last.started, at)
	}
}
