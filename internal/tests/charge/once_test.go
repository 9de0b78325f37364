package charge

import (
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// once_test.go loses requests and replies: each charge counts once.

// A charge whose reply was lost is found again by the newest of its records, and its retry tells
// what is free then.
func TestALostChargeCountsOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, format := range rig.Formats {
			for name, n := range map[string]int64{"of free permits": 4, "with a debt": 37} {
				t.Run(format.String()+" "+name, func(t *testing.T) {
					r := rig.New(t, s)
					client, tap := r.Tapped()
					opts := []rratelimiter.LimiterOption{
						rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithRecordFormat(format),
					}
					l := client.RateLimiter(t.Name(), opts...)
					tap.Plan(rig.Plan{Cut: true, Then: func() { r.Advance(ms) }}, rig.Plan{Lost: true},
						rig.Plan{Cut: true})
					result, err := l.Charge(t.Context(), n)
					state := rig.State(t, l)
					if err != nil || !result.Allowed || state.Used != n || !state.Consistent || tap.Requests() != 5 {
						t.Errorf("%+v, %v, and then %+v", result, err, state)
					}
					var retry time.Duration
					if n > 10 {
						retry = 3*time.Second - ms
					}
					if result.RetryAfter != retry || result.Remaining != max(0, 10-n) {
						t.Errorf("%+v", result)
					}
				})
			}
		}
	})
}

// A charge that did not arrive is made again. Once its records may have expired, nobody knows
// whether it did.
func TestAChargeThatDidNotArriveIsRepeated(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		tap.Plan(rig.Plan{Lost: true}, rig.Plan{Lost: true})
		mustCharge(t, "twice lost", l, 12, result(true, 10, 0, time.Minute, time.Minute, 2*time.Minute))
		if s := rig.State(t, l); s.Used != 12 || s.Debt != 2 {
			t.Errorf("%+v", s)
		}
		fast := client.RateLimiter("fast", rratelimiter.WithRate(rratelimiter.Rate{Permits: 10, Interval: ms}))
		tap.Plan(rig.Plan{Lost: true})
		if _, err := fast.Charge(t.Context(), 1); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("an interval is over: %v", err)
		}
	})
}

// Permits of one period are stored as one record. As long as no later call has joined it, a retry
// finds its share.
func TestALostChargeWithGranularity(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		opts := []rratelimiter.LimiterOption{
			rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithGranularity(time.Second),
		}
		l := client.RateLimiter("l", opts...)
		check := func(what string, n int64, unknown bool, used int64) {
			t.Helper()
			_, err := l.Charge(t.Context(), n)
			state := rig.State(t, l)
			if unknown != errors.Is(err, rratelimiter.ErrOutcomeUnknown) || !unknown && err != nil ||
				state.Used != used || state.Records != 2 || !state.Consistent {
				t.Errorf("%s: %v, %+v", what, err, state)
			}
		}
		tap.Plan(rig.Plan{Cut: true})
		check("a lost reply", 12, false, 12)
		check("it joins", 3, false, 15)
		tap.Plan(rig.Plan{Cut: true, Then: func() {
			if _, err := r.Limiter("l", opts...).Charge(t.Context(), 1); err != nil {
				t.Error(err)
			}
		}})
		check("another one has joined", 1, true, 17)
	})
}

// A charge of several limiters is found again at any of them.
func TestALostChargeOfSeveralLimitersCountsOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		full := client.RateLimiter("full", rratelimiter.WithRate(rratelimiter.PerMinute(1)),
			rratelimiter.WithMaxDebt(0))
		rig.MustTry(t, full, 1, true)
		other := client.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		tap.Plan(rig.Plan{Cut: true})
		results, err := client.ChargeAll(t.Context(), []int64{1, 12}, full, other)
		if err != nil && !errors.Is(err, rratelimiter.ErrDebtBound) || len(results) != 2 || results[1].RetryAfter == 0 {
			t.Errorf("%+v, %v", results, err)
		}
		if a, b := rig.State(t, full), rig.State(t, other); a.Used != 1 || b.Used != 12 {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// The retry of a charge that reached the bound says so, too.
func TestTheRetryOfAChargeKnowsItsBound(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithMaxDebt(2))
		tap.Plan(rig.Plan{Cut: true})
		if _, err := l.Charge(t.Context(), 50); !errors.Is(err, rratelimiter.ErrDebtBound) {
			t.Error(err)
		}
		if s := rig.State(t, l); s.Used != 30 {
			t.Errorf("%+v", s)
		}
	})
}
