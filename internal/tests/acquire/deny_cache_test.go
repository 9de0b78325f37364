package acquire

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestDenyCacheRefusesWithoutRedis(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 4), 0)
		b.SleepTo(100 * ms)
		b.Granted("the second", b.Try(l, 4), 100*ms)
		p.CheckCalls("the first refusal", 1, func() { b.Refused(l, 5, 900*ms) })
		first, _ := l.Allow(t.Context(), 5)
		if want := (rratelimiter.Result{
			Limit:      10,
			Remaining:  2,
			RetryAfter: 900 * ms,
			NextAfter:  900 * ms,
			ResetAfter: time.Second,
		}); first != want {
			t.Errorf("%+v, expected %+v", first, want)
		}
		b.SleepTo(300 * ms)
		p.CheckCalls("the same again, and more", 0, func() {
			for n := range int64(5) {
				b.Refused(l, 5+n, 700*ms)
			}
			if ok, err := l.TryAcquire(t.Context(), 7); ok || err != nil {
				t.Error(ok, err)
			}
		})
		p.CheckCalls("less", 1, func() { b.Granted("less", b.Try(l, 1), 300*ms) })
		p.CheckCalls("more than the rate", 1, func() {
			if _, err := l.Allow(t.Context(), 11); !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Error(err)
			}
		})
		other := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		p.CheckCalls("a handle without the option", 1, func() { b.Refused(other, 5, 700*ms) })
		b.SleepTo(999 * ms)
		p.CheckCalls("just before", 0, func() { b.Refused(l, 5, ms) })
		b.SleepTo(time.Second)
		p.CheckCalls("once they are free", 1, func() { b.Granted("then", b.Try(l, 5), time.Second) })

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b.Refused(l, 8, time.Second)
		if _, err := l.Allow(ctx, 8); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that is over: %v", err)
		}
	})
}

// A refusal of fewer permits covers more requests, so one of more permits does not replace it.
func TestDenyCacheKeepsTheSmallerRefusal(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 8), 0)
		b.SleepTo(100 * ms)
		b.Granted("the second", b.Try(l, 1), 100*ms)
		p.CheckCalls("two sizes", 2, func() { b.Refused(l, 10, time.Second); b.Refused(l, 2, 900*ms) })
		p.CheckCalls("from the smaller one on", 0, func() { b.Refused(l, 2, 900*ms); b.Refused(l, 10, 900*ms) })
	})
}

func TestDenyCacheForgetsWhatChangesHere(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, l *rratelimiter.Limiter) error{
		"Release": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 5); return err },
		"SetRate": func(ctx context.Context, l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, rratelimiter.PerSecond(20))
		},
		"UpdateRate": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.UpdateRate(ctx, rratelimiter.PerSecond(20), rratelimiter.KeepState())
			return err
		},
		"Delete": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Delete(ctx); return err },
		"Rename": func(ctx context.Context, l *rratelimiter.Limiter) error { return l.Rename(ctx, "other") },
		"RenameNX": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.RenameNX(ctx, "other")
			return err
		},
		"Expire": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Expire(ctx, 0); return err },
		"ExpireAt": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.ExpireAt(ctx, time.Unix(1, 0))
			return err
		},
		"Reset": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Reset(ctx); return err },
		"WithEnforcedRate": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.Client().RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(20))).TryAcquire(
				ctx, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("l",
					rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
				b.Granted("the first", b.Try(l, 10), 0)
				b.Refused(l, 5, time.Second)
				if err := change(t.Context(), p.RateLimiter("l")); err != nil {
					t.Fatal(err)
				}
				b.Granted("after "+name, b.Try(l, 5), 0)
			})
		})
		t.Run(name+" while the refusal is on its way", func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("l",
					rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
				b.Granted("the first", b.Try(l, 10), 0)
				p.Wire.Back.Store(int64(50 * ms))
				late := b.Try(l, 5)
				p.Wire.Back.Store(0)
				if err := change(t.Context(), p.RateLimiter("l")); err != nil {
					t.Fatal(err)
				}
				b.SleepTo(100 * ms)
				b.Ended("the late refusal", late, false, 50*ms)
				b.Granted("after "+name, b.Try(l, 5), 100*ms)
			})
		})
	}
}

// A change whose reply is lost may have succeeded.
func TestDenyCacheForgetsWhatMayHaveChangedHere(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 10), 0)
		b.Refused(l, 5, time.Second)
		p.Wire.Cut.Store(p.Wire.Calls() + 1)
		if _, err := l.Release(t.Context(), 5); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		b.Granted("after the release", b.Try(l, 5), 0)
	})
}

// A request that was refused because of waiting callers may be served as soon as they have left.
func TestDenyCacheIgnoresTheQueue(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 8), 0)
		waiting := b.Acquire(l, 5)
		if result, err := l.Allow(t.Context(), 1); err != nil || result.Allowed {
			t.Errorf("behind the queue: %+v, %v", result, err)
		}
		waiting.Cancel()
		synctest.Wait()
		b.Granted("once the queue is empty", b.Try(l, 1), 0)
	})
}

// A refusal under one rate does not count for a handle that enforces another one, for example when
// a customer's plan changes.
func TestDenyCacheCallsRedisForAnotherEnforcedRate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := rratelimiter.NewClient(s.Client(), rig.Patient)
		small := c.RateLimiter("l",
			rratelimiter.WithEnforcedRate(rratelimiter.PerHour(2)), rratelimiter.WithDenyCache(5))
		big := c.RateLimiter(
			"l", rratelimiter.WithEnforcedRate(rratelimiter.Rate{Permits: 2, Interval: 100 * ms}),
			rratelimiter.WithDenyCache(5),
		)
		rig.MustAllow(t, small, 2, true)
		rig.MustAllow(t, small, 1, false)
		time.Sleep(200 * ms)
		rig.MustAllow(t, small, 1, false)
		rig.MustAllow(t, big, 1, true)
	})
}

// Once a refusal under the handle's own rate is cached, an enforcing handle calls Redis no more
// often than others.
func TestDenyCacheServesHandlesThatEnforceOneRate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		enforcing := p.RateLimiter(
			"l", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5),
		)
		plain := p.RateLimiter("l", rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(enforcing, 8), 0)
		p.CheckCalls("the refusal of the plain one", 1, func() { b.Refused(plain, 3, time.Second) })
		p.CheckCalls("the refusal of the enforcing one", 1, func() { b.Refused(enforcing, 5, time.Second) })
		p.CheckCalls(
			"once both are known", 0, func() { b.Refused(enforcing, 5, time.Second); b.Refused(plain, 6, time.Second) },
		)
	})
}

// Any reply with another rate than that of a cached refusal removes the refusal.
func TestDenyCacheForgetsARateThatIsNotInForce(t *testing.T) {
	for name, look := range map[string]func(context.Context, *rratelimiter.Limiter) error{
		"Allow": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.Allow(ctx, 1)
			return err
		},
		"AcquireUpTo": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.AcquireUpTo(ctx, 1)
			return err
		},
		"AllowAll": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.Client().AllowAll(ctx, 1, l)
			return err
		},
		"AvailablePermits": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.AvailablePermits(ctx)
			return err
		},
		"Config": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Config(ctx); return err },
		"State":  func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.State(ctx); return err },
		"Glance": func(ctx context.Context, l *rratelimiter.Limiter) error { _, _, err := l.Glance(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				c := rratelimiter.NewClient(s.Client(), rig.Patient)
				l := c.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(10)), rratelimiter.WithDenyCache(5))
				rig.MustAllow(t, l, 8, true)
				rig.MustAllow(t, l, 3, false)
				elsewhere := rratelimiter.NewClient(s.Client(), rig.Patient).RateLimiter("l")
				if err := elsewhere.SetRate(t.Context(), rratelimiter.PerHour(100),
					rratelimiter.KeepState()); err != nil {
					t.Fatal(err)
				}
				rig.MustAllow(t, l, 3, false) // no reply had the new rate yet
				if err := look(t.Context(), c.RateLimiter("l")); err != nil {
					t.Fatal(err)
				}
				rig.MustAllow(t, l, 3, true)
			})
		})
	}
}

// A cached refusal lasts no longer than the limiter, and its RetryAfter ends no later. (On an
// embedded server time passes during a script, so that a limiter can end in its midst. The next
// test has a clock that stands.)
func TestDenyCacheEndsWithTheLimiter(t *testing.T) {
	l := rratelimiter.NewClient(redistest.Shared(t).Client(), rig.Patient).
		RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1)),
			rratelimiter.WithDenyCache(5))
	rig.MustAllow(t, l, 1, true)
	rig.MustAllow(t, l, 1, false)
	const life = 500 * ms
	if set, err := l.Expire(t.Context(), life); !set || err != nil {
		t.Fatal(set, err)
	}
	r, err := l.Allow(t.Context(), 1)
	if err != nil || !r.Allowed && max(r.RetryAfter, r.ResetAfter) > life+ms {
		t.Errorf("%+v, %v", r, err)
	}
	if r.Allowed {
		return // a busy machine was late
	}
	rig.Soon(t, "the end of the limiter", func() bool {
		r, err := l.Allow(t.Context(), 1)
		return err == nil && r.Allowed
	})
}

// In the last ms of a limiter, PTTL is 0, and then a new one begins.
func TestDenyCacheAtTheEndOfTheLimiter(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := b.Process().RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 1), 0)
		if set, err := l.Expire(t.Context(), 500*ms); !set || err != nil {
			t.Fatal(set, err)
		}
		b.SleepTo(500*ms - ms/2)
		if r, err := l.Allow(t.Context(), 1); err != nil || r.Allowed || max(r.RetryAfter, r.ResetAfter) > ms {
			t.Errorf("%+v, %v, expected a refusal for 1 ms at most", r, err)
		}
		if left, err := l.TTL(t.Context()); left != ms || err != nil {
			t.Errorf("TTL: %v, %v, expected 1 ms, since 0 is never", left, err)
		}
		b.SleepTo(501 * ms)
		b.Granted("once the limiter has ended", b.Try(l, 1), 501*ms)
	})
}

// Permits that are free but reserved for waiting callers are not cached as used.
func TestDenyCacheSkipsPermitsLeftToOthers(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.TakeForRedissons(t, protocol.AcquireScript.SHA)
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 1), 0)
		waiting := b.Acquire(l, 1)
		b.SleepTo(1050 * ms) // the permit returned at 1 s, and is left to Redisson until 1.15 s
		p.Wire.There.Store(int64(ms))
		b.Refused(l, 1, 99*ms)
		p.Wire.There.Store(0)
		waiting.Cancel()
		synctest.Wait()
		b.Granted("once no caller waits", b.Try(l, 1), 1051*ms)
	})
}

func TestDenyCacheIsBounded(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		limiters := []*rratelimiter.Limiter{
			p.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(1)),
			p.RateLimiter("b", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(1)),
		}
		for _, l := range limiters {
			b.Granted("the only one", b.Try(l, 1), 0)
			b.Refused(l, 1, time.Hour)
			p.CheckCalls("the last name", 0, func() { b.Refused(l, 1, time.Hour) })
		}
		p.CheckCalls("the name whose refusal was replaced", 1, func() { b.Refused(limiters[0], 1, time.Hour) })
	})
}

func TestObserverCountsDenyCacheHits(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &rig.Log{}
		p := b.Process(rratelimiter.WithObserver(log))
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithDenyCache(5))
		b.Granted("the first", b.Try(l, 1), 0)
		for range 8 {
			b.Refused(l, 1, time.Second)
		}
		b.SleepTo(time.Second)
		b.Granted("the second", b.Try(l, 1), time.Second)
		b.Refused(l, 1, time.Second)
		var remembered []int
		for _, f := range log.All() {
			remembered = append(remembered, f.DenyCacheHits)
		}
		if want := []int{0, 0, 7, 0}; fmt.Sprint(remembered) != fmt.Sprint(want) {
			t.Errorf("%v refusals were remembered, expected %v", remembered, want)
		}
	})
}
