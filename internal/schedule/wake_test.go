package schedule

import "testing"

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
