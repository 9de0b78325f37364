package compat

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// debt_test.go: Go charges permits that are not free. The number of free permits is then negative,
// and records are dated ahead. Redisson refuses until enough of them have expired, and goes on
// exactly.

// TestRedissonWaitsADebtOut charges two and a half times the rate. So a permit is free after two
// intervals, and half of the rate then.
func TestRedissonWaitsADebtOut(t *testing.T) {
	const permits, interval = 10, 3 * time.Second
	versions := []string{"3.13.6", "3.16.8", "3.17.5", "3.38.0", "4.7.0"} // each format, a keep-alive field, the newest
	if err := redisson.Build(t.Context(), versions...); err != nil {
		t.Fatal(err)
	}
	for _, version := range versions {
		for kind, of := range map[redisson.Type]string{redisson.Overall: "for all", redisson.PerClient: "per client"} {
			t.Run(version+" "+of, func(t *testing.T) {
				t.Parallel()
				server := redistest.Real(t)
				b := &bench{
					T: t, ctx: t.Context(), rdb: server.Client(), java: redisson.Start(t, version,
						redisson.Addr(server.Addr)),
				}
				name := "debt"
				l := b.limiter(name)
				want(b, "Java's trySetRate", true)(
					b.java.TrySetRate(b.ctx, name, redisson.Rate{Type: kind, Permits: permits, Interval: interval}),
				)
				want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 2))
				charged := time.Now()
				result, err := l.Charge(b.ctx, 23)
				b.must("Go's Charge", err)
				if !result.Allowed || result.Remaining != 0 || result.RetryAfter > 2*interval+time.Millisecond {
					b.Errorf("%+v", result)
				}
				want(b, "Java's availablePermits", int64(-15))(b.java.Available(b.ctx, name))
				want(b, "Java's tryAcquire in debt", false)(b.java.TryAcquire(b.ctx, name, 1))
				want(b, "Go's TryAcquire in debt", false)(l.TryAcquire(b.ctx, 1))
				want(b, "Java's tryAcquire with a timeout", true)(b.java.TryAcquireTimeout(b.ctx, name, 1, time.Minute))
				if after := time.Since(charged); after < result.RetryAfter-time.Millisecond {
					b.Errorf("Java was granted a permit after %v, and the debt is paid back after %v", after,
						result.RetryAfter)
				}
				want(b, "Go's AvailablePermits", int64(4))(l.AvailablePermits(b.ctx))
				want(b, "Java's tryAcquire of the rest", true)(b.java.TryAcquire(b.ctx, name, 4))
				want(b, "Java's tryAcquire of more", false)(b.java.TryAcquire(b.ctx, name, 1))
				state, err := l.State(b.ctx)
				b.must("Go's State", err)
				if state.Used != permits || state.Debt != 0 || !state.Consistent {
					b.Errorf("%+v", state)
				}
			})
		}
	}
}
