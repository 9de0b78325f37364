package charge

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// options_test.go has a charge beside each option of a limiter.

// A debt has a bound. What is above it is not counted, and Charge says so.
func TestADebtHasABound(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		for name, c := range map[string]struct {
			opts []rratelimiter.LimiterOption
			used int64
		}{
			"by default": {nil, 110},
			"none":       {[]rratelimiter.LimiterOption{rratelimiter.WithMaxDebt(0)}, 10},
			"many":       {[]rratelimiter.LimiterOption{rratelimiter.WithMaxDebt(1000)}, 10010},
		} {
			l := r.Limiter(name, append(c.opts, rratelimiter.WithRate(rratelimiter.PerSecond(10)))...)
			for _, n := range []int64{1 << 62, 1} {
				if result, err := l.Charge(t.Context(), n); !errors.Is(err, rratelimiter.ErrDebtBound) ||
					result.RetryAfter != time.Duration(c.used/10)*time.Second {
					t.Errorf("%s: %+v, %v", name, result, err)
				}
			}
			if s := rig.State(t, l); s.Used != c.used || !s.Consistent {
				t.Errorf("%s: %+v", name, s)
			}
		}
		never := r.Limiter("never", rratelimiter.WithRate(rratelimiter.PerSecond(0)))
		if result, err := never.Charge(t.Context(), 1); !errors.Is(err, rratelimiter.ErrDebtBound) ||
			result != (rratelimiter.Result{}) {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// A lease of this process goes first. Where it does not cover the charge, it ends, and what it held
// is free before: the charge leaves no debt while this process holds permits.
func TestAChargeUsesTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.ToBucket(time.Second, ms) // the lease lasts for nearly a second
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(100)), rratelimiter.WithLease(time.Second))
		for range 10 { // until there is demand
			rig.MustTry(t, l, 1, true)
		}
		held := rig.State(t, l)
		if held.Leased < 3 {
			t.Fatalf("no lease: %+v", held)
		}
		calls := r.Calls.Load()
		if result, err := l.Charge(t.Context(), 2); err != nil || !result.Allowed {
			t.Errorf("%+v, %v", result, err)
		}
		// the call is that of State
		if s := rig.State(t, l); r.Calls.Load() != calls+1 || s.Leased != held.Leased-2 || s.Used != held.Used {
			t.Errorf("%d calls, %+v, before %+v", r.Calls.Load()-calls, s, held)
		}
		if result, err := l.Charge(t.Context(), 88); err != nil || result.Remaining != 0 {
			t.Errorf("%+v, %v", result, err)
		}
		if s := rig.State(t, l); s.Leased != 0 || s.Used != 100 || s.Debt != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A lease that is used up does not tell whether a permit is free: others may have the rest.
func TestAChargeOfNothingWithAUsedLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(100)), rratelimiter.WithLease(time.Second))
		for r.Try(l, 1) {
		}
		if result, err := l.Charge(t.Context(), 0); err != nil || result.Allowed || result.RetryAfter != time.Minute {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// A cached refusal stops no charge. After a charge that leaves no permit, the cache knows when one
// is free.
func TestTheDenyCacheKnowsADebt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(8))
		rig.MustTry(t, l, 10, true)
		rig.MustTry(t, l, 1, false)
		r.Advance(100 * ms)
		mustCharge(t, "after a refusal", l, 15, result(false, 10, 0, 1900*ms, 900*ms, 2900*ms))
		calls := r.Calls.Load()
		for _, pause := range []time.Duration{0, 1800 * ms, 99 * ms} {
			r.Advance(pause)
			rig.MustTry(t, l, 1, false)
		}
		if n := r.Calls.Load() - calls; n != 0 {
			t.Errorf("%d calls for requests that the cache refuses", n)
		}
		r.Advance(ms)
		rig.MustTry(t, l, 1, true)
	})
}

// While Redis is away, the process counts a charge against its own limit, for an interval.
func TestTheProcessCountsACharge(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped(rratelimiter.WithCallTimeout(200 * ms))
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithFallback(0.5))
		none := client.RateLimiter("none", rratelimiter.WithRate(rratelimiter.PerMinute(10)),
			rratelimiter.WithFallback(0))
		rig.MustTry(t, l, 1, true)
		lost := make([]rig.Plan, 1000)
		for i := range lost {
			lost[i].Lost = true
		}
		tap.Plan(lost...)
		if result, err := l.Charge(t.Context(), 8); err != nil || !result.Allowed || result.Limit != 5 ||
			result.RetryAfter <= 0 {
			t.Errorf("%+v, %v", result, err)
		}
		rig.MustTry(t, l, 1, false)
		if _, err := l.Charge(t.Context(), 1000); !errors.Is(err, rratelimiter.ErrDebtBound) {
			t.Error(err)
		}
		if _, err := none.Charge(t.Context(), 1); !errors.Is(err, rratelimiter.ErrUnavailable) {
			t.Error(err)
		}
		r.Advance(67 * time.Second) // a tenth more, since the process counts by tenths
		rig.MustTry(t, l, 5, true)
	})
}

// The permits of each period are one record, also those of a debt.
func TestADebtWithGranularity(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(100)),
			rratelimiter.WithGranularity(time.Second))
		for range 50 {
			if _, err := l.Charge(t.Context(), 5); err != nil {
				t.Fatal(err)
			}
			r.Advance(10 * ms)
		}
		if s := rig.State(t, l); s.Used != 250 || s.Records > 6 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// The clock of the server dates charges where it dates grants, each client has its own debt with
// the type PerClient, and a rate that is enforced comes before the charge.
func TestAChargeObeysTheOptions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		server := r.Limiter("server", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithServerTime())
		r.Advance(-time.Hour)
		if result, err := server.Charge(t.Context(), 15); err != nil || result.RetryAfter > time.Minute+ms ||
			result.RetryAfter <= 0 {
			t.Errorf("%+v, %v", result, err)
		}
		if s := rig.State(t, server); time.Since(s.Oldest).Abs() > 10*time.Minute || s.Debt != 5 {
			t.Errorf("%+v", s)
		}

		rate := rratelimiter.PerMinute(10)
		rate.Type = rratelimiter.PerClient
		own, others := r.Limiter("own", rratelimiter.WithRate(rate)), r.Beside("other").Limiter("own")
		mustCharge(t, "per client", own, 25, result(true, 10, 0, 2*time.Minute, time.Minute, 3*time.Minute))
		if free := r.Free(others); free != 10 {
			t.Errorf("%d permits of another client are free", free)
		}
		ttl := r.Redis.PTTL(t.Context(), rig.Keys(own)[keys.ClientPermits]).Val()
		if ttl < 3*time.Minute || ttl > 4*time.Minute+time.Second {
			t.Errorf("the records of a client live for %v", ttl)
		}

		enforced := r.Limiter("enforced", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(5)))
		r.SetRate(enforced, rratelimiter.PerMinute(100))
		mustCharge(t, "enforced", enforced, 6, result(true, 5, 0, time.Minute, time.Minute, 2*time.Minute))
	})
}

// A keep-alive does not end a debt: the limiter lives until that is paid back.
func TestADebtOutlivesTheKeepAlive(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.PerMinute(10)
		rate.KeepAlive = time.Minute
		l := r.Limiter("l", rratelimiter.WithRate(rate))
		if _, err := l.Charge(t.Context(), 45); err != nil {
			t.Fatal(err)
		}
		rig.MustTry(t, l, 1, false)
		for _, i := range []int{keys.Config, keys.Value, keys.Permits} {
			if ttl := r.Redis.PTTL(t.Context(), rig.Keys(l)[i]).Val(); ttl < 5*time.Minute-10*time.Second ||
				ttl > 6*time.Minute {
				t.Errorf("key %d lives for %v", i, ttl)
			}
		}
	})
}

// An observer is told what was charged, and the observer of requests of each charge.
func TestAnObserverSeesCharges(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seen := &observer{}
		r := rig.New(t, s, rratelimiter.WithObserver(seen))
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		for _, n := range []int64{3, 1000, -1} {
			_, _ = l.Charge(t.Context(), n)
		}
		calls := seen.All()
		if len(calls) != 2 || calls[0].Charged != 3 || calls[1].Charged != 107 || calls[1].Permits != 0 {
			t.Errorf("%+v", calls)
		}
		if len(seen.requests) != 3 || seen.requests[0].Granted != 3 || seen.requests[1].Granted != 107 ||
			!errors.Is(seen.requests[1].Err, rratelimiter.ErrDebtBound) || seen.requests[2].Method != "Charge" {
			t.Errorf("%+v", seen.requests)
		}
	})
}

type observer struct {
	rig.Log
	requests []rratelimiter.RequestInfo
}

func (o *observer) Request(_ context.Context, info rratelimiter.RequestInfo) {
	o.requests = append(o.requests, info)
}
