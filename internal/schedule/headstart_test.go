package schedule

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// While Redisson uses the limiter, a process that holds more than its share leaves permits that
// return to others for a head start. A request that comes meanwhile waits for that, too, and a
// superfluous look does not put off the end of it.
func TestHeadStart(t *testing.T) {
	s := newStory(t)
	first := wait(2)
	s.besideRedisson([]time.Duration{time.Second}, first)
	s.wakes(time.Second) // the permits of this process return at that time
	s.q.Leave(first)
	second := wait(1)
	s.join(second)
	if b := s.sends(); b != nil {
		t.Error("it does not leave the permits to others")
	}
	s.wakes(150 * ms)
	s.pass(10 * ms)
	s.wakes(140 * ms)
	s.pass(140 * ms)
	s.sends(second)
}

// besideRedisson lets one caller take 9 permits, and then others wait, each for more than the one
// that is free, while Redisson uses the limiter. The permits of each return after a time.
func (s *story) besideRedisson(after []time.Duration, callers ...*Request) {
	many := tries(9)
	s.join(many)
	b := s.sends(many)
	s.q.Settle(s.m, b, s.reply(b, 1, 0, 1))
	s.join(callers...)
	b = s.sends(callers...)
	g := s.reply(b, 1, after[0], make([]int64, len(after))...)
	for i, wait := range after {
		g.SetWait(i, 0, wait.Microseconds())
	}
	g.First.Notes |= protocol.ForeignWriter
	s.q.Settle(s.m, b, g)
}

// A request of a set leaves permits to Redisson only at the limiter that it waits for.
func TestNoHeadStartWhereASetDoesNotWait(t *testing.T) {
	s := newSetStory(t)
	many := both(1, 9)
	s.join(many)
	b := s.sends(many)
	s.q.Settle(s.m, b, s.replyOfBoth(b, [2]int64{9, 1}, outcome{granted: 1}))
	waits := waitBoth(10, 1)
	s.join(waits)
	b = s.sends(waits)
	g := s.replyOfBoth(b, [2]int64{9, 1}, outcome{waits: [2]time.Duration{500 * ms, 0}})
	g.Rest[0].Notes = protocol.ForeignWriter
	s.q.Settle(s.m, b, g)
	s.wakes(500 * ms)
}

// A head start ends in time by the monotonic clock, too. So a clock that is set back keeps no
// caller waiting behind those that do not wait, however often these come.
func TestAHeadStartEndsThoughTheClockIsSetBack(t *testing.T) {
	s := newStory(t)
	first := wait(2)
	s.besideRedisson([]time.Duration{100 * ms}, first) // the head start ends after 250 ms
	s.m.Clock = s.m.Clock.Add(-time.Hour)
	for range 2 {
		s.pass(120 * ms)
		try := tries(2)
		s.join(try)
		b := s.sends(try)
		s.q.Settle(s.m, b, s.reply(b, 1, 100*ms, 0))
	}
	s.pass(120 * ms)
	try := tries(2)
	s.join(try)
	s.sends(first, try)
}

// If the first caller leaves, the next one may need no more than was free at the last reply. These
// permits are left to others for as long as those that return, and it is asked for then; but not
// during the head start for the permits of the first one.
func TestTheFirstCallerLeavesBesideRedisson(t *testing.T) {
	for name, c := range map[string]struct{ returns, leaves, asks time.Duration }{
		"at once":                         {900 * ms, 0, 150 * ms},
		"later":                           {900 * ms, 300 * ms, 300 * ms},
		"during the head start":           {500 * ms, 600 * ms, 650 * ms},
		"when its permits return":         {500 * ms, 500 * ms, 650 * ms},
		"shortly before they return":      {100 * ms, 50 * ms, 250 * ms},
		"and they return in a head start": {150 * ms, 0, 300 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			first, next := wait(5), wait(1)
			s.besideRedisson([]time.Duration{c.returns, c.returns + 100*ms}, first, next)
			s.pass(c.leaves)
			s.q.Leave(first)
			if c.asks > c.leaves {
				s.sends()
				s.wakes(c.asks - c.leaves)
				s.pass(c.asks - c.leaves)
			}
			s.sends(next)
		})
	}
}

// If something changes during a head start, the next caller is asked for at its end, though by the
// last reply its permits are free later.
func TestNewsDuringAHeadStart(t *testing.T) {
	s := newStory(t)
	first, next := wait(2), wait(3)
	s.besideRedisson([]time.Duration{500 * ms, 900 * ms}, first, next) // the head start ends after 650 ms
	s.pass(600 * ms)
	s.q.Leave(first)
	s.wakes(300 * ms)
	s.q.SeeRedisson(true)
	s.sends()
	s.wakes(50 * ms)
	s.pass(50 * ms)
	s.sends(next)
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
