package rratelimiter_test

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
)

func TestDenyCacheRefusesWithoutRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 4), 0)
		b.sleepTo(100 * ms)
		b.granted("the second", b.try(l, 4), 100*ms)
		p.asks("the first refusal", 1, func() { b.refused(l, 5, 900*ms) })
		first, _ := l.Allow(t.Context(), 5)
		if want := (rratelimiter.Result{Limit: 10, Remaining: 2, RetryAfter: 900 * ms, NextAfter: 900 * ms, ResetAfter: time.Second}); first != want {
			t.Errorf("%+v, expected %+v", first, want)
		}
		b.sleepTo(300 * ms)
		p.asks("the same again, and more", 0, func() {
			for n := range int64(5) {
				b.refused(l, 5+n, 700*ms)
			}
			if ok, err := l.TryAcquire(t.Context(), 7); ok || err != nil {
				t.Error(ok, err)
			}
		})
		p.asks("less", 1, func() { b.granted("less", b.try(l, 1), 300*ms) })
		p.asks("more than the rate", 1, func() {
			if _, err := l.Allow(t.Context(), 11); !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Error(err)
			}
		})
		other := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		p.asks("a handle without the option", 1, func() { b.refused(other, 5, 700*ms) })
		b.sleepTo(999 * ms)
		p.asks("just before", 0, func() { b.refused(l, 5, ms) })
		b.sleepTo(time.Second)
		p.asks("once they are free", 1, func() { b.granted("then", b.try(l, 5), time.Second) })

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b.refused(l, 8, time.Second)
		if _, err := l.Allow(ctx, 8); !errors.Is(err, context.Canceled) {
			t.Errorf("with a context that is over: %v", err)
		}
	})
}

// A refusal of fewer permits covers more requests, so one of more permits does not replace it.
func TestDenyCacheKeepsTheSmallerRefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 8), 0)
		b.sleepTo(100 * ms)
		b.granted("the second", b.try(l, 1), 100*ms)
		p.asks("two sizes", 2, func() { b.refused(l, 10, time.Second); b.refused(l, 2, 900*ms) })
		p.asks("from the smaller one on", 0, func() { b.refused(l, 2, 900*ms); b.refused(l, 10, 900*ms) })
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
			_, err := l.Client().RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(20))).TryAcquire(ctx, 1)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
				b.granted("the first", b.try(l, 10), 0)
				b.refused(l, 5, time.Second)
				if err := change(t.Context(), p.RateLimiter("l")); err != nil {
					t.Fatal(err)
				}
				b.granted("after "+name, b.try(l, 5), 0)
			})
		})
		t.Run(name+" while the refusal is on its way", func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
				b.granted("the first", b.try(l, 10), 0)
				p.wire.back.Store(int64(50 * ms))
				late := b.try(l, 5)
				p.wire.back.Store(0)
				if err := change(t.Context(), p.RateLimiter("l")); err != nil {
					t.Fatal(err)
				}
				b.sleepTo(100 * ms)
				b.ended("the late refusal", late, false, 50*ms)
				b.granted("after "+name, b.try(l, 5), 100*ms)
			})
		})
	}
}

// A change whose reply is lost may have succeeded.
func TestDenyCacheForgetsWhatMayHaveChangedHere(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 10), 0)
		b.refused(l, 5, time.Second)
		p.wire.cut.Store(p.wire.scripts.Load() + 1)
		if _, err := l.Release(t.Context(), 5); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		b.granted("after the release", b.try(l, 5), 0)
	})
}

// A request that was refused because of waiting callers may be served as soon as they have left.
func TestDenyCacheIgnoresTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 8), 0)
		waiting := b.acquire(l, 5)
		if result, err := l.Allow(t.Context(), 1); err != nil || result.Allowed {
			t.Errorf("behind the queue: %+v, %v", result, err)
		}
		waiting.end()
		synctest.Wait()
		b.granted("once the queue is empty", b.try(l, 1), 0)
	})
}

// A refusal under one rate does not count for a handle that enforces another one, for example when a customer's plan
// changes.
func TestDenyCacheCallsRedisForAnotherEnforcedRate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		c := rratelimiter.NewClient(s.Client(), patient)
		small := c.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(2)), rratelimiter.WithDenyCache(5))
		big := c.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.Rate{Permits: 2, Interval: 100 * ms}), rratelimiter.WithDenyCache(5))
		mustAllow(t, small, 2, true)
		mustAllow(t, small, 1, false)
		time.Sleep(200 * ms)
		mustAllow(t, small, 1, false)
		mustAllow(t, big, 1, true)
	})
}

// Once a refusal under the handle's own rate is cached, an enforcing handle calls Redis no more often than others.
func TestDenyCacheServesHandlesThatEnforceOneRate(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		enforcing := p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(10)), rratelimiter.WithDenyCache(5))
		plain := p.RateLimiter("l", rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(enforcing, 8), 0)
		p.asks("the refusal of the plain one", 1, func() { b.refused(plain, 3, time.Second) })
		p.asks("the refusal of the enforcing one", 1, func() { b.refused(enforcing, 5, time.Second) })
		p.asks("once both are known", 0, func() { b.refused(enforcing, 5, time.Second); b.refused(plain, 6, time.Second) })
	})
}

// Any reply with another rate than that of a cached refusal removes the refusal.
func TestDenyCacheForgetsARateThatIsNotInForce(t *testing.T) {
	for name, look := range map[string]func(context.Context, *rratelimiter.Limiter) error{
		"Allow":       func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Allow(ctx, 1); return err },
		"AcquireUpTo": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.AcquireUpTo(ctx, 1); return err },
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
				c := rratelimiter.NewClient(s.Client(), patient)
				l := c.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(10)), rratelimiter.WithDenyCache(5))
				mustAllow(t, l, 8, true)
				mustAllow(t, l, 3, false)
				elsewhere := rratelimiter.NewClient(s.Client(), patient).RateLimiter("l")
				if err := elsewhere.SetRate(t.Context(), rratelimiter.PerHour(100), rratelimiter.KeepState()); err != nil {
					t.Fatal(err)
				}
				mustAllow(t, l, 3, false) // no reply had the new rate yet
				if err := look(t.Context(), c.RateLimiter("l")); err != nil {
					t.Fatal(err)
				}
				mustAllow(t, l, 3, true)
			})
		})
	}
}

// A cached refusal lasts no longer than the limiter, and its RetryAfter ends no later. (On an embedded server time passes during
// a script, so that a limiter can end in its midst. The next test has a clock that stands.)
func TestDenyCacheEndsWithTheLimiter(t *testing.T) {
	l := rratelimiter.NewClient(redistest.Shared(t).Client(), patient).RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1)),
		rratelimiter.WithDenyCache(5))
	mustAllow(t, l, 1, true)
	mustAllow(t, l, 1, false)
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
	soon(t, "the end of the limiter", func() bool {
		r, err := l.Allow(t.Context(), 1)
		return err == nil && r.Allowed
	})
}

// In the last ms of a limiter, PTTL is 0, and then a new one begins.
func TestDenyCacheAtTheEndOfTheLimiter(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		l := b.process().RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 1), 0)
		if set, err := l.Expire(t.Context(), 500*ms); !set || err != nil {
			t.Fatal(set, err)
		}
		b.sleepTo(500*ms - ms/2)
		if r, err := l.Allow(t.Context(), 1); err != nil || r.Allowed || max(r.RetryAfter, r.ResetAfter) > ms {
			t.Errorf("%+v, %v, expected a refusal for 1 ms at most", r, err)
		}
		if left, err := l.TTL(t.Context()); left != ms || err != nil {
			t.Errorf("TTL: %v, %v, expected 1 ms, since 0 is never", left, err)
		}
		b.sleepTo(501 * ms)
		b.granted("once the limiter has ended", b.try(l, 1), 501*ms)
	})
}

// Permits that are free but reserved for waiting callers are not cached as used.
func TestDenyCacheSkipsPermitsLeftToOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		useScript(t, protocol.AcquireScript.SHA)
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 1), 0)
		waiting := b.acquire(l, 1)
		b.sleepTo(1050 * ms) // the permit returned at 1 s, and is left to Redisson until 1.15 s
		p.wire.there.Store(int64(ms))
		b.refused(l, 1, 99*ms)
		p.wire.there.Store(0)
		waiting.end()
		synctest.Wait()
		b.granted("once no caller waits", b.try(l, 1), 1051*ms)
	})
}

func TestDenyCacheIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		limiters := []*rratelimiter.Limiter{
			p.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(1)),
			p.RateLimiter("b", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(1)),
		}
		for _, l := range limiters {
			b.granted("the only one", b.try(l, 1), 0)
			b.refused(l, 1, time.Hour)
			p.asks("the last name", 0, func() { b.refused(l, 1, time.Hour) })
		}
		p.asks("the name whose refusal was replaced", 1, func() { b.refused(limiters[0], 1, time.Hour) })
	})
}

func TestObserverCountsDenyCacheHits(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &log{}
		p := b.process(rratelimiter.WithObserver(log))
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithDenyCache(5))
		b.granted("the first", b.try(l, 1), 0)
		for range 8 {
			b.refused(l, 1, time.Second)
		}
		b.sleepTo(time.Second)
		b.granted("the second", b.try(l, 1), time.Second)
		b.refused(l, 1, time.Second)
		var remembered []int
		for _, f := range log.all() {
			remembered = append(remembered, f.DenyCacheHits)
		}
		if want := []int{0, 0, 7, 0}; fmt.Sprint(remembered) != fmt.Sprint(want) {
			t.Errorf("%v refusals were remembered, expected %v", remembered, want)
		}
	})
}
