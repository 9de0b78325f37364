package calls

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// TestAnswersFromMemoryYield has one processor and two goroutines that never block. The second one
// answers about as many requests as the first one, although all of them take less time than the
// scheduler gives a goroutine at once.
func TestAnswersFromMemoryYield(t *testing.T) {
	client := rratelimiter.NewClient(redistest.Embedded(t).Client(), rig.Patient)
	for name, limiter := range map[string]*rratelimiter.Limiter{
		"refused by the deny cache": client.RateLimiter("deny",
			rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithDenyCache(1)),
		"granted by a lease": client.RateLimiter("lease",
			rratelimiter.WithRate(rratelimiter.PerHour(1e9)), rratelimiter.WithLease(time.Minute)),
	} {
		t.Run(name, func(t *testing.T) {
			ask := func() {
				if _, err := limiter.Allow(t.Context(), 1); err != nil {
					t.Error(err)
				}
			}
			for range 100 {
				ask()
			}
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			const requests = 5000
			var others atomic.Int64
			var over atomic.Bool
			done := make(chan struct{})
			go func() {
				defer close(done)
				for !over.Load() {
					ask()
					others.Add(1)
				}
			}()
			for range requests {
				ask()
			}
			n := others.Load()
			over.Store(true)
			if <-done; n < requests/2 {
				t.Errorf("the other goroutine answered %d requests meanwhile, expected about %d", n, requests)
			}
		})
	}
}
