package api

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// methods_test.go tests what all methods have in common: they check their arguments first, and
// their errors have context.

// TestWrongArgumentsAreRefusedBeforeACall tries invalid values of every argument.
func TestWrongArgumentsAreRefusedBeforeACall(t *testing.T) {
	c := rratelimiter.NewClient(rig.RefusingClient(t))
	l, other := c.RateLimiter("rl"), rratelimiter.NewClient(rig.RefusingClient(t)).RateLimiter("rl")
	ctx := t.Context()
	bad := rratelimiter.Rate{Permits: 1, Interval: 1}
	tests := []struct {
		name string
		call func() error
		want error
	}{
		{"TrySetRate", func() error { _, err := l.TrySetRate(ctx, bad); return err }, rratelimiter.ErrInvalidRate},
		{"SetRate", func() error { return l.SetRate(ctx, bad) }, rratelimiter.ErrInvalidRate},
		{
			"SetRate, KeepState",
			func() error { return l.SetRate(ctx, bad, rratelimiter.KeepState()) },
			rratelimiter.ErrInvalidRate,
		},
		{"UpdateRate", func() error { _, err := l.UpdateRate(ctx, bad); return err }, rratelimiter.ErrInvalidRate},
		{
			"two conditions",
			func() error { _, err := l.Expire(ctx, time.Hour, rratelimiter.IfSet, rratelimiter.IfLess); return err },
			rratelimiter.ErrInvalidOption,
		},
		{"condition 0", func() error {
			_, err := l.Expire(ctx, time.Hour, 0)
			return err
		}, rratelimiter.ErrInvalidOption},
		{"condition 5", func() error {
			_, err := l.ExpireAt(ctx, time.Now(), 5)
			return err
		}, rratelimiter.ErrInvalidOption},
		{
			"another client's limiter",
			func() error { _, err := c.AllowAll(ctx, 1, l, other); return err },
			rratelimiter.ErrInvalidOption,
		},
		{"no limiter", func() error {
			_, err := c.AllowAll(ctx, 1, l, nil)
			return err
		}, rratelimiter.ErrInvalidOption},
		{
			"another client's limiter to wait for",
			func() error { return c.AcquireAll(ctx, 1, l, other) },
			rratelimiter.ErrInvalidOption,
		},
		{
			"no limiter to wait for",
			func() error { _, err := c.TryAcquireAllTimeout(ctx, 1, time.Second, l, nil); return err },
			rratelimiter.ErrInvalidOption,
		},
		{
			"Release of less than none",
			func() error { _, err := l.Release(ctx, -1); return err },
			rratelimiter.ErrInvalidPermits,
		},
	}
	for _, n := range []int64{0, -1, math.MinInt64} {
		for name, call := range map[string]func() error{
			"Allow":             func() error { _, err := l.Allow(ctx, n); return err },
			"Peek":              func() error { _, err := l.Peek(ctx, n); return err },
			"TryAcquire":        func() error { _, err := l.TryAcquire(ctx, n); return err },
			"TryAcquireTimeout": func() error { _, err := l.TryAcquireTimeout(ctx, n, time.Hour); return err },
			"Acquire":           func() error { return l.Acquire(ctx, n) },
			"AcquireUpTo":       func() error { _, err := l.AcquireUpTo(ctx, n); return err },
			"AllowAll":          func() error { _, err := c.AllowAll(ctx, n, l); return err },
			"AcquireAll":        func() error { return c.AcquireAll(ctx, n, l) },
		} {
			tests = append(tests, struct {
				name string
				call func() error
				want error
			}{name, call, rratelimiter.ErrInvalidPermits})
		}
	}
	for _, test := range tests {
		if err := test.call(); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
	}
	if n, err := l.Release(ctx, 0); n != 0 || err != nil {
		t.Errorf("releasing nothing: %d, %v", n, err)
	}
	if results, err := c.AllowAll(ctx, 1); len(results) != 0 || err != nil {
		t.Errorf("allowing nothing: %v, %v", results, err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.AllowAll(over, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("allowing nothing in no time: %v", err)
	}
	if _, err := rratelimiter.NewClient(nil).AllowAll(ctx, 1); !errors.Is(err, rratelimiter.ErrInvalidOption) {
		t.Errorf("allowing nothing of a wrong client: %v", err)
	}
}

func TestMethodsWithoutALimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		may := map[string]bool{ // these work without a limiter
			"TrySetRate":         true,
			"SetRate":            true,
			"SetRate, KeepState": true,
			"UpdateRate":         true,
			"Exists":             true,
			"Delete":             true,
			"Clients":            true, "Expire": true, "ExpireAt": true, "ClearExpire": true,
		}
		for method, call := range rig.EveryMethod(r.Client, l) {
			err := call(t.Context())
			if may[method] {
				if err != nil {
					t.Errorf("%s without a limiter: %v", method, err)
				}
			} else if !errors.Is(err, rratelimiter.ErrNotInitialized) ||
				errors.Is(err, rratelimiter.ErrOutcomeUnknown) || !strings.Contains(err.Error(), `"rl"`) {
				t.Errorf("%s without a limiter: %v, want ErrNotInitialized that names it", method, err)
			}
			r.Wipe()
		}
		for _, call := range []func() (bool, error){
			func() (bool, error) { return l.UpdateRate(t.Context(), rratelimiter.PerSecond(1)) },
			func() (bool, error) { return l.Exists(t.Context()) },
			func() (bool, error) { return l.Delete(t.Context()) },
			func() (bool, error) { return l.Expire(t.Context(), time.Hour) },
			func() (bool, error) { return l.ExpireAt(t.Context(), time.Now().Add(time.Hour)) },
			func() (bool, error) { return l.ClearExpire(t.Context()) },
		} {
			if done, err := call(); done || err != nil {
				t.Errorf("something was done without a limiter: %v, %v", done, err)
			}
		}
		if n := r.Redis.DBSize(t.Context()).Val(); n != 0 {
			t.Errorf("%d keys where there is no limiter", n)
		}
	})
}

func TestErrorsNameOperationAndLimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("orders")
		r.SetRate(l, rratelimiter.PerSecond(5))
		_, err := l.TryAcquire(t.Context(), 6)
		if !errors.Is(err, rratelimiter.ErrExceedsRate) ||
			!strings.Contains(err.Error(), `try to acquire from "orders"`) ||
			!strings.HasSuffix(err.Error(), " (6)") {
			t.Errorf("%v, want ErrExceedsRate with operation, name and number", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		for method, call := range rig.EveryMethod(r.Client, l) {
			err := call(ctx)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s with a context that is over: %v", method, err)
			}
		}
	})
}
