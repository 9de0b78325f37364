package compat

import (
	"context"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// surplus_test.go: a Redisson releases permits, or lowers the rate and keeps the state. Then free
// permits and records add up to more than the rate. Redisson corrects this only when more permits
// expire at once than the rate allows, which never happens under a steady load of Go. Go grants
// released permits once, and keeps to the rate from an interval and a second later on.

func surpluses(f *mixed) {
	const permits, interval = 100, time.Second
	for _, c := range []struct {
		name     string
		promised int64 // the bound from an interval and a second later on
		java     func(ctx context.Context, name string) error
	}{
		{"4.7.0 releases 60 permits", permits, func(ctx context.Context, name string) error {
			return f.recent.Release(ctx, name, 60)
		}},
		{"4.7.0 releases 60 permits four times", permits, func(ctx context.Context, name string) error {
			for range 4 {
				if err := f.recent.Release(ctx, name, 60); err != nil {
					return err
				}
				time.Sleep(interval / 4)
			}
			return nil
		}},
		{"4.7.0 lowers the rate and keeps the state", permits / 2, func(ctx context.Context, name string) error {
			return f.recent.SetRate(ctx, name, redisson.Rate{Permits: permits / 2, Interval: interval, KeepState: true})
		}},
	} {
		f.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b, name := f.in(t).beside(f.recent), "surplus:"+c.name
			limiter := f.in(t).limiter(name,
				rratelimiter.WithRate(rratelimiter.Rate{Permits: permits, Interval: interval}))
			begun, acting := time.Now(), false
			acted := make(chan time.Time, 1)
			var since time.Time
			refused := false // later than an interval and a second
			var grants []window.Grant
			for since.IsZero() || time.Since(since) < interval+time.Second+2*interval {
				start := time.Now()
				granted, err := limiter.TryAcquire(b.ctx, 1)
				b.must("Go's TryAcquire", err)
				if granted {
					grants = append(grants, window.Grant{Permits: 1, Start: start, End: time.Now()})
				}
				refused = refused || !granted && !since.IsZero() && start.After(since.Add(interval+time.Second))
				if early := time.Since(begun) < interval; early || !granted {
					time.Sleep(interval / permits) // spreads the first grants over the interval
				} else if !acting {
					acting = true
					go func() {
						if err := c.java(b.ctx, name); err != nil {
							t.Error(err)
						}
						acted <- time.Now()
					}()
				}
				select {
				case since = <-acted:
				default:
				}
			}
			var after []window.Grant
			for _, g := range grants {
				if g.Start.After(since.Add(interval + time.Second)) {
					after = append(after, g)
				}
			}
			most, _ := window.Largest(after, interval)
			t.Logf("%d of %d permits in a window", most, c.promised)
			// on a busy machine it may ask for less, and is not refused
			if most > c.promised || refused && most < c.promised/2 {
				t.Errorf("%d permits of %d in a window", most, c.promised)
			}
			if state, err := limiter.State(b.ctx); err != nil || !state.Consistent {
				t.Errorf("the state is %+v, %v", state, err)
			}
			_, err := f.recent.TryAcquire(b.ctx, name, 1)
			b.must("Java's tryAcquire", err)
		})
	}
}
