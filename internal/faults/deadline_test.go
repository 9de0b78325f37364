package faults

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// deadline_test.go stops Redis for callers whose deadlines are far shorter than the time of a call:
// none of them waits for the end of a call.

// TestFallbackBehindShortDeadlines: a second after its server stopped or died, the process decides
// for callers with 20 ms, with every method.
func TestFallbackBehindShortDeadlines(t *testing.T) {
	for how, takeAway := range map[string]func(*redistest.Server){
		"hangs":   (*redistest.Server).Pause,
		"is dead": (*redistest.Server).Kill,
	} {
		t.Run("one server "+how, func(t *testing.T) {
			s := redistest.Real(t)
			decideForShortDeadlines(t, s.Client(), "{a}", "{a}2", func() { takeAway(s) })
		})
		t.Run("node of a cluster "+how, func(t *testing.T) {
			nodes := redistest.Cluster(t, 3, "--cluster-require-full-coverage", "no")
			decideForShortDeadlines(t, nodes.ClusterClient(), "{a}", "{a}2", func() { takeAway(nodes.Owner("{a}")) })
		})
		t.Run("shard of a ring "+how, func(t *testing.T) {
			servers := []*redistest.Server{redistest.Real(t), redistest.Real(t)}
			ring := newRing(t, servers, func(o *redis.RingOptions) {
				o.HeartbeatFn = func(context.Context, *redis.Client) bool { return true }
			})
			decideForShortDeadlines(t, ring, "{a}", "{a}2", func() {
				shard, err := ring.GetShardClientForKey("{a}")
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range servers {
					if s.Addr == shard.Options().Addr {
						takeAway(s)
					}
				}
			})
		})
	}
}

func decideForShortDeadlines(t *testing.T, rdb rratelimiter.Redis, name, other string, takeAway func()) {
	const (
		deadline = 20 * time.Millisecond
		every    = 5 * time.Millisecond
		known    = time.Second
	)
	for what, method := range map[string]func(ctx context.Context, l, other *rratelimiter.Limiter) error{
		"Allow":   func(ctx context.Context, l, _ *rratelimiter.Limiter) error { return second(l.Allow(ctx, 1)) },
		"Acquire": func(ctx context.Context, l, _ *rratelimiter.Limiter) error { return l.Acquire(ctx, 1) },
		"AcquireUpTo": func(ctx context.Context, l, _ *rratelimiter.Limiter) error {
			return second(l.AcquireUpTo(ctx, 1))
		},
		"AllowAll": func(ctx context.Context, l, other *rratelimiter.Limiter) error {
			return second(l.Client().AllowAll(ctx, 1, l, other))
		},
	} {
		// All have the same outage, each by a client of its own.
		client := rratelimiter.NewClient(rdb,
			rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(ample), rratelimiter.WithFallback(1)))
		l, beside := client.RateLimiter(name), client.RateLimiter(other)
		if err := method(t.Context(), l, beside); err != nil {
			t.Fatal(err)
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			inRounds(t, func(t *testing.T, r *round) {
				got := arrive(every, lasting(3*known), func(int) call {
					return ask(1, func() (bool, error) {
						ctx, cancel := context.WithTimeout(t.Context(), deadline)
						defer cancel()
						err := method(ctx, l, beside)
						return err == nil, err
					})
				})
				began := got[0].Start
				for _, c := range got {
					if c.Start.Before(began) {
						began = c.Start
					}
				}
				first := 3 * known
				for _, c := range got.where(answered) {
					first = min(first, c.Start.Sub(began))
				}
				later := got.where(func(c call) bool { return c.Start.Sub(began) > known })
				t.Logf("decided in the process after %v; from %v on p99 %v of %d calls, %d errors",
					first.Round(time.Millisecond), known, later.percentile(99), len(later), len(later.where(failed)))
				// A busy machine that begins a call late can also hold up a call until its deadline
				// is over.
				most := len(later)/100 + len(later.where(func(c call) bool { return c.late > deadline/4 }))
				failures := later.where(failed)
				r.atMost("99 of 100 calls", later.percentile(99), deadline/4+machine*later.lateness(99))
				if len(failures) > most {
					r.wasSlow("%d of %d calls failed, not %d: %v",
						len(failures), len(later), most, failures[:min(3, len(failures))])
				}
			})
		})
	}
	takeAway()
}
