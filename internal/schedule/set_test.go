package schedule

import (
	"errors"
	"slices"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// newSetStory returns a set of two limiters with requests for these numbers of permits, and the batch that carries them.
func newSetStory(t *testing.T, permits ...[]int64) (*Set, *SetBatch, []*SetRequest) {
	t.Helper()
	s, b := NewSet(2, false), new(SetBatch)
	var all []*SetRequest
	for _, n := range permits {
		r := &SetRequest{Permits: n}
		all = append(all, r)
		s.Join(r)
	}
	if !s.Due() {
		t.Fatal("no batch is due")
	}
	s.Fill(b)
	if s.Due() || b.Requests() != len(permits) {
		t.Fatalf("the batch has %d requests, and another one is due: %v", b.Requests(), s.Due())
	}
	return s, b, all
}

// setReply returns a reply for groups: how many requests of each are granted, and the waits of the others (µs).
func setReply(free [2]int64, outcomes ...[3]int64) *protocol.AllowAllReply {
	g := &protocol.AllowAllReply{Members: []protocol.MemberReply{{Rate: 10, Free: free[0], At: 1}, {Rate: 10, Free: free[1], At: 2}}}
	g.MakeOutcomes(len(outcomes))
	for i, o := range outcomes {
		g.SetOutcome(i, o[0], o[1], o[2])
	}
	return g
}

func TestSettleASet(t *testing.T) {
	one, two := []int64{1, 2}, []int64{3, 1}
	s, b, all := newSetStory(t, one, two, one, one)
	later := &SetRequest{Permits: two}
	s.Join(later)
	if s.Leave(all[2]) != b { // it stays in the batch, and what is granted for it is nobody's
		t.Error("the request that leaves is not in the batch")
	}
	facts := s.Settle(b, setReply([2]int64{4, 3}, [3]int64{2, 0, 5000}, [3]int64{1}))
	if want := []Facts{{Own: 5, Unclaimed: 1, Granted: 2}, {Own: 5, Unclaimed: 2, Granted: 2, Denied: 1}}; !slices.Equal(facts, want) {
		t.Errorf("%+v, expected %+v", facts, want)
	}
	for i, want := range []struct {
		state     State
		allowed   bool
		remaining [2]int64
	}{
		{Settled, true, [2]int64{8, 6}}, {Settled, true, [2]int64{4, 3}}, {Gone, false, [2]int64{}}, {Settled, false, [2]int64{4, 3}},
	} {
		r := all[i]
		if r.state != want.state || r.state == Settled && (r.Results[0].Allowed != want.allowed || r.Results[0].Remaining != want.remaining[0] ||
			r.Results[1].Remaining != want.remaining[1] || want.allowed != (r.At != nil)) {
			t.Errorf("request %d is %v, with %+v at %v", i, r.state, r.Results, r.At)
		}
	}
	if wait := all[3].Results[1].RetryAfter; wait != 5*ms || !s.Due() {
		t.Errorf("the refused request waits %v; the next batch is due: %v", wait, s.Due())
	}
}

// A request whose wait is not known asks again, before those that came later. One for more than a rate fails.
func TestSetRequestsThatAreNotDecided(t *testing.T) {
	s, b, all := newSetStory(t, []int64{1, 1}, []int64{1, 11})
	later := &SetRequest{Permits: []int64{1, 1}}
	s.Join(later)
	facts := s.Settle(b, setReply([2]int64{}, [3]int64{0, -1, 0}, [3]int64{-2}))
	if !errors.Is(all[1].Err, ErrExceedsRate) || all[1].Failed != 1 || facts[1].Denied != 1 || facts[0].Denied != 0 {
		t.Errorf("%v about limiter %d, %+v", all[1].Err, all[1].Failed, facts)
	}
	if all[0].state != Queued || !slices.Equal(s.queued, []*SetRequest{all[0], later}) {
		t.Errorf("the request is %v, and %d are queued", all[0].state, len(s.queued))
	}
}

// Requests that had to wait for a call that timed out fail with it, unless the set went on without it.
func TestSetRequestsBehindACall(t *testing.T) {
	failed, behind := errors.New("failed"), errors.New("behind")
	for _, stalled := range []bool{false, true} {
		s, b, all := newSetStory(t, []int64{1, 1})
		if stalled {
			s.Stalled(b)
		}
		later := &SetRequest{Permits: []int64{1, 1}}
		s.Join(later)
		f := s.Fail(b, -1, failed, behind)
		want := Facts{Denied: 2, Behind: 1}
		if stalled {
			want = Facts{Denied: 1}
		}
		if f != want || all[0].Err != failed || !stalled && later.Err != behind || s.Idle() == stalled {
			t.Errorf("stalled %v: %+v, errors %v and %v, idle %v", stalled, f, all[0].Err, later.Err, s.Idle())
		}
	}
}

// A stalled batch of a set does not hold up the next one; a fourth does.
func TestStalledSet(t *testing.T) {
	s := NewSet(1, false)
	for i := range MaxDetached + 1 {
		s.Join(&SetRequest{Permits: []int64{1}})
		b := new(SetBatch)
		s.Fill(b)
		s.Stalled(b)
		s.Join(&SetRequest{Permits: []int64{1}})
		if s.Due() != (i < MaxDetached) {
			t.Errorf("after %d stalled batches the next one is due: %v", i+1, s.Due())
		}
		s.queued = nil
	}
}
