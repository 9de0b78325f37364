package schedule

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

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
