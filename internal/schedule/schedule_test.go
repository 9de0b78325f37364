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
	s.q.Leave(first) // the next one may want less
	b := s.sends(timed, above)
	if s.q.Leave(timed) != b {
		t.Error("the request that leaves is not in the batch")
	}
	s.wakes(0)
	s.q.Settle(s.m, b, s.reply(b, 9, 100*ms, 1, 0))
	if above.state != Refused || timed.state != Gone {
		t.Errorf("the requests are %v and %v", timed.state, above.state)
	}
	s.sends(above) // the first one has left
}

// Long sleeps are cut into polls, which double. A batch for a request that does not wait does not
// lengthen them.
func TestPolls(t *testing.T) {
	s := newStory(t)
	first := wait(1)
	s.join(first)
	b := s.sends(first)
	for _, poll := range []time.Duration{1, 2, 4, 8, 15, 15} {
		if f := s.refuse(b, time.Minute); !f.Sleeps {
			t.Error("the request does not sleep")
		}
		s.wakes(poll * time.Second)
		s.pass(poll * time.Second / 2)
		try := tries(1)
		s.join(try)
		s.refuse(s.sends(first, try), time.Minute)
		s.wakes(poll * time.Second)
		s.pass(poll * time.Second)
		b = s.sends(first)
	}
	s.refuse(b, 15*time.Second+pollSlack) // so soon after a poll there is none
	s.wakes(15*time.Second + pollSlack)
	s.q.Changed()
	s.refuse(s.sends(first), time.Minute)
	s.wakes(time.Second)
}

// After a slow call the queue lingers for a tenth of its time, or until as many callers ask again
// as it has answered.
func TestLinger(t *testing.T) {
	s := newStory(t)
	ask := func() []*Request {
		all := []*Request{tries(1), tries(1)}
		s.join(all...)
		return all
	}
	all := ask()
	b := s.sends(all...)
	s.pass(20 * ms)
	s.q.Settle(s.m, b, s.reply(b, 8, 0, 2))
	s.wakes(2 * ms)
	early := tries(1)
	s.join(early)
	s.wakes(2 * ms)
	s.pass(2 * ms)
	b = s.sends(early)
	all = ask()
	s.pass(20 * ms)
	s.q.Settle(s.m, b, s.reply(b, 7, 0, 1))
	s.wakes(2 * ms) // two callers queue, and one has just been answered
	third := tries(1)
	s.join(third)
	s.sends(append(all, third)...)
}

// A timeout that ends while the queue lingers costs its caller no permits that are free.
func TestATimeoutEndsTheLinger(t *testing.T) {
	s := newStory(t)
	all := []*Request{tries(1), tries(1)}
	s.join(all...)
	b := s.sends(all...)
	s.pass(100 * ms)
	s.q.Settle(s.m, b, s.reply(b, 8, 0, 2))
	short := wait(1)
	short.Until = s.m.Clock.Add(3 * ms)
	short.End = short.Until
	s.join(short)
	s.wakes(10 * ms)
	s.pass(3 * ms)
	s.q.Expire(short)
	b = s.sends(short)
	s.q.Settle(s.m, b, s.reply(b, 7, 0, 1))
	if !short.Outcome.First.Allowed {
		t.Errorf("the request is %v", short.state)
	}
}

// A timeout that ends while the queue lingers, of a request that gets no permits in time, leaves
// the linger to the others.
func TestATimeoutLeavesTheLingerToOthers(t *testing.T) {
	s := newStory(t)
	first, short := wait(10), wait(1)
	s.join(first)
	one := s.sends(first)
	s.q.Stalled(s.m, one)
	short.Until = s.m.Clock.Add(215 * ms)
	short.End = short.Until
	s.join(short)
	two := s.sends(short)
	s.q.Stalled(s.m, two)
	trying := []*Request{tries(1), tries(1)}
	s.join(trying...)
	three := s.sends(trying...)
	s.pass(200 * ms)
	s.q.Settle(s.m, three, s.reply(three, 0, time.Second, 2))
	s.wakes(20 * ms)
	s.q.Expire(short) // in flight: its reply settles it
	s.wakes(20 * ms)
	short.last = false
	s.refuse(one, time.Second)
	s.refuse(two, 2*ms)
	s.pass(15 * ms)
	s.q.Expire(short)
	s.q.Leave(short)
	s.wakes(5 * ms)
	s.pass(5 * ms)
	s.sends(first)
}

// A request that another client was faster than asks for what returns soon, too: one call takes it
// all.
func TestGather(t *testing.T) {
	s := newStory(t)
	first := wait(1)
	s.join(first)
	s.refuse(s.sends(first), 10*ms)
	s.pass(10 * ms)
	b := s.sends(first)
	g := s.reply(b, 0, 5*ms, 0)
	g.First.Together = 8 * ms
	s.q.Settle(s.m, b, g)
	s.wakes(8 * ms)
	s.join(wait(1))
	s.pass(8 * ms)
	if b = s.sends(first, s.q.line.rear); b == nil {
		t.FailNow()
	}
	g = s.reply(b, 0, 5*ms, 0)
	g.First.Together = 8 * ms
	s.q.Settle(s.m, b, g)
	s.wakes(8 * ms)
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

// A process that was granted some of the permits was not beaten to the others: it asks for them as
// soon as they return.
func TestAPartialGrantIsNotGathered(t *testing.T) {
	s := newStory(t)
	first, second := wait(1), wait(2)
	s.join(first, second)
	s.refuse(s.sends(first, second), 10*ms)
	s.pass(10 * ms)
	b := s.sends(first, second)
	g := s.reply(b, 0, 5*ms, 1, 0)
	g.First.Together = 8 * ms
	s.q.Settle(s.m, b, g)
	s.wakes(5 * ms)
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

// If several requests wait, the queue asks for what returns shortly after the permits of the first
// one together with them.
func TestGatherForSeveral(t *testing.T) {
	s := newStory(t)
	first, second := wait(1), wait(1)
	s.join(first, second)
	b := s.sends(first, second)
	g := s.reply(b, 0, 5*ms, 0)
	g.First.Together = 8 * ms
	s.q.Settle(s.m, b, g)
	s.wakes(5 * ms)
	s.pass(5 * ms)
	s.wakes(3 * ms)
	s.pass(3 * ms)
	s.sends(first, second)
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

// A stalled batch does not hold up the next one; a fourth does.
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
		if s.q.Stalled(s.m, b) != (i < MaxDetached) {
			t.Errorf("the queue goes on without batch %d, or not", i)
		}
	}
	late := wait(1)
	s.join(late)
	s.wakes(0)
	s.q.Settle(s.m, all[0], s.reply(all[0], 9, 0, 1))
	if s.q.detached != MaxDetached-1 {
		t.Errorf("%d batches are detached", s.q.detached)
	}
	if !s.q.Stalled(s.m, all[MaxDetached]) {
		t.Error("the queue does not go on")
	}
	s.sends(late)
}

// The requests that wait for a call fail with it if Redis hangs, but not those whose permits are
// not free yet.
func TestRequestsFailWithTheCallThatTheyWaitFor(t *testing.T) {
	failed, behind := errors.New("failed"), errors.New("behind")
	s := newStory(t)
	later, try, queued, waiting := wait(5), tries(1), tries(1), wait(1)
	s.join(later)
	stalled := s.sends(later)
	s.q.Stalled(s.m, stalled)
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

// While callers wait, free permits are theirs: a request that does not wait is told when the first
// of them can be served.
func TestReserve(t *testing.T) {
	s := newStory(t)
	first, try := wait(5), &Request{Permits: protocol.Permits{First: 1}, Detail: true}
	s.join(first)
	s.refuse(s.sends(first), 100*ms)
	s.join(try)
	b := s.sends(first, try)
	s.q.Settle(s.m, b, s.reply(b, 2, 100*ms, 0, 0))
	if o := try.Outcome; o.First.Remaining != 0 || o.First.RetryAfter != 100*ms || o.First.NextAfter != 100*ms ||
		o.First.ResetAfter != 100*ms {
		t.Errorf("%+v", o)
	}
}

// While Redisson uses the limiter, a process that holds more than its share leaves permits that
// return to others for a head start. A request that comes meanwhile waits for that, too, and a
// superfluous look does not put off the end of it.
func TestHeadStart(t *testing.T) {
	s := newStory(t)
	many := tries(9)
	s.join(many)
	b := s.sends(many)
	s.q.Settle(s.m, b, s.reply(b, 1, 0, 1))
	first := wait(2)
	s.join(first)
	b = s.sends(first)
	g := s.reply(b, 1, time.Second, 0)
	g.First.Notes |= protocol.ForeignWriter
	s.q.Settle(s.m, b, g)
	s.wakes(time.Second) // the permits of this process return at that time
	s.q.Leave(first)
	second := wait(1)
	s.join(second)
	if b := s.sends(); b != nil {
		t.Error("it does not leave the permits to others")
	}
	s.wakes(time.Second)
	s.pass(10 * ms)
	s.wakes(990 * ms)
	s.pass(990 * ms)
	s.sends(second)
}

// A head start ends in time by the monotonic clock, too. So a clock that is set back keeps no caller
// waiting behind those that do not wait, however often these come.
func TestAHeadStartEndsThoughTheClockIsSetBack(t *testing.T) {
	s := newStory(t)
	many := tries(9)
	s.join(many)
	b := s.sends(many)
	s.q.Settle(s.m, b, s.reply(b, 1, 0, 1))
	first := wait(2)
	s.join(first)
	b = s.sends(first)
	g := s.reply(b, 1, 100*ms, 0)
	g.First.Notes |= protocol.ForeignWriter
	s.q.Settle(s.m, b, g) // the head start ends after 250 ms
	s.m.Clock = s.m.Clock.Add(-time.Hour)
	for range 2 {
		s.pass(120 * ms)
		try := tries(2)
		s.join(try)
		b = s.sends(try)
		s.q.Settle(s.m, b, s.reply(b, 1, 100*ms, 0))
	}
	s.pass(120 * ms)
	try := tries(2)
	s.join(try)
	s.sends(first, try)
}

// Beside Redisson, a process that holds more than its share takes no more than that, whatever its
// callers want: the first one fits, and the second one does not.
func TestHeadStartOfCallersForDifferentNumbersOfPermits(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second int64
		both          bool
	}{
		{"a large one behind a small one", 1, 3, false},
		{"a small one behind a large one", 2, 1, true},
		{"of the same size", 1, 1, true},
		{"of the same size, and too many", 2, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStory(t)
			for _, n := range []int64{4, 2} { // 4 return 100 ms before the others
				many := tries(n)
				s.join(many)
				b := s.sends(many)
				s.q.Settle(s.m, b, s.reply(b, 4, 0, 1))
				s.pass(100 * ms)
			}
			first, second := wait(c.first), wait(c.second)
			s.join(first, second)
			b := s.sends(first, second)
			g := s.reply(b, 0, 800*ms, make([]int64, len(b.members))...)
			g.First.Notes |= protocol.ForeignWriter
			s.q.Settle(s.m, b, g)
			// it may hold 5 permits, half of those in use, and holds 2 once 4 have returned
			s.pass(800 * ms)
			if c.both {
				s.sends(first, second)
			} else {
				s.sends(first)
			}
		})
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
		s.q.Stalled(s.m, last)
	}
	if at := s.q.Unanswered(); !at.Equal(last.started) {
		t.Errorf("the last batch was sent at %v, and is unanswered since %v", last.started, at)
	}
}
