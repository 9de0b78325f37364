package charge

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A debt is no fault: nothing repairs it, and what reads a limiter tells it.
func TestADebtIsNoFault(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seen := &rig.Log{}
		r := rig.New(t, s, rratelimiter.WithObserver(seen))
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		mustCharge(t, "a debt", l, 35, result(true, 10, 0, 3*time.Minute, time.Minute, 4*time.Minute))
		if free := r.Free(l); free != 0 {
			t.Errorf("%d permits are free", free)
		}
		want := result(false, 10, 0, 3*time.Minute, time.Minute, 4*time.Minute)
		if peeked, err := l.Peek(t.Context(), 1); err != nil || peeked != want {
			t.Errorf("%+v, %v", peeked, err)
		}
		if repaired, err := l.Repair(t.Context()); err != nil || repaired.Fault != "" {
			t.Errorf("%+v, %v", repaired, err)
		}
		if s, exact, err := l.Glance(t.Context()); err != nil || !exact || s.Debt != 25 || !s.Consistent {
			t.Errorf("%+v, %v", s, err)
		}
		r.Advance(2 * time.Minute)
		rig.MustTry(t, l, 1, false)
		for _, call := range seen.All() {
			if call.Repaired != "" {
				t.Errorf("repaired: %s", call.Repaired)
			}
		}
		if s := rig.State(t, l); s.Debt != 5 || s.Used != 15 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// A debt counts against a new rate if the state is kept. Release gives back its oldest permits, and
// Reset and a new rate end it.
func TestADebtAndChangesOfTheLimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		owes := func(what string, debt, available int64) {
			t.Helper()
			if s := rig.State(t, l); s.Debt != debt || s.Available != available || !s.Consistent {
				t.Errorf("%s: %+v", what, s)
			}
		}
		mustCharge(t, "a debt", l, 35, result(true, 10, 0, 3*time.Minute, time.Minute, 4*time.Minute))
		if n := r.Release(l, 3); n != 3 {
			t.Errorf("%d permits came back", n)
		}
		owes("a release", 22, 0)
		r.SetRate(l, rratelimiter.PerMinute(40), rratelimiter.KeepState())
		owes("a higher rate", 0, 8)
		r.SetRate(l, rratelimiter.PerMinute(20), rratelimiter.KeepState())
		owes("a lower rate", 12, 0)
		mustCharge(t, "more", l, 2, result(false, 20, 0, 2*time.Minute, time.Minute, 4*time.Minute))
		owes("more", 14, 0)
		if _, err := l.Reset(t.Context()); err != nil {
			t.Error(err)
		}
		owes("a reset", 0, 20)
		if _, err := l.Charge(t.Context(), 30); err != nil {
			t.Error(err)
		}
		r.SetRate(l, rratelimiter.PerMinute(20))
		owes("a new rate", 0, 20)
	})
}
