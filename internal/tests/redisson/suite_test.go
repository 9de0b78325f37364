package redisson

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// suite_test.go tests the behaviours for which Redisson's own test suite has a test case. Each test names that test
// case; the implementation is independent.

// onServers runs a test on all servers, with a limiter whose clock the test controls.
func onServers(t *testing.T, test func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		clock := rig.NewHandClock()
		test(t, rratelimiter.NewClient(s.Client(), rratelimiter.WithClock(clock.Now), rig.Patient).RateLimiter("limiter"), clock)
	})
}

func mustBe(t *testing.T, l *rratelimiter.Limiter, want rratelimiter.Rate) {
	t.Helper()
	if got, err := l.Config(t.Context()); err != nil || got != want {
		t.Fatalf("Config: %v, %v, expected %v", got, err, want)
	}
}

// testKeepAliveTime
func TestSuiteKeepAliveTime(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, rateType := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			rdb := s.Client()
			l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("limiter")
			rate := rratelimiter.Rate{Type: rateType, Permits: 10, Interval: 100 * ms, KeepAlive: 700 * ms}
			used := time.Now()
			rig.MustTrySet(t, l, rate, true)
			if got, err := l.Config(t.Context()); got != rate && time.Since(used) < rate.KeepAlive-50*ms {
				t.Fatalf("Config: %v, %v", got, err)
			}
			for start := used; time.Since(start) < 2*rate.KeepAlive; time.Sleep(50 * ms) { // each use extends its TTL
				asked := time.Now()
				if _, err := l.TryAcquire(t.Context(), 1); err != nil {
					if time.Since(used) < rate.KeepAlive-50*ms {
						t.Fatalf("%v after its last use: %v", time.Since(used), err)
					}
					asked = time.Now()
					rig.MustTrySet(t, l, rate, true) // the machine stood still: try again
					start = asked
				}
				used = asked
				if ttl, err := l.TTL(t.Context()); err == nil && (ttl <= 0 || ttl > rate.KeepAlive) {
					t.Fatalf("TTL: %v", ttl)
				}
			}
			rig.Soon(t, "its end", func() bool { return len(rdb.Keys(t.Context(), "*limiter*").Val()) == 0 })
			if _, err := l.TryAcquire(t.Context(), 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
				t.Error(err)
			}
			if set, err := l.TrySetRate(t.Context(), rratelimiter.Rate{Permits: 1, Interval: time.Second, KeepAlive: 999 * ms}); set || !errors.Is(err, rratelimiter.ErrInvalidRate) {
				t.Errorf("a keep-alive below the interval: %v, %v", set, err)
			}
		})
	}
}

// testExpire: all keys are removed when the TTL ends.
func TestSuiteExpire(t *testing.T) {
	t.Parallel() // it mostly waits
	for _, rateType := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			rdb := s.Client()
			l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("limiter")
			rig.MustTrySet(t, l, rratelimiter.Rate{Type: rateType, Permits: 3, Interval: time.Hour}, true)
			rig.MustTry(t, l, 1, true)
			if set, err := l.Expire(t.Context(), 600*ms); !set || err != nil {
				t.Fatal(set, err)
			}
			if n := len(rdb.Keys(t.Context(), "*limiter*").Val()); n != 3 && n != 0 {
				t.Errorf("%d keys", n)
			}
			rig.Soon(t, "its end", func() bool { return len(rdb.Keys(t.Context(), "*limiter*").Val()) == 0 })
			if exists, err := l.Exists(t.Context()); exists || err != nil {
				t.Error(exists, err)
			}
			if _, err := l.TTL(t.Context()); !errors.Is(err, rratelimiter.ErrNotInitialized) {
				t.Error(err)
			}
		})
	}
}

// testExpire2: keys that are created after the TTL was set get it, too, and later uses do not remove it.
func TestSuiteExpire2(t *testing.T) {
	for _, rateType := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		redistest.Each(t, func(t *testing.T, s *redistest.Server) {
			rdb := s.Client()
			l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("limiter")
			rig.MustTrySet(t, l, rratelimiter.Rate{Type: rateType, Permits: 30, Interval: time.Second}, true)
			if set, err := l.Expire(t.Context(), time.Hour); !set || err != nil {
				t.Fatal(set, err)
			}
			indexes := [][]int{{keys.Config, keys.Value, keys.Permits}, {keys.Config, keys.ClientValue, keys.ClientPermits}}[rateType]
			for range 3 {
				rig.MustTry(t, l, 1, true)
				for _, key := range indexes {
					ttl, err := rdb.PTTL(t.Context(), rig.Keys(l)[key]).Result()
					if err != nil || ttl <= 0 || ttl > time.Hour {
						t.Errorf("%s lives %v, %v", rig.Keys(l)[key], ttl, err)
					}
				}
			}
			if cleared, err := l.ClearExpire(t.Context()); !cleared || err != nil {
				t.Error(cleared, err)
			}
			rig.MustTry(t, l, 1, true)
			if ttl, err := l.TTL(t.Context()); ttl != 0 || err != nil {
				t.Error(ttl, err)
			}
			if ttl := rdb.PTTL(t.Context(), rig.Keys(l)[keys.Value]).Val(); rateType == rratelimiter.Overall && ttl > 0 {
				t.Errorf("the state lives %v", ttl)
			}
		})
	}
}

// testRateValue: however the limiter is used, no more permits than the rate are ever free, and all of them are after an
// interval.
func TestSuiteRateValue(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second}, true)
		for round := range 20 {
			for n := range int64(4) {
				rig.MustTry(t, l, n+1, true)
				clock.Advance(time.Duration(37*round+13) * ms % (200 * ms))
				if free, err := l.AvailablePermits(t.Context()); err != nil || free > 10 || free < 0 {
					t.Fatal(free, err)
				}
			}
			clock.Advance(time.Second)
			rig.MustBeFree(t, l, 10)
		}
	})
}

// testAcquisitionInterval: permits acquired at different times return at different times.
func TestSuiteAcquisitionInterval(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 5, Interval: 5 * time.Second}, true)
		for range 5 {
			rig.MustTry(t, l, 1, true)
			clock.Advance(time.Second)
		}
		for range 10 { // 5 s after the first: one a second
			rig.MustTry(t, l, 2, false)
			rig.MustTry(t, l, 1, true)
			rig.MustTry(t, l, 1, false)
			clock.Advance(999 * ms)
			rig.MustTry(t, l, 1, false)
			clock.Advance(ms)
		}
	})
}

// testRateConfig
func TestSuiteRateConfig(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		if _, err := l.Config(t.Context()); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Error(err)
		}
		first := rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 1, Interval: 5 * time.Second}
		rig.MustTrySet(t, l, first, true)
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 100, Interval: time.Minute}, false)
		mustBe(t, l, first)
	})
}

// testAvailablePermits
func TestSuiteAvailablePermits(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		if _, err := l.AvailablePermits(t.Context()); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Error(err)
		}
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second}, true)
		rig.MustBeFree(t, l, 10)
		rig.MustTry(t, l, 1, true)
		rig.MustBeFree(t, l, 9)
		clock.Advance(999 * ms)
		rig.MustTry(t, l, 8, true)
		rig.MustBeFree(t, l, 1)
		clock.Advance(ms)
		rig.MustBeFree(t, l, 2)
		clock.Advance(999 * ms)
		rig.MustBeFree(t, l, 10)
	})
}

// testUpdateRateConfig: setting the rate again resets the state.
func TestSuiteUpdateRateConfig(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustSet(t, l, rratelimiter.Rate{Permits: 1, Interval: 5 * time.Second})
		rig.MustTry(t, l, 1, true)
		rig.MustTry(t, l, 1, false)
		for _, r := range []rratelimiter.Rate{
			{Permits: 4, Interval: 5 * time.Second},
			{Type: rratelimiter.PerClient, Permits: 2, Interval: time.Second},
			{Permits: 3, Interval: time.Minute},
		} {
			rig.MustSet(t, l, r)
			mustBe(t, l, r)
			rig.MustTry(t, l, r.Permits, true)
			rig.MustTry(t, l, 1, false)
			clock.Advance(r.Interval)
			rig.MustTry(t, l, r.Permits, true)
		}
	})
}

// testPermitsExceeding
func TestSuitePermitsExceeding(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustTrySet(t, l, rratelimiter.PerSecond(1), true)
		for name, ask := range rig.EveryWay(l) {
			if err := ask(t.Context(), 20); !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Errorf("%s: %v", name, err)
			}
		}
		rig.MustTry(t, l, 1, true)
		rig.MustTry(t, l, 1, false)
	})
}

// testZeroTimeout: with a timeout of zero there is one try.
func TestSuiteZeroTimeout(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 5, Interval: time.Second}, true)
		for i := range 10 {
			if ok, err := l.TryAcquireTimeout(t.Context(), 1, 0); err != nil || ok != (i < 5) {
				t.Errorf("try %d: %v, %v", i, ok, err)
			}
		}
		clock.Advance(time.Second)
		if ok, err := l.TryAcquireTimeout(t.Context(), 5, 0); !ok || err != nil {
			t.Error(ok, err)
		}
	})
}

// testTryAcquire
func TestSuiteTryAcquire(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 5, Interval: time.Second}, true)
		for range 5 {
			rig.MustTry(t, l, 1, true)
		}
		rig.MustTry(t, l, 1, false)
		clock.Advance(time.Second)
		rig.MustTry(t, l, 5, true)
		rig.MustTry(t, l, 1, false)
	})
}

// testAcquire: it waits until an interval has passed since the grants whose permits it needs.
func TestSuiteAcquire(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const interval = 250 * ms
		l := rratelimiter.NewClient(s.Client(), rig.Patient).RateLimiter("limiter")
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 5, Interval: interval}, true)
		start := time.Now()
		for i := range 11 {
			if err := l.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			if least := time.Duration(i/5) * interval; time.Since(start) < least-ms {
				t.Errorf("grant %d after %v, expected at least %v", i, time.Since(start), least)
			}
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %v", took)
		}
	})
}

// testRemove
func TestSuiteRemove(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		for _, rateType := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter("limiter")
			if deleted, err := l.Delete(t.Context()); deleted || err != nil {
				t.Error(deleted, err)
			}
			rig.MustTrySet(t, l, rratelimiter.Rate{Type: rateType, Permits: 5, Interval: time.Hour}, true)
			rig.MustTry(t, l, 3, true)
			if deleted, err := l.Delete(t.Context()); !deleted || err != nil {
				t.Error(deleted, err)
			}
			if keys := rdb.Keys(t.Context(), "*").Val(); len(keys) != 0 {
				t.Errorf("%q remain", keys)
			}
			if _, err := l.TryAcquire(t.Context(), 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
				t.Error(err)
			}
		}
	})
}

// crowd makes callers, each with one of several clients, acquire one permit at a time until the given number is
// granted.
func crowd(t *testing.T, s *redistest.Server, r rratelimiter.Rate, clients, callers, permits int) {
	t.Helper()
	var mu sync.Mutex
	var grants []window.Grant
	var left atomic.Int64
	left.Store(int64(permits))
	var all sync.WaitGroup
	start := time.Now()
	for range clients {
		l := rratelimiter.NewClient(s.Client(), rig.Patient).RateLimiter("limiter")
		if _, err := l.TrySetRate(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		for range callers {
			all.Go(func() {
				for left.Add(-1) >= 0 {
					asked := time.Now()
					if err := l.Acquire(t.Context(), 1); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					grants = append(grants, window.Grant{Permits: 1, Start: asked, End: time.Now()})
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	if len(grants) != permits {
		t.Errorf("%d grants, expected %d", len(grants), permits)
	}
	if most, at := window.Largest(grants, r.Interval); most > r.Permits {
		t.Errorf("%d permits in the %v from %v", most, r.Interval, at)
	}
	if least := time.Duration((permits-1)/int(r.Permits)) * r.Interval; time.Since(start) < least-ms {
		t.Errorf("took %v, at least %v are needed", time.Since(start), least)
	}
}

// testConcurrency: many threads of one client.
func TestSuiteConcurrency(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		crowd(t, s, rratelimiter.Rate{Permits: 10, Interval: 100 * ms}, 1, 16, 100)
	})
}

// testConcurrency2: several clients with threads of their own.
func TestSuiteConcurrency2(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		crowd(t, s, rratelimiter.Rate{Permits: 18, Interval: 100 * ms}, 4, 8, 150)
	})
}

// testChangeRate
func TestSuiteChangeRate(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		rig.MustSet(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second})
		mustBe(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second})
		rig.MustTry(t, l, 10, true)
		rig.MustSet(t, l, rratelimiter.Rate{Permits: 20, Interval: 2 * time.Second})
		mustBe(t, l, rratelimiter.Rate{Permits: 20, Interval: 2 * time.Second})
		rig.MustBeFree(t, l, 20)
		rig.MustTry(t, l, 20, true)
		clock.Advance(1999 * ms)
		rig.MustTry(t, l, 1, false)
		clock.Advance(ms)
		rig.MustTry(t, l, 20, true)
		rig.MustSet(t, l, rratelimiter.Rate{Permits: 20, Interval: 2 * time.Second}) // the same one
		rig.MustBeFree(t, l, 20)
	})
}

// testSetStateArgs*: setting a rate with a keep-alive, and with or without keeping the state.
func TestSuiteSetStateArgs(t *testing.T) {
	for _, c := range []struct {
		name       string
		to         rratelimiter.Rate
		opts       []rratelimiter.SetOption
		free, next int64 // after 6 of 10 were used: at once, and half a second later, when 4 of these have returned
	}{
		{"state is forgotten", rratelimiter.Rate{Permits: 20, Interval: time.Second}, nil, 20, 20},
		{"state is kept", rratelimiter.Rate{Permits: 20, Interval: time.Second}, []rratelimiter.SetOption{rratelimiter.KeepState()}, 14, 18},
		{"state is kept, the rate is lower", rratelimiter.Rate{Permits: 7, Interval: time.Second},
			[]rratelimiter.SetOption{rratelimiter.KeepState()}, 1, 5},
		{"state is kept, the rate is lower than what is used", rratelimiter.Rate{Permits: 5, Interval: time.Second},
			[]rratelimiter.SetOption{rratelimiter.KeepState()}, 0, 3},
		{"state is kept, the interval is shorter", rratelimiter.Rate{Permits: 10, Interval: 500 * ms},
			[]rratelimiter.SetOption{rratelimiter.KeepState()}, 8, 10},
		{"state is kept, the interval is longer", rratelimiter.Rate{Permits: 10, Interval: time.Hour},
			[]rratelimiter.SetOption{rratelimiter.KeepState()}, 4, 4},
		{"another type", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 20, Interval: time.Second},
			[]rratelimiter.SetOption{rratelimiter.KeepState()}, 20, 20},
		{"a keep-alive", rratelimiter.Rate{Permits: 20, Interval: time.Second, KeepAlive: time.Minute},
			[]rratelimiter.SetOption{rratelimiter.KeepState()}, 14, 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
				rig.MustSet(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second})
				rig.MustTry(t, l, 4, true)
				clock.Advance(500 * ms)
				rig.MustTry(t, l, 2, true)
				if err := l.SetRate(t.Context(), c.to, c.opts...); err != nil {
					t.Fatal(err)
				}
				mustBe(t, l, c.to)
				rig.MustBeFree(t, l, c.free)
				clock.Advance(500 * ms)
				rig.MustBeFree(t, l, c.next)
				if s := rig.State(t, l); !s.Consistent && c.to.Permits >= 6 {
					t.Errorf("%+v", s)
				}
				clock.Advance(c.to.Interval)
				rig.MustTry(t, l, c.to.Permits, true)
				if ttl, err := l.TTL(t.Context()); err != nil || (ttl > 0) != (c.to.KeepAlive > 0) {
					t.Error(ttl, err)
				}
			})
		})
	}
}

// testUpdateRate*: UpdateRate sets a rate only if there is one.
func TestSuiteUpdateRate(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		to := rratelimiter.Rate{Permits: 20, Interval: time.Second}
		for _, opts := range [][]rratelimiter.SetOption{nil, {rratelimiter.KeepState()}} {
			if set, err := l.UpdateRate(t.Context(), to, opts...); set || err != nil {
				t.Error(set, err)
			}
			if exists, err := l.Exists(t.Context()); exists || err != nil {
				t.Error(exists, err)
			}
		}
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second}, true)
		rig.MustTry(t, l, 8, true)
		if set, err := l.UpdateRate(t.Context(), to, rratelimiter.KeepState()); !set || err != nil {
			t.Error(set, err)
		}
		mustBe(t, l, to)
		rig.MustBeFree(t, l, 12)
		if set, err := l.UpdateRate(t.Context(), rratelimiter.Rate{Permits: 5, Interval: time.Second}, rratelimiter.KeepState()); !set || err != nil {
			t.Error(set, err)
		}
		rig.MustBeFree(t, l, 0)
		clock.Advance(time.Second)
		rig.MustBeFree(t, l, 5)
		rig.MustTry(t, l, 5, true)
		if set, err := l.UpdateRate(t.Context(), to); !set || err != nil {
			t.Error(set, err)
		}
		rig.MustBeFree(t, l, 20)
	})
}

// testRelease: permits return early, at most those in use, and not a second time as with Redisson's release.
func TestSuiteRelease(t *testing.T) {
	onServers(t, func(t *testing.T, l *rratelimiter.Limiter, clock *rig.HandClock) {
		release := func(n, want int64) {
			t.Helper()
			if got, err := l.Release(t.Context(), n); err != nil || got != want {
				t.Fatalf("Release(%d): %d, %v, expected %d", n, got, err, want)
			}
		}
		if _, err := l.Release(t.Context(), 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Error(err)
		}
		rig.MustTrySet(t, l, rratelimiter.Rate{Permits: 10, Interval: time.Second}, true)
		release(1, 0)
		rig.MustTry(t, l, 4, true)
		clock.Advance(500 * ms)
		rig.MustTry(t, l, 6, true)
		release(0, 0)
		release(5, 5) // the 4 oldest, and one of the others
		rig.MustBeFree(t, l, 5)
		clock.Advance(500 * ms)
		rig.MustBeFree(t, l, 5)
		rig.MustTry(t, l, 6, false)
		clock.Advance(500 * ms)
		rig.MustBeFree(t, l, 10)
		rig.MustTry(t, l, 10, true)
		release(100, 10)
		rig.MustBeFree(t, l, 10)
		rig.MustTry(t, l, 10, true)
		if _, err := l.Release(t.Context(), -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
		if s := rig.State(t, l); s.Used != 10 || s.Records != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}
