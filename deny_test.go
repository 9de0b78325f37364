package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// refused asks by Allow and checks that it is refused for a time.
func (b *bubble) refused(l *Limiter, n int64, wait time.Duration) {
	b.t.Helper()
	result, err := l.Allow(b.t.Context(), n)
	if err != nil || result.Allowed || result.RetryAfter != wait {
		b.t.Errorf("%+v, %v, expected a refusal for %v", result, err, wait)
	}
}

// asks checks how many calls to Redis something takes.
func (p *process) asks(what string, want int64, do func()) {
	p.t.Helper()
	before := p.wire.scripts.Load()
	do()
	if got := p.wire.scripts.Load() - before; got != want {
		p.t.Errorf("%s: %d calls, expected %d", what, got, want)
	}
}

func TestDenyCacheAnswersInVainWithoutRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)), WithDenyCache(5))
		b.granted("the first", b.try(l, 4), 0)
		b.sleepTo(100 * ms)
		b.granted("the second", b.try(l, 4), 100*ms)
		p.asks("the first refusal", 1, func() { b.refused(l, 5, 900*ms) })
		first, _ := l.Allow(t.Context(), 5)
		if want := (Result{Limit: 10, Remaining: 2, RetryAfter: 900 * ms, ResetAfter: time.Second}); first != want {
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
			if _, err := l.Allow(t.Context(), 11); !errors.Is(err, ErrExceedsRate) {
				t.Error(err)
			}
		})
		other := p.RateLimiter("l", WithRate(PerSecond(10)))
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

// A smaller refusal counts for more than a bigger one, which does not push it out.
func TestDenyCacheKeepsTheSmallerRefusal(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)), WithDenyCache(5))
		b.granted("the first", b.try(l, 8), 0)
		b.sleepTo(100 * ms)
		b.granted("the second", b.try(l, 1), 100*ms)
		p.asks("two sizes", 2, func() { b.refused(l, 10, time.Second); b.refused(l, 2, 900*ms) })
		p.asks("from the smaller one on", 0, func() { b.refused(l, 2, 900*ms); b.refused(l, 10, 900*ms) })
	})
}

func TestDenyCacheForgetsWhatChangesHere(t *testing.T) {
	for name, change := range map[string]func(ctx context.Context, l *Limiter) error{
		"Release": func(ctx context.Context, l *Limiter) error { _, err := l.Release(ctx, 5); return err },
		"SetRate": func(ctx context.Context, l *Limiter) error { return l.SetRate(ctx, PerSecond(20)) },
		"UpdateRate": func(ctx context.Context, l *Limiter) error {
			_, err := l.UpdateRate(ctx, PerSecond(20), KeepState())
			return err
		},
		"Delete": func(ctx context.Context, l *Limiter) error { _, err := l.Delete(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				l := p.RateLimiter("l", WithRate(PerSecond(10)), WithDenyCache(5))
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
				l := p.RateLimiter("l", WithRate(PerSecond(10)), WithDenyCache(5))
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

// Who is refused since others wait in line may be served as soon as they have left.
func TestDenyCacheDoesNotKnowTheLine(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)), WithDenyCache(5))
		b.granted("the first", b.try(l, 8), 0)
		waiting := b.acquire(l, 5)
		if result, err := l.Allow(t.Context(), 1); err != nil || result.Allowed {
			t.Errorf("behind the line: %+v, %v", result, err)
		}
		waiting.end()
		synctest.Wait()
		b.granted("once the line is empty", b.try(l, 1), 0)
	})
}

func TestDenyCacheIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		for i := range 100 {
			l := p.RateLimiter(fmt.Sprint(i), WithRate(PerHour(1)), WithDenyCache(10))
			b.granted("the only one", b.try(l, 1), 0)
			b.refused(l, 1, time.Hour)
			p.asks("the last name", 0, func() { b.refused(l, 1, time.Hour) })
			if known := len(p.denials.all); known > 10 {
				t.Fatalf("%d names are known", known)
			}
		}
		if known := len(p.denials.all); known != 10 {
			t.Errorf("%d names are known", known)
		}
	})
}

func TestObserverCountsRememberedRefusals(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &log{}
		p := b.process(WithObserver(log))
		l := p.RateLimiter("l", WithRate(PerSecond(1)), WithDenyCache(5))
		b.granted("the first", b.try(l, 1), 0)
		for range 8 {
			b.refused(l, 1, time.Second)
		}
		b.sleepTo(time.Second)
		b.granted("the second", b.try(l, 1), time.Second)
		b.refused(l, 1, time.Second)
		var remembered []int
		for _, f := range log.all() {
			remembered = append(remembered, f.Remembered)
		}
		if want := []int{0, 0, 7, 0}; fmt.Sprint(remembered) != fmt.Sprint(want) {
			t.Errorf("%v refusals were remembered, expected %v", remembered, want)
		}
	})
}
