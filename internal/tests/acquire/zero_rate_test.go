package acquire

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// zero_rate_test.go: a rate of 0 refuses every request, however it was set, until another rate is
// set.

// refusesAll checks what each acquiring method returns at a rate of 0.
func refusesAll(t *testing.T, what string, l *rratelimiter.Limiter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := l.Client()
	for method, call := range map[string]func() (bool, error){
		"TryAcquire":        func() (bool, error) { return l.TryAcquire(ctx, 1) },
		"TryAcquireTimeout": func() (bool, error) { return l.TryAcquireTimeout(ctx, 1, time.Hour) },
		"Acquire":           func() (bool, error) { return false, l.Acquire(ctx, 1) },
		"Allow":             func() (bool, error) { r, err := l.Allow(ctx, 5); return r.Allowed, err },
		"Take":              func() (bool, error) { g, _, err := l.Take(ctx, 1); return g != nil, err },
		"AllowAll":          func() (bool, error) { r, err := c.AllowAll(ctx, 1, l, l); return r != nil, err },
		"TakeAll":           func() (bool, error) { g, _, err := c.TakeAll(ctx, []int64{1}, l); return g != nil, err },
	} {
		if granted, err := call(); granted || !errors.Is(err, rratelimiter.ErrExceedsRate) {
			t.Errorf("%s: %s: %v, %v; want ErrExceedsRate", what, method, granted, err)
		}
	}
	if n, err := l.AcquireUpTo(ctx, 3); n != 0 || err != nil {
		t.Errorf("%s: AcquireUpTo: %d, %v", what, n, err)
	}
	if g, err := l.TakeUpTo(ctx, 3); g != nil || err != nil {
		t.Errorf("%s: TakeUpTo: %v, %v", what, g, err)
	}
	if n, err := l.AvailablePermits(ctx); n != 0 || err != nil {
		t.Errorf("%s: %d permits are free, %v", what, n, err)
	}
	if n, err := l.Release(ctx, 5); n != 0 || err != nil {
		t.Errorf("%s: Release: %d, %v", what, n, err)
	}
	if s, err := l.State(ctx); s.Rate.Permits != 0 || s.Rate.Interval != time.Minute || s.Available != 0 ||
		!s.Consistent || err != nil {
		t.Errorf("%s: the state is %+v, %v", what, s, err)
	}
}

func TestARateOfZeroRefusesEveryRequest(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, ctx := rig.New(t, s), t.Context()
		zero := rratelimiter.PerMinute(0)
		ways := map[string]func(name string) (*rratelimiter.Limiter, error){
			"TrySetRate": func(name string) (*rratelimiter.Limiter, error) {
				l := r.Limiter(name)
				_, err := l.TrySetRate(ctx, zero)
				return l, err
			},
			"UpdateRate": func(name string) (*rratelimiter.Limiter, error) {
				l := r.Limiter(name)
				r.SetRate(l, rratelimiter.PerMinute(5))
				_, err := l.UpdateRate(ctx, zero)
				return l, err
			},
			"SetRate, KeepState": func(name string) (*rratelimiter.Limiter, error) {
				l := r.Limiter(name)
				r.SetRate(l, rratelimiter.PerMinute(5))
				r.Try(l, 3)
				err := l.SetRate(ctx, zero, rratelimiter.KeepState())
				r.Release(l, 3)
				return l, err
			},
		}
		for option, with := range map[string]func(rratelimiter.Rate) rratelimiter.LimiterOption{
			"WithRate": rratelimiter.WithRate, "WithEnforcedRate": rratelimiter.WithEnforcedRate,
		} {
			ways[option] = func(name string) (*rratelimiter.Limiter, error) { return r.Limiter(name, with(zero)), nil }
		}
		for option, with := range map[string]rratelimiter.LimiterOption{
			"WithGranularity": rratelimiter.WithGranularity(time.Second),
			"WithLease":       rratelimiter.WithLease(time.Second),
			"WithDenyCache":   rratelimiter.WithDenyCache(5), "WithFallback": rratelimiter.WithFallback(1),
			"WithServerTime":       rratelimiter.WithServerTime(),
			"WithRecordPerRequest": rratelimiter.WithRecordPerRequest(),
		} {
			ways[option] = func(name string) (*rratelimiter.Limiter, error) {
				l := r.Limiter(name, with)
				return l, l.SetRate(ctx, zero)
			}
		}
		// Java can also set a negative rate. It has the same effect.
		for _, stored := range []string{"0", "-3", "-9223372036854775808"} {
			ways["stored as "+stored] = func(name string) (*rratelimiter.Limiter, error) {
				l := r.Limiter(name)
				r.WriteConfig(l, "rate", stored, "interval", "60000", "type", "0")
				return l, nil
			}
		}
		for way, set := range ways {
			name := "zero " + way
			l, err := set(name)
			if err != nil {
				t.Errorf("%s: %v", way, err)
				continue
			}
			refusesAll(t, way, l)
			plain := r.Limiter(name)
			r.SetRate(plain, rratelimiter.PerMinute(5), rratelimiter.KeepState())
			if !r.Try(plain, 5) || r.Try(plain, 1) {
				t.Errorf("%s: after a rate of 5 again, not 5 permits were granted", way)
			}
		}
	})
}

// A rate of 0 ends the wait of callers, and takes the permits of none.
func TestARateOfZeroEndsTheWait(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(2))
		r.Try(l, 2)
		ended := make(chan error, 3)
		for range cap(ended) {
			go func() { ended <- l.Acquire(t.Context(), 1) }()
		}
		rig.Soon(t, "the callers wait", func() bool { return rig.Core(r.Client).Look("rl").Waiting == cap(ended) })
		r.SetRate(l, rratelimiter.PerMinute(0), rratelimiter.KeepState())
		for range cap(ended) {
			if err := <-ended; !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Error(err)
			}
		}
	})
}

// While Redis is away, a process whose last known rate is 0 grants nothing, even if its own rate is
// another one.
func TestARateOfZeroHoldsWithoutRedis(t *testing.T) {
	for name, own := range map[string][]rratelimiter.LimiterOption{
		"stored": nil, "over its own": {rratelimiter.WithRate(rratelimiter.PerMinute(5))},
		"its own": {rratelimiter.WithRate(rratelimiter.PerMinute(0))},
	} {
		t.Run(name, func(t *testing.T) {
			s := redistest.Embedded(t)
			r := rig.New(t, s)
			l := r.Limiter("rl", append(own, rratelimiter.WithFallback(1))...)
			if name != "its own" {
				r.SetRate(r.Limiter("rl"), rratelimiter.PerMinute(0))
				r.Free(l)
			}
			s.Mini().Close()
			for _, call := range []func() error{
				func() error { ok, err := l.TryAcquire(t.Context(), 1); return grantedOr(ok, err) },
				func() error { _, err := r.Client.AllowAll(t.Context(), 1, l); return err },
			} {
				if err := call(); !errors.Is(err, rratelimiter.ErrExceedsRate) {
					t.Error(err)
				}
			}
			if n, err := l.AcquireUpTo(t.Context(), 5); n != 0 || err != nil {
				t.Errorf("AcquireUpTo: %d, %v", n, err)
			}
		})
	}
}

func grantedOr(granted bool, err error) error {
	if granted {
		return fmt.Errorf("granted: %w", err)
	}
	return err
}
