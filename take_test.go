package rratelimiter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A grant gives back its own permits, once, and only what is left of it; a release by somebody else takes the oldest ones.
func TestAGrantIsReturned(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000)
		client := rratelimiter.NewClient(s.Client(), rratelimiter.WithClock(func() time.Time { return now }))
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		take := func(n int64) *rratelimiter.Grant {
			t.Helper()
			g, result, err := l.Take(ctx, n)
			if err != nil || g == nil || !result.Allowed || g.Permits() != n {
				t.Fatalf("%+v, %+v, %v", g, result, err)
			}
			now = now.Add(time.Second)
			return g
		}
		returned := func(g *rratelimiter.Grant, n, want, left int64) {
			t.Helper()
			if got, err := g.Return(ctx, n); got != want || err != nil || g.Permits() != left {
				t.Errorf("returned %d of %d, %v; left are %d; want %d and %d", got, n, err, g.Permits(), want, left)
			}
		}
		free := func(want int64) {
			t.Helper()
			if got, err := l.AvailablePermits(ctx); got != want || err != nil {
				t.Errorf("%d are free, %v; want %d", got, err, want)
			}
		}
		old, young := take(4), take(5)
		if g, result, err := l.Take(ctx, 2); g != nil || result.Allowed || result.RetryAfter != 58*time.Second || err != nil {
			t.Errorf("refused: %+v, %+v, %v", g, result, err)
		}
		returned(young, 0, 0, 5)
		returned(young, 2, 2, 3)
		returned(young, 9, 3, 0)
		returned(young, 1, 0, 0)
		free(6)
		if _, err := young.Return(ctx, -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
		if n, err := l.Release(ctx, 3); n != 3 || err != nil {
			t.Error(n, err)
		}
		returned(old, 4, 1, 0)
		free(10)

		late := take(3)
		now = now.Add(time.Minute)
		returned(late, 3, 0, 0)
		free(10)
	})
}

// Health is that of the node, known without a call.
func TestHealth(t *testing.T) {
	s := redistest.Embedded(t)
	l := rratelimiter.NewClient(s.Client()).RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	if h := l.Health(); h != (rratelimiter.Health{}) {
		t.Errorf("before a call: %+v", h)
	}
	if _, err := l.TryAcquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if h := l.Health(); h != (rratelimiter.Health{}) {
		t.Errorf("after a call: %+v", h)
	}
}
