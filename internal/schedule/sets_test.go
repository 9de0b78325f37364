package schedule

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// newSetStory returns a story of a queue of two limiters of 10/s.
func newSetStory(t *testing.T) *story {
	s := newStory(t)
	s.q = New(
		Settings{Limiters: 2, Linger: LingerThreshold, Jitter: s.q.settings.Jitter, Identity: record.NewIdentity("me")},
	)
	return s
}

// pair returns permits of two limiters.
func pair(n, other int64) protocol.Permits { return protocol.Permits{First: n, Rest: []int64{other}} }

// tallies returns those of two limiters.
func tallies(first, other Tally) protocol.PerLimiter[Tally] {
	return protocol.PerLimiter[Tally]{First: first, Rest: []Tally{other}}
}

// both returns a request for permits of two limiters.
func both(n, other int64) *Request { return &Request{Permits: pair(n, other)} }

// waitBoth returns one that waits.
func waitBoth(n, other int64) *Request {
	r := both(n, other)
	r.Kind = Wait
	return r
}

// An outcome says how many requests of a group two limiters grant, and how long the others wait for
// each of them.
type outcome struct {
	granted int64
	waits   [2]time.Duration
}

// replyOfBoth returns a reply of two limiters, which leaves so many permits of each.
func (s *story) replyOfBoth(b *Batch, free [2]int64, outcomes ...outcome) *protocol.Reply {
	g := s.reply(b, free[0], 0)
	other := g.First
	other.Free = free[1]
	other.At++
	g.Rest = []protocol.Member{other}
	g.MakeOutcomes(len(outcomes))
	for i, o := range outcomes {
		g.SetGranted(i, o.granted)
		for limiter, wait := range o.waits {
			g.SetWait(i, limiter, wait.Microseconds())
		}
	}
	return g
}

// asks checks the groups of a batch.
func (s *story) asks(b *Batch, strict int, groups ...protocol.Group) {
	s.t.Helper()
	if b.Ask.Strict != strict || !slices.EqualFunc(b.Ask.Groups, groups, func(a, b protocol.Group) bool {
		return a.Count == b.Count && protocol.Equal(a.Permits, b.Permits)
	}) {
		s.t.Errorf("the batch asks %+v, strict are %d; expected %+v, %d", b.Ask.Groups, b.Ask.Strict, groups, strict)
	}
}

// date lets a reply to a set tell from when on a reservation counts.
func (s *story) date(res *Reservation, from time.Time) {
	s.q.Hear(s.m, Notice{Dates: []Date{{Reservation: res, From: from}}})
}

// end takes away a reservation.
func (s *story) end(res *Reservation, served time.Time) {
	s.q.Hear(s.m, Notice{Ended: res, Served: served})
}

// Each limiter of a set has its own part of a result and of the tally. What a caller that has left
// was granted goes to the next one of the same batch.
func TestSettleASet(t *testing.T) {
	s := newSetStory(t)
	all := []*Request{both(1, 2), both(3, 1), both(1, 2), both(1, 2), both(1, 2), both(5, 1)}
	s.join(all...)
	b := s.sends(all[0], all[2], all[3], all[4], all[1], all[5])
	if s.q.Leave(all[2]) != b {
		t.Error("the request that leaves is not in the batch")
	}
	f := s.q.Settle(
		s.m,
		b,
		s.replyOfBoth(
			b, [2]int64{4, 3}, outcome{2, [2]time.Duration{0, 5 * ms}}, outcome{granted: 1},
			outcome{0, [2]time.Duration{7 * ms, 0}},
		),
	)
	want := Facts{PerLimiter: tallies(Tally{Own: 5, Denied: 1}, Tally{Own: 5, Denied: 1}), Granted: 3, Refused: true}
	if !reflect.DeepEqual(f, want) {
		t.Errorf("%+v, expected %+v", f, want)
	}
	for i, want := range []struct {
		state     State
		allowed   bool
		remaining [2]int64
		waits     [2]time.Duration
	}{
		{Settled, true, [2]int64{8, 6}, [2]time.Duration{}}, {Settled, true, [2]int64{4, 3}, [2]time.Duration{}},
		{state: Gone},
		{Settled, true, [2]int64{4, 3}, [2]time.Duration{}}, // with the permits of the one that has left
		{Settled, false, [2]int64{4, 3}, [2]time.Duration{0, 5 * ms}},
		{Settled, false, [2]int64{4, 3}, [2]time.Duration{7 * ms, 0}},
	} {
		r := all[i]
		if r.state != want.state {
			t.Errorf("request %d is %v", i, r.state)
		}
		if want.state != Settled {
			continue
		}
		o := r.Outcome
		first, other := o.First, *o.Of(1)
		if first.Allowed != want.allowed || other.Allowed != want.allowed ||
			[2]int64{first.Remaining, other.Remaining} != want.remaining ||
			[2]time.Duration{first.RetryAfter, other.RetryAfter} != want.waits || first.Limit != 10 ||
			other.Limit != 10 {
			t.Errorf("request %d: %+v", i, o)
		}
		if want.allowed && other.At != first.At+1 {
			t.Errorf("request %d has records at %d and %d", i, first.At, other.At)
		}
	}
	if !s.q.Idle() {
		t.Error("the queue is not idle")
	}
}

// What a caller that has left was granted is nobody's if it fits only at one limiter.
func TestPermitsOfASetThatNobodyGets(t *testing.T) {
	s := newSetStory(t)
	leaves, refused := both(1, 2), both(1, 3)
	s.join(leaves, refused)
	b := s.sends(leaves, refused)
	s.q.Leave(leaves)
	f := s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{9, 0}, outcome{granted: 1}, outcome{0, [2]time.Duration{0, ms}}))
	want := Facts{
		PerLimiter: tallies(Tally{Own: 1, Unclaimed: 1}, Tally{Own: 2, Unclaimed: 2, Denied: 1}),
		Refused:    true,
	}
	if !reflect.DeepEqual(f, want) || refused.Outcome.First.Allowed {
		t.Errorf("%+v, expected %+v; %+v", f, want, refused.Outcome)
	}
}

// A waiting set sleeps until its slowest limiter has its permits. Those behind it sleep, too, if
// they do not fit both limiters.
func TestASetWaitsForTheSlowest(t *testing.T) {
	s := newSetStory(t)
	first, second := waitBoth(1, 1), waitBoth(2, 2)
	s.join(first, second)
	b := s.sends(first, second)
	s.asks(b, 2, protocol.Group{Permits: pair(1, 1), Count: 1},
		protocol.Group{Permits: pair(2, 2), Count: 1})
	if f := s.q.Settle(s.m, b,
		s.replyOfBoth(b, [2]int64{5, 0}, outcome{0, [2]time.Duration{0, 400 * ms}},
			outcome{0, [2]time.Duration{0, 500 * ms}})); !f.Sleeps {
		t.Error("the requests do not sleep")
	}
	s.wakes(400 * ms)
	for limiter, want := range []time.Duration{0, 400 * ms} {
		if at := first.FreeAt(limiter).Sub(s.m.Clock); at != want {
			t.Errorf("the permits of limiter %d are free after %v, expected %v", limiter, at, want)
		}
	}
	s.pass(400 * ms)
	b = s.sends(first, second)
	s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{4, 1}, outcome{granted: 1}, outcome{0, [2]time.Duration{0, 100 * ms}}))
	s.wakes(100 * ms)
	if !first.Outcome.First.Allowed || first.Outcome.First.Remaining != 4 || first.Outcome.Of(1).Remaining != 1 ||
		second.state != Refused {
		t.Errorf("%+v; the second one is %v", first.Outcome, second.state)
	}
}

// FreeAt goes by the wait for one limiter. It is not known before a reply, and for a request that
// waits only for those in front of it.
func TestFreeAt(t *testing.T) {
	for _, waits := range [][]time.Duration{
		{100 * ms, 300 * ms, 200 * ms},
		{300 * ms, 100 * ms, 200 * ms},
		{300 * ms, 0, 300 * ms},
	} {
		r := &Request{Permits: protocol.Permits{First: 1, Rest: []int64{1, 1}}}
		r.Outcome.PerLimiter = protocol.Same(len(waits), MemberOutcome{})
		for limiter, wait := range waits {
			r.Outcome.Of(limiter).RetryAfter = wait
		}
		if at := r.FreeAt(0); !at.IsZero() {
			t.Errorf("when it is not known: %v", at)
		}
		r.free = start.Add(slices.Max(waits))
		for limiter, want := range waits {
			if at := r.FreeAt(limiter).Sub(start); at != want {
				t.Errorf("%v, limiter %d: %v", waits, limiter, at)
			}
		}
	}
}

// A request whose wait is not known asks again at once, before those that came later. One for more
// than a rate fails, and its limiter is told.
func TestRequestsOfASetThatAreNotDecided(t *testing.T) {
	s := newSetStory(t)
	waits, tries, above := waitBoth(1, 1), both(1, 1), both(1, 11)
	s.join(waits, tries, above)
	b := s.sends(waits, tries, above)
	later, try := waitBoth(1, 1), both(2, 2)
	s.join(later, try)
	f := s.q.Settle(
		s.m,
		b,
		s.replyOfBoth(
			b, [2]int64{}, outcome{0, [2]time.Duration{unknown, 0}}, outcome{0, [2]time.Duration{0, unknown}},
			outcome{granted: -2},
		),
	)
	if want := (Facts{PerLimiter: tallies(Tally{}, Tally{Denied: 1})}); !reflect.DeepEqual(f, want) ||
		above.Outcome.Err != error(MemberError{1, ErrExceedsRate}) {
		t.Errorf("%#v, %+v", above.Outcome.Err, f)
	}
	b = s.sends(waits, later, tries, try)
	s.asks(
		b, 1, protocol.Group{Permits: pair(1, 1), Count: 2}, protocol.Group{Permits: pair(1, 1), Count: 1},
		protocol.Group{Permits: pair(2, 2), Count: 1},
	)
	s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{}, outcome{granted: 2}, outcome{granted: 1}, outcome{granted: 1}))
	if !s.q.Idle() {
		t.Error("the queue is not idle")
	}
}

// A waiting set that wants more than a rate asks at once, and blocks nobody.
func TestASetAboveARate(t *testing.T) {
	s := newSetStory(t)
	first := waitBoth(1, 1)
	s.join(first)
	b := s.sends(first)
	s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{}, outcome{0, [2]time.Duration{100 * ms, 0}}))
	behind := waitBoth(1, 1)
	s.join(behind)
	s.wakes(100 * ms)
	above := waitBoth(1, 11)
	s.join(above)
	b = s.sends(first, behind, above)
	f := s.q.Settle(s.m, b,
		s.replyOfBoth(b, [2]int64{}, outcome{0, [2]time.Duration{100 * ms, 0}}, outcome{granted: -2}))
	if !errors.Is(above.Outcome.Err, ErrExceedsRate) || f.First.Denied != 0 || f.Of(1).Denied != 1 {
		t.Errorf("%v, %+v", above.Outcome.Err, f)
	}
	s.wakes(100 * ms)
}

// Requests that had to wait for a call that timed out fail with it, and count at each limiter,
// unless the queue went on without it.
func TestSetsBehindACallThatFails(t *testing.T) {
	failed, behind := errors.New("failed"), errors.New("behind")
	for _, stalled := range []bool{false, true} {
		s := newSetStory(t)
		r, later := both(1, 1), both(1, 1)
		s.join(r)
		b := s.sends(r)
		if stalled {
			s.q.Stalled(b)
		}
		s.join(later)
		f := s.q.Fail(s.m, b, failed, behind)
		want := Facts{PerLimiter: tallies(Tally{Denied: 2}, Tally{Denied: 2}), Behind: 1}
		if stalled {
			want = Facts{PerLimiter: tallies(Tally{Denied: 1}, Tally{Denied: 1})}
		}
		if !reflect.DeepEqual(f, want) || r.Outcome.Err != failed || !stalled && later.Outcome.Err != behind ||
			s.q.Idle() == stalled {
			t.Errorf("stalled %v: %+v, errors %v and %v, idle %v",
				stalled, f, r.Outcome.Err, later.Outcome.Err, s.q.Idle())
		}
	}
}

// A stalled batch of a set does not hold up the next one; a fourth does, until one of them is
// complete.
func TestStalledSet(t *testing.T) {
	s := newSetStory(t)
	var all []*Batch
	for range MaxDetached + 1 {
		r := waitBoth(1, 1)
		s.join(r)
		b := s.sends(r)
		s.q.Stalled(b)
		all = append(all, b)
	}
	late := waitBoth(1, 1)
	s.join(late)
	s.wakes(0)
	s.q.Settle(s.m, all[0], s.replyOfBoth(all[0], [2]int64{9, 9}, outcome{granted: 1}))
	s.sends(late)
}

// A waiting set keeps nothing in its own queue; what others wait for in front of it is a group
// before it, at each limiter.
func TestWhatIsInFrontOfASetIsKeptFree(t *testing.T) {
	s := newSetStory(t)
	first, second, third := waitBoth(1, 1), waitBoth(1, 1), waitBoth(1, 1)
	second.front.permits, third.front.permits = pair(0, 3), pair(2, 0)
	try := both(1, 1)
	s.join(first, second, third, try)
	b := s.sends(first, second, third, try)
	one := protocol.Group{Permits: pair(1, 1), Count: 1}
	s.asks(b, 5, one, protocol.Group{Permits: pair(0, 3)}, one, protocol.Group{Permits: pair(2, 0)}, one,
		one)
}

// What is in front of a set that the batch does not carry is kept from those behind it, too.
func TestWhatIsInFrontOfASetThatIsLeftOutIsKeptFree(t *testing.T) {
	one := protocol.Group{Permits: pair(1, 1), Count: 1}
	for _, stalled := range []bool{false, true} { // or its caller is about to leave
		s := newSetStory(t)
		first, between, behind := waitBoth(1, 1), waitBoth(1, 1), waitBoth(1, 1)
		first.front.permits, between.front.permits, behind.front.permits = pair(2, 0), pair(0, 3), pair(4, 0)
		if stalled {
			s.join(first, between)
			s.q.Stalled(s.sends(first, between))
			s.join(behind)
		} else {
			s.q.settings.Leaving = func(r *Request) bool { return r != behind }
			s.join(first, between, behind)
		}
		s.asks(s.sends(behind), 2, protocol.Group{Permits: pair(6, 3)}, one)
	}
}

// A call for callers of one limiter keeps free what callers of sets in front of them wait for.
func TestWhatSetsWaitForIsKeptFree(t *testing.T) {
	s := newStory(t)
	first, second, third := wait(1), wait(1), wait(1)
	between, long, behind := &Reservation{N: 1}, &Reservation{N: 4, from: s.m.Clock.Add(100 * ms)}, &Reservation{N: 3}
	s.join(first)
	s.q.Reserve(between, nil)
	s.join(second, third)
	s.q.Reserve(long, nil)
	s.q.Reserve(behind, nil)
	try := tries(1)
	s.join(try)
	b := s.sends(first, second, third, try)
	one := protocol.Group{Permits: protocol.Permits{First: 1}, Count: 1}
	two := protocol.Group{Permits: protocol.Permits{First: 1}, Count: 2}
	// long has until then to wait for another limiter
	s.asks(b, 4, one, protocol.Group{Permits: protocol.Permits{First: 1}}, two,
		protocol.Group{Permits: protocol.Permits{First: 3}}, one)
	if b.Requests() != 4 || b.Ask.Partial {
		t.Errorf("the batch has %d requests; it is only a part: %v", b.Requests(), b.Ask.Partial)
	}
	// One permit is free, which is kept. Neither the one that waits nor the one that does not asks
	// again at once.
	f := s.q.Settle(s.m, b, s.reply(b, 1, 50*ms, 1, 0, 0, 0, 0))
	if f.Granted != 1 || !f.Sleeps || second.state != Refused || try.state != Settled {
		t.Errorf("%+v; the requests are %v and %v", f, second.state, try.state)
	}
	if o := try.Outcome; o.First.Remaining != 0 || o.First.RetryAfter != 50*ms {
		t.Errorf("%+v", o)
	}
	s.wakes(50 * ms)
	s.pass(101 * ms)
	b = s.sends(second, third)
	s.asks(b, 2, protocol.Group{Permits: protocol.Permits{First: 1}}, two)
	s.q.Settle(s.m, b, s.reply(b, 0, 50*ms, 0, 2))
	if s.q.Idle() {
		t.Error("with reservations, the queue is idle")
	}
	s.join(tries(1))
	b = s.sends(s.q.trying[0])
	s.asks(b, 1, protocol.Group{Permits: protocol.Permits{First: 8}}, one)
}

// A request that does not wait, and is refused only because of a reservation, waits as long as the
// reply says, though permits are free.
func TestAReservationIsNoReasonToTryAtOnce(t *testing.T) {
	for _, reservations := range []bool{false, true} {
		s := newStory(t)
		if reservations {
			s.q.Reserve(&Reservation{N: 2}, nil)
		}
		try := tries(1)
		s.join(try)
		b := s.sends(try)
		granted := make([]int64, len(b.Ask.Groups))
		s.q.Settle(s.m, b, s.reply(b, 2, 50*ms, granted...))
		want := time.Millisecond
		if reservations {
			want = 50 * ms
		}
		if o := try.Outcome; o.First.Remaining != 0 || o.First.RetryAfter != want || o.First.NextAfter != want {
			t.Errorf("reservations %v: %+v, expected a wait of %v", reservations, o, want)
		}
	}
}

// No permits are taken ahead while callers of sets wait.
func TestNoLeaseBesideAReservation(t *testing.T) {
	s := newStory(t)
	s.q = New(Settings{Lease: time.Second, Holding: new(atomic.Int64), Ahead: func() int64 {
		t.Error("a lease may be taken")
		return 0
	}})
	s.q.Reserve(&Reservation{N: 1, from: s.m.Clock.Add(time.Hour)}, nil)
	s.join(tries(1))
	s.q.due(s.m)
	s.q.fill(s.m, new(Batch))
}

// A reservation ends the lease that there is: its permits come back for the caller of the set
// first, even if they are so few that they would not be worth a call otherwise.
func TestAReservationEndsTheLease(t *testing.T) {
	s := newStory(t)
	s.q = New(Settings{
		Lease:   time.Second,
		Holding: new(atomic.Int64),
		Jitter:  func(time.Duration) time.Duration { return 0 },
	})
	s.q.ledger.Brought(lease.Delivery{Lease: &lease.Lease{
		Rate: 10_000, Interval: 10 * time.Second, At: s.m.Clock.Add(time.Second).UnixMicro(), Began: s.m.Mono,
		Lasts: time.Second, Permits: 9,
	}}, s.m)
	s.q.Reserve(&Reservation{N: 1}, nil)
	if unused := s.q.ledger.Leftovers(); s.q.ledger.Holds() || len(unused) != 1 || unused[0].Permits != 9 {
		t.Errorf("beside a reservation, %v is given back, expected 9 permits", unused)
	}
}

// A batch without requests is not sent, whatever is kept.
func TestReservationsAloneMakeNoCall(t *testing.T) {
	s := newStory(t)
	s.q.settings.Leaving = func(*Request) bool { return true }
	s.q.Reserve(&Reservation{N: 1}, nil)
	s.join(tries(1))
	s.sends()
	s.wakes(0)
}

// InFront counts requests and reservations between the given reservations, but no reservations of
// the same set, and none that do not count yet.
func TestInFront(t *testing.T) {
	q, set, other := newStory(t).q, "this set", "another set"
	hold := func(k *Reservation) *Reservation {
		q.Reserve(k, nil)
		return k
	}
	q.Join(wait(1))
	hold(&Reservation{N: 2, Owner: other})
	first := hold(&Reservation{N: 1, Owner: set})
	second := hold(&Reservation{N: 1, Owner: set})
	q.Join(wait(4))
	hold(&Reservation{N: 8, Owner: other, from: start.Add(ms)})
	hold(&Reservation{N: 16, Owner: set}) // of a request that was served meanwhile
	q.Join(wait(32))
	third := hold(&Reservation{N: 1, Owner: set})
	q.Join(wait(64))
	hold(&Reservation{N: 128, Owner: other})
	for after, want := range map[time.Duration][]Front{
		0:      {{3, true}, {}, {36, false}},
		ms:     {{3, true}, {}, {36, false}},
		ms + 1: {{3, true}, {}, {44, false}},
	} {
		if got := q.InFront([]*Reservation{first, second, third}, start.Add(after)); !slices.Equal(got, want) {
			t.Errorf("after %v: %v, expected %v", after, got, want)
		}
	}
}

// A request that takes instalments keeps its place until it has the last one. So what it will ask
// for later is in front, too.
func TestInstalmentsAreInFront(t *testing.T) {
	q := newStory(t).q
	r := wait(5)
	r.Instalments = &Instalments{Left: 20}
	q.Join(r)
	behind := &Reservation{N: 5}
	q.Reserve(behind, nil)
	if got := q.InFront([]*Reservation{behind}, start); got[0].Permits != 25 {
		t.Errorf("%d permits are kept free, expected 25", got[0].Permits)
	}
}

// A reservation that is gone concerns those behind it alone: the others need no call.
func TestAReservationThatNobodyIsBehind(t *testing.T) {
	s := newStory(t)
	front, last := wait(1), &Reservation{N: 5}
	s.join(front)
	s.q.Reserve(last, nil)
	s.refuse(s.sends(front), time.Second)
	s.end(last, time.Time{})
	s.wakes(time.Second)
}

// Once a reservation is gone without a grant, those who wait are asked for at once. With nobody
// there is nothing to do.
func TestTheEndOfAReservation(t *testing.T) {
	s := newStory(t)
	gone, stays := &Reservation{N: 5}, &Reservation{N: 5}
	s.q.Reserve(gone, nil)
	first := wait(1)
	s.join(first)
	s.q.Reserve(stays, nil)
	s.refuse(s.sends(first), time.Second)
	s.wakes(time.Second)
	s.end(gone, time.Time{})
	if reservations := s.q.reservations; !slices.Equal(reservations, []*Reservation{stays}) {
		t.Errorf("%d reservations are left, or another one", len(reservations))
	}
	b := s.sends(first)
	s.asks(b, 1, protocol.Group{Permits: protocol.Permits{First: 1}, Count: 1})
	s.q.Settle(s.m, b, s.reply(b, 0, 0, 1))
	s.end(stays, time.Time{})
	s.wakes(0)
	if !s.q.Idle() {
		t.Error("without reservations, the queue is not idle")
	}
}

// Each set has one event, with the earliest time.
func TestOutdatedSetsAreMerged(t *testing.T) {
	merged := Merged([]Outdated{{1, start}, {2, start}, {1, start.Add(-ms)}, {2, start.Add(ms)}, {3, start}})
	if want := []Outdated{{1, start.Add(-ms)}, {2, start}, {3, start}}; !slices.Equal(merged, want) {
		t.Errorf("%v", merged)
	}
}

// A call that may have kept permits free which another queue was granted meanwhile is made again.
// One that was complete before is not, and that of a queue without waiting requests is not.
func TestOutdated(t *testing.T) {
	for _, c := range []struct {
		name string
		// what happens before; it returns when the other call was sent
		at    func(s *story, first *Request) (sent time.Time)
		again bool
	}{
		{"complete before", func(s *story, first *Request) time.Time {
			s.refuse(s.sends(first), time.Second)
			s.pass(ms)
			return s.m.Mono
		}, false},
		{"complete meanwhile", func(s *story, first *Request) time.Time {
			b, sent := s.sends(first), s.m.Mono
			s.pass(ms)
			s.refuse(b, time.Second)
			s.pass(ms)
			return sent
		}, true},
		{"in flight", func(s *story, first *Request) time.Time {
			s.sends(first)
			s.pass(ms)
			return s.m.Mono
		}, true},
	} {
		for _, ends := range []bool{false, true} { // the end of the reservation by a grant does the same
			s := newStory(t)
			k := &Reservation{N: 1}
			s.q.Reserve(k, &Reservation{from: start.Add(-ms)}) // dated
			first := wait(1)
			s.join(first)
			sent := c.at(s, first)
			if ends {
				s.end(k, sent)
			} else {
				s.q.Outdated(sent)
			}
			if b := s.q.InFlight(); b != nil {
				s.refuse(b, time.Second)
			}
			if due := s.q.due(s.m); due != c.again {
				t.Errorf("%s, by its end %v: a batch is due: %v", c.name, ends, due)
			}
		}
	}
	s := newStory(t)
	try := tries(1)
	s.join(try)
	b := s.sends(try)
	s.q.Outdated(s.m.Mono)
	s.refuse(b, time.Second)
	s.wakes(0)
}

// A request behind a reservation whose date is not known is not refused: it may be in vain only
// because of the reservation. It is asked for again once the date is known, or the reservation is
// gone.
func TestARequestBehindAReservationWithoutADateIsNotRefused(t *testing.T) {
	eight, five := protocol.Group{Permits: protocol.Permits{First: 8}, Count: 1},
		protocol.Group{Permits: protocol.Permits{First: 5}}
	for _, failFast := range []bool{false, true} {
		for what, c := range map[string]struct {
			event func(s *story, k *Reservation)
			asks  []protocol.Group
		}{
			"counts later": {func(s *story, k *Reservation) {
				s.date(k, s.m.Clock.Add(time.Hour))
			}, []protocol.Group{eight}},
			"counts now": {func(s *story, k *Reservation) {
				s.date(k, start.Add(-ms))
			}, []protocol.Group{five, eight}},
			"left":         {func(s *story, k *Reservation) { s.end(k, time.Time{}) }, []protocol.Group{eight}},
			"was granted":  {func(s *story, k *Reservation) { s.end(k, start) }, []protocol.Group{eight}},
			"granted late": {func(s *story, k *Reservation) { s.end(k, s.m.Mono) }, []protocol.Group{eight}},
		} {
			s := newStory(t)
			s.q.settings.FailFast = failFast
			k, r := &Reservation{N: 5}, wait(8)
			if r.End = start.Add(500 * ms); !failFast {
				r.Until = r.End
			}
			s.q.Reserve(k, nil)
			s.join(r)
			b := s.sends(r)
			s.asks(b, 2, five, eight)
			s.pass(ms)
			s.q.Settle(s.m, b, s.reply(b, 10, time.Second, 0, 0))
			if s.sends(); r.state != Refused {
				t.Errorf("%s: the request is %v", what, r.state)
			}
			s.pass(ms)
			c.event(s, k)
			b = s.sends(r)
			s.asks(b, len(c.asks), c.asks...)
			s.q.Settle(s.m, b, s.reply(b, 7, time.Second, make([]int64, len(c.asks))...))
			if r.state != Settled { // now the date is known
				t.Errorf("%s, FailFast %v: the request is %v", what, failFast, r.state)
			}
		}
	}
}

// The call of a request keeps free what a set in front of it waits for. If the set is granted that
// meanwhile, it counts twice, so the reply refuses in vain, and the request is asked for again.
func TestAnOutdatedReplyRefusesNoWaitingRequest(t *testing.T) {
	for _, failFast := range []bool{false, true} {
		s := newStory(t)
		s.q.settings.FailFast = failFast
		k, r := &Reservation{N: 5, from: start.Add(-ms)}, wait(8)
		if r.End = start.Add(500 * ms); !failFast {
			r.Until = r.End
		}
		s.q.Reserve(k, k)
		s.join(r)
		b := s.sends(r)
		s.end(k, s.m.Mono)
		s.q.Settle(s.m, b, s.reply(b, 8, time.Second, 0, 0))
		b = s.sends(r)
		s.refuse(b, time.Second)
		if r.state != Settled {
			t.Errorf("FailFast %v: after the next reply, the request is %v", failFast, r.state)
		}
	}
}

// If a waiting request ends, the calls of sets behind it are outdated, since they kept its permits
// free. Those of sets in front did not.
func TestTheEndOfARequestConcernsSetsBehindIt(t *testing.T) {
	for what, c := range map[string]struct {
		end   func(s *story, r *Request, b *Batch)
		since time.Time
	}{
		"it leaves": {end: func(s *story, r *Request, _ *Batch) { s.q.Leave(r) }},
		"it is refused": {end: func(s *story, r *Request, b *Batch) {
			s.q.Expire(r)
			s.refuse(b, time.Second)
		}},
		"it is granted": {func(s *story, _ *Request, b *Batch) { s.q.Settle(s.m, b, s.reply(b, 0, 0, 1)) }, start},
		"its call fails": {end: func(s *story, _ *Request, b *Batch) {
			s.q.Fail(s.m, b, errors.New("no reply"), nil)
		}},
	} {
		s := newStory(t)
		r, later := wait(1), start.Add(time.Hour)
		s.q.Reserve(&Reservation{N: 1, Owner: "in front", from: later}, nil)
		s.join(r)
		s.q.Reserve(&Reservation{N: 1, Owner: "behind", from: later}, nil)
		c.end(s, r, s.sends(r))
		want := []Outdated{{"behind", c.since}}
		if told := s.q.effects.Outdated; !slices.Equal(told, want) {
			t.Errorf("%s: %v are told, expected %v", what, told, want)
		}
	}
}

// While a caller waits there is no lease, so calls for sets make no call due that is to bring one.
func TestCallsForSetsMakeNoCallForALeaseWhileACallerWaits(t *testing.T) {
	s := newStory(t)
	settings := s.q.settings
	settings.Lease, settings.Holding, settings.Ahead = time.Second, new(atomic.Int64), func() int64 { return 1 }
	s.q = New(settings)
	hears := func() {
		for range 2 {
			s.q.Hear(s.m, Notice{Tally: &Tally{Own: 1}})
			s.pass(ms)
		}
	}
	r := wait(2)
	s.join(r)
	s.refuse(s.sends(r), time.Second)
	hears()
	s.sends()
	s.q.Leave(r)
	s.sends()
	hears()
	if b := s.sends(); b == nil || b.Ask.Lease != 1 {
		t.Error("no call for a lease is due")
	}
}

// A call is made again if a reservation in front of a waiting request has its first date, or counts
// no longer. Another date changes nothing.
func TestRedate(t *testing.T) {
	past, later, latest := start.Add(-ms), start.Add(time.Minute), start.Add(time.Hour)
	for _, c := range []struct {
		what     string
		from, to time.Time
		news     bool
	}{
		{"the first date", time.Time{}, later, true}, {"the first date, in the past", time.Time{}, past, true},
		{"it counted", past, later, true}, {"it still counts", past, past.Add(-ms), false},
		{"it does not count yet", later, latest, false}, {"it counts now", later, past, false},
		{"the same", later, later, false}, {"the same, in the past", past, past, false},
	} {
		for _, behind := range []bool{true, false} {
			s := newStory(t)
			k, r := &Reservation{N: 5, from: c.from}, wait(8)
			s.q.Reserve(k, k)
			s.join(r)
			if !behind {
				k = &Reservation{N: 5, from: c.from}
				s.q.Reserve(k, k)
			}
			s.refuse(s.sends(r), time.Second)
			s.q.Reserve(&Reservation{N: 1, Owner: "another set"}, nil)
			s.date(k, c.to)
			news := len(s.q.effects.Outdated) > 0 // that set is told
			if due := s.q.due(s.m); news != c.news || due != (news && behind) {
				t.Errorf("%s, behind %v: news %v, a batch is due: %v", c.what, behind, news, due)
			}
			if !k.from.Equal(c.to) {
				t.Errorf("%s: the reservation counts from %v on", c.what, k.from)
			}
		}
	}
}

// A reservation that counts goes on to count if it is to count shortly. So two sets whose replies
// name the present time, or a little more, do not make each other ask again and again.
func TestADateThatHasAlmostComeIsNoNews(t *testing.T) {
	for later, news := range map[time.Duration]bool{0: false, ms: false, 10 * ms: true} {
		s := newStory(t)
		k, r := &Reservation{N: 5, from: start.Add(-ms)}, wait(8)
		s.q.Reserve(k, k)
		s.join(r)
		s.refuse(s.sends(r), time.Second)
		s.date(k, s.m.Clock.Add(later))
		if due := s.q.due(s.m); due != news || k.counts(s.m.Clock) == news {
			t.Errorf("to count in %v: a batch is due: %v, the reservation counts: %v", later, due, k.counts(s.m.Clock))
		}
	}
}

// A reservation counts no earlier than that of the request in front of it in the same set.
func TestAReservationHasTheDateOfTheOneInFront(t *testing.T) {
	s := newStory(t)
	first, second := &Reservation{N: 1, from: start.Add(time.Minute)}, &Reservation{N: 2}
	s.q.Reserve(first, nil)
	s.q.Reserve(second, first)
	for after, want := range map[time.Duration]int64{0: 0, time.Minute + 1: 3} {
		if n, _ := s.q.reserved(start.Add(after), 0, math.MaxInt64); n != want {
			t.Errorf("after %v, %d permits are kept, expected %d", after, n, want)
		}
	}
}

// A detached batch may be executed after a grant of another queue, too.
func TestADetachedBatchIsOutdated(t *testing.T) {
	s := newStory(t)
	first, second := wait(1), wait(1)
	s.join(first)
	s.q.Stalled(s.sends(first))
	s.join(second)
	s.refuse(s.sends(second), time.Second)
	s.pass(ms)
	s.wakes(time.Second - ms)
	s.q.Outdated(s.m.Mono)
	s.sends(second)
}

// The queue of a set tells each limiter what a reply says of its reservations: those of waiting
// requests have dates as far as these are known, and those of requests that are settled end. A
// limiter with leases learns what the call came to.
func TestWhatASetTellsItsLimiters(t *testing.T) {
	s := newSetStory(t)
	s.q.settings.Set.Lending = []int{1}
	served, waits, leaves := waitBoth(1, 1), waitBoth(1, 1), waitBoth(1, 1)
	for _, r := range []*Request{served, waits, leaves} {
		r.Reservations = []*Reservation{{N: 1}, {N: 1}}
	}
	ended, dated, left := served.Reservations, waits.Reservations, leaves.Reservations
	s.join(served, waits)
	b, sent := s.sends(served, waits), s.m.Mono
	tells := func(want ...Notice) {
		t.Helper()
		_, fx := s.q.Next(nil, func() Moment { return s.m }, func() *Batch { return new(Batch) })
		if !reflect.DeepEqual(fx.Tell, want) {
			t.Errorf("the queue tells %+v, expected %+v", fx.Tell, want)
		}
	}
	tells()
	s.pass(ms)
	s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{5, 0}, outcome{1, [2]time.Duration{0, 2 * time.Second}}))
	// an interval before the other limiter has its permits
	from := [2]time.Time{s.m.Clock.Add(2*time.Second - time.Second), s.m.Clock.Add(-time.Second)}
	tells(
		Notice{Limiter: 0, Dates: []Date{{dated[0], from[0], 1}}},
		Notice{Limiter: 1, Dates: []Date{{dated[1], from[1], 1}}}, Notice{Limiter: 1, Tally: &Tally{Own: 1}},
		Notice{Limiter: 0, Ended: ended[0], Served: sent}, Notice{Limiter: 1, Ended: ended[1], Served: sent})
	s.join(leaves)
	tells()
	s.q.Leave(leaves)
	tells(Notice{Limiter: 0, Ended: left[0]}, Notice{Limiter: 1, Ended: left[1]})
}

// Dates of an earlier reply, or of a reservation that has ended, change nothing.
func TestOldDatesChangeNothing(t *testing.T) {
	s := newStory(t)
	res, later := &Reservation{N: 1}, start.Add(time.Hour)
	s.q.Reserve(res, nil)
	s.q.Hear(s.m, Notice{Dates: []Date{{res, later, 2}}})
	s.q.Hear(s.m, Notice{Dates: []Date{{res, start, 1}}})
	if !res.from.Equal(later) {
		t.Errorf("the reservation counts from %v on", res.from)
	}
	s.end(res, time.Time{})
	s.q.Hear(s.m, Notice{Dates: []Date{{res, start, 3}}})
	if !res.from.Equal(later) {
		t.Errorf("once it has ended, it counts from %v on", res.from)
	}
}

// A request behind one in a stalled batch, which has no date yet, has a date of its own.
func TestARequestBehindAStalledOneHasADate(t *testing.T) {
	s := newSetStory(t)
	stalled, waits := waitBoth(1, 1), waitBoth(1, 1)
	for _, r := range []*Request{stalled, waits} {
		r.Reservations = []*Reservation{{N: 1}, {N: 1}}
	}
	s.join(stalled)
	s.q.Stalled(s.sends(stalled))
	s.join(waits)
	b := s.sends(waits)
	s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{5, 0}, outcome{0, [2]time.Duration{0, 2 * time.Second}}))
	for i, n := range s.q.effects.Tell {
		if len(n.Dates) != 1 || n.Dates[0].Reservation != waits.Reservations[i] {
			t.Errorf("limiter %d is told %+v", i, n)
		}
	}
	if len(s.q.effects.Tell) != 2 {
		t.Errorf("%d limiters are told", len(s.q.effects.Tell))
	}
}
