package schedule

import (
	"testing"
	"time"
)

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
	s.q.Stalled(one)
	short.Until = s.m.Clock.Add(215 * ms)
	short.End = short.Until
	s.join(short)
	two := s.sends(short)
	s.q.Stalled(two)
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
