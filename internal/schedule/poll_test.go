package schedule

import (
	"testing"
	"time"
)

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
