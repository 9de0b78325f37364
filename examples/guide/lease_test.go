package guide

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func leased(client *rratelimiter.Client) *rratelimiter.Limiter {
	limiter := client.RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerMinute(600_000)), // 10,000 a second
		rratelimiter.WithLease(time.Second))
	return limiter
}

// calls counts calls to Redis.
type calls int

func (c *calls) Call(rratelimiter.CallInfo) { *c++ }

func TestServeFromMemory(t *testing.T) {
	var seen calls
	server := limittest.New(t)
	server.Advance(time.Millisecond) // leases end at multiples of their length
	limiter := leased(server.Client(rratelimiter.WithObserver(&seen)))
	if ok, err := limiter.TryAcquire(t.Context(), 100); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for range 50 {
		if ok, err := limiter.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if seen != 1 {
		t.Errorf("%d calls for 51 requests", seen)
	}
}
