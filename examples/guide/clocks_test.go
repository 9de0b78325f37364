package guide

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func byTheServersClock(rdb *redis.Client) *rratelimiter.Client {
	client := rratelimiter.NewClient(rdb, rratelimiter.WithLimiterDefaults(rratelimiter.WithServerTime()))
	return client
}

// By the server's clock, what this host's clock shows does not matter.
func TestTheServersClockDecides(t *testing.T) {
	server := limittest.New(t)
	orders := byTheServersClock(server.Redis()).RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	if err := orders.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	state, err := orders.State(t.Context())
	if err != nil || !state.Newest.Equal(limittest.Epoch) {
		t.Errorf("%v, %v", state.Newest, err)
	}
}

func TestLogins(t *testing.T) {
	server := limittest.New(t)
	logins := server.Client().RateLimiter("logins", rratelimiter.WithRate(rratelimiter.PerMinute(2)))
	for i, want := range []bool{true, true, false} {
		if ok, err := logins.TryAcquire(t.Context(), 1); ok != want || err != nil {
			t.Errorf("login %d: %v, %v", i, ok, err)
		}
	}
	server.Advance(time.Minute) // without sleeping
	if ok, err := logins.TryAcquire(t.Context(), 1); !ok || err != nil {
		t.Errorf("a minute later: %v, %v", ok, err)
	}
}
