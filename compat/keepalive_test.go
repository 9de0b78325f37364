package compat

import (
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// keepalive_test.go: a limiter with a keep-alive gets a new rate from a Redisson without support
// for keep-alives (before 3.38.0). It writes rate, interval and type, but leaves the keep-alive in
// the hash and the TTL on the key.

func keptAlive(f *mixed) {
	const alive, nearlyOver = 10 * time.Minute, time.Minute
	before := rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: alive}

	// set creates a limiter with a keep-alive, then changes its rate with 3.17.5.
	set := func(f *mixed, name string, interval time.Duration) *rratelimiter.Limiter {
		f.Helper()
		b, l := f.beside(f.old), f.limiter(name)
		want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, before))
		want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 5))
		b.must("Java's setRate", f.old.SetRate(b.ctx, name, redisson.Rate{Permits: 8, Interval: interval}))
		return l
	}
	life := func(f *mixed, name string) time.Duration { return f.rdb.PTTL(f.Context(), name).Val() }

	f.Run("stays", func(t *testing.T) {
		f := f.in(t)
		b := f.beside(f.old)
		l := set(f, "alive:stays", time.Minute)
		after := before
		after.Permits = 8
		want(b, "Go's Config", after)(l.Config(b.ctx))
		want(b, "Go's AvailablePermits", int64(8))(l.AvailablePermits(b.ctx))
		if left := life(f, l.Name()); left <= 0 || left > alive {
			t.Fatalf("the limiter lives %v", left)
		}
		for _, user := range []struct {
			name   string
			take   func() (bool, error)
			renews bool
		}{
			{"3.17.5", func() (bool, error) { return f.old.TryAcquire(b.ctx, l.Name(), 1) }, false},
			{"4.7.0", func() (bool, error) { return f.recent.TryAcquire(b.ctx, l.Name(), 1) }, true},
			{"3.17.5 again", func() (bool, error) { return f.old.TryAcquire(b.ctx, l.Name(), 1) }, false},
			{"Go", func() (bool, error) { return l.TryAcquire(b.ctx, 1) }, true},
		} {
			b.must("PEXPIRE", f.rdb.PExpire(b.ctx, l.Name(), nearlyOver).Err())
			want(b, user.name, true)(user.take())
			for _, key := range []string{l.Name(), valueKey(l.Name()), permitsKey(l.Name())} {
				if left := life(f, key); left <= 0 || left > nearlyOver != user.renews {
					t.Errorf("after %s %s lives %v", user.name, key, left)
				}
			}
		}
	})

	f.Run("shorter than the interval", func(t *testing.T) {
		f := f.in(t)
		b := f.beside(f.old)
		l := set(f, "alive:shorter", time.Hour)
		wrong := rratelimiter.Rate{Permits: 8, Interval: time.Hour, KeepAlive: alive}
		want(b, "Go's Config", wrong)(l.Config(b.ctx))
		if err := l.SetRate(b.ctx, wrong); !errors.Is(err, rratelimiter.ErrInvalidRate) {
			t.Errorf("Go's SetRate: %v", err)
		}
		err := f.recent.SetRate(b.ctx, l.Name(), redisson.Rate{Permits: 8, Interval: time.Hour, KeepAlive: alive})
		if failure := (*redisson.Error)(nil); !errors.As(err, &failure) || errors.Is(err, redisson.ErrUnsupported) {
			t.Errorf("4.7.0's setRate: %v", err)
		}
		for _, user := range []struct {
			name string
			take func() (bool, error)
		}{
			{"Go", func() (bool, error) { return l.TryAcquire(b.ctx, 4) }},
			{"4.7.0", func() (bool, error) { return f.recent.TryAcquire(b.ctx, l.Name(), 4) }},
		} {
			want(b, user.name, true)(user.take())
			for _, key := range []string{l.Name(), valueKey(l.Name()), permitsKey(l.Name())} {
				if left := life(f, key); left > alive {
					t.Errorf("after %s %s lives %v, longer than the keep-alive", user.name, key, left)
				}
			}
		}
		// The keep-alive ends long before the interval: the limiter expires together with the
		// records of its grants.
		for _, key := range []string{l.Name(), valueKey(l.Name()), permitsKey(l.Name())} {
			b.must("PEXPIRE", f.rdb.PExpire(b.ctx, key, 0).Err())
		}
		if _, err := l.TryAcquire(b.ctx, 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
			t.Errorf("Go's TryAcquire: %v", err)
		}
		anew := f.limiter(l.Name(), rratelimiter.WithRate(rratelimiter.PerHour(8)))
		want(b, "Go's TryAcquire within the hour", true)(anew.TryAcquire(b.ctx, 8))
	})

	f.Run("cleared", func(t *testing.T) {
		for _, c := range []struct {
			by     string
			rate   func(f *mixed, l *rratelimiter.Limiter) error
			stays  bool // whether the TTL remains
			config rratelimiter.Rate
		}{
			{"Go", func(f *mixed, l *rratelimiter.Limiter) error {
				return l.SetRate(f.Context(), rratelimiter.Rate{Permits: 8, Interval: time.Hour})
			}, false, rratelimiter.PerHour(8)},
			{"4.7.0", func(f *mixed, l *rratelimiter.Limiter) error {
				return f.recent.SetRate(f.Context(), l.Name(), redisson.Rate{Permits: 8, Interval: time.Hour})
			}, true, rratelimiter.PerHour(8)},
		} {
			f := f.in(t)
			b := f.beside(f.recent)
			l := set(f, "alive:cleared by "+c.by, time.Hour)
			b.must(c.by, c.rate(f, l))
			want(b, "Go's Config", c.config)(l.Config(b.ctx))
			if left := life(f, l.Name()); left > 0 != c.stays {
				t.Errorf("%s has set a rate without a keep-alive, and the limiter lives %v", c.by, left)
			}
		}
	})
}
