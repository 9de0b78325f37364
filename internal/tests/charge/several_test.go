package charge

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// Several limiters are charged by one call. One that is listed twice is charged the sum, and its
// debt is told at both places.
func TestSeveralLimitersAreChargedInOneStep(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		a := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		b := r.Limiter("b", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithMaxDebt(1))
		r.Calls.Store(0)
		results, err := r.Client.ChargeAll(t.Context(), []int64{6, 3, 7}, a, b, a)
		want := []rratelimiter.Result{
			result(true, 10, 0, time.Minute, time.Minute, 2*time.Minute),
			result(true, 10, 7, 0, time.Second, time.Second),
			result(true, 10, 0, time.Minute, time.Minute, 2*time.Minute),
		}
		for i := range want {
			if err != nil || len(results) != 3 || results[i] != want[i] {
				t.Fatalf("%+v, %v, want %+v", results, err, want)
			}
		}
		if n := r.Calls.Load(); n > 2 { // the first one may load the script
			t.Errorf("%d calls", n)
		}
		results, err = r.Client.ChargeAll(t.Context(), []int64{1, 100}, a, b)
		if !errors.Is(err, rratelimiter.ErrDebtBound) || len(results) != 2 || results[1].RetryAfter != 2*time.Second {
			t.Errorf("%+v, %v", results, err)
		}
		if a, b := rig.State(t, a), rig.State(t, b); a.Used != 14 || b.Used != 20 {
			t.Errorf("%+v, %+v", a, b)
		}
		results, err = r.Client.ChargeAll(t.Context(), []int64{math.MaxInt64, math.MaxInt64}, b, b)
		if !errors.Is(err, rratelimiter.ErrDebtBound) || len(results) != 2 {
			t.Errorf("a sum that is too large for a number: %+v, %v", results, err)
		}
		if results, err := r.Client.ChargeAll(t.Context(), nil); results != nil || err != nil {
			t.Error(results, err)
		}
	})
}

// Limiters that cannot be asked in one step are charged one after the other, also those behind one
// that fails.
func TestLimitersThatAreChargedApart(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		apart := rratelimiter.NewClient(struct{ rratelimiter.Redis }{s.Client()}, rratelimiter.WithClock(r.Now),
			rig.Patient)
		var all []*rratelimiter.Limiter
		for _, name := range []string{"a", "b", "c"} {
			all = append(all, apart.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10))))
		}
		r.Must(r.Redis.LPush(t.Context(), rig.Keys(all[1])[keys.Permits], "foreign").Err())
		results, err := apart.ChargeAll(t.Context(), []int64{1, 2, 13}, all...)
		if err == nil || len(results) != 3 || results[0].Remaining != 9 || results[1] != (rratelimiter.Result{}) ||
			results[2].RetryAfter != time.Minute {
			t.Errorf("%+v, %v", results, err)
		}
		if s := rig.State(t, all[2]); s.Debt != 3 {
			t.Errorf("%+v", s)
		}
		r.Must(r.Redis.Del(t.Context(), rig.Keys(all[1])[keys.Permits]).Err())
	})
}
