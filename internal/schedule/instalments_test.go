package schedule

import "testing"

// A caller that was granted fewer permits than the rate asks at once for twice as many. So it gets
// some of those that return while other clients take permits, too, and does not wait until a whole
// rate is free.
func TestTheNextInstalmentIsTwiceAsLarge(t *testing.T) {
	s := newStory(t)
	r := wait(100)
	r.Instalments = new(Instalments)
	s.join(r)
	settle := func(free, granted int64) {
		b := s.sends(r)
		s.q.Settle(s.m, b, s.reply(b, free, 100*ms, granted))
	}
	settle(3, -1) // more than the rate
	settle(3, 0)
	settle(0, 1)
	s.sends(r)
	if in := r.Instalments; in.Taken != 3 || r.Permits.First != 6 || in.Left != 91 {
		t.Errorf("after %d permits the caller asks for %d of the others, expected 3 and 6", in.Taken, r.Permits.First)
	}
}
