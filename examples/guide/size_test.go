package guide

import (
	"context"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func smooth(client *rratelimiter.Client) (burst, even *rratelimiter.Limiter) {
	// at most 600 at once, then none for a minute
	burst = client.RateLimiter("burst", rratelimiter.WithRate(rratelimiter.PerMinute(600)))
	// also 600 a minute, but at most 5 at once
	even = client.RateLimiter("even", rratelimiter.WithRate(rratelimiter.Rate{Permits: 5, Interval: 500 * time.Millisecond}))
	return burst, even
}

func both(ctx context.Context, client *rratelimiter.Client) (bool, error) {
	perSecond := client.RateLimiter("{calls}:second", rratelimiter.WithRate(rratelimiter.PerSecond(20)))
	perMinute := client.RateLimiter("{calls}:minute", rratelimiter.WithRate(rratelimiter.PerMinute(600)))
	results, err := client.AllowAll(ctx, 1, perSecond, perMinute)
	if err != nil {
		return false, err
	}
	return results[0].Allowed, nil // either both limiters grant a permit, or neither does
}

func TestSizesOfLimits(t *testing.T) {
	server := limittest.New(t)
	client := server.Client()
	_, even := smooth(client)
	granted := 0
	for range 3 {
		for range 10 {
			ok, err := even.TryAcquire(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				granted++
			}
		}
		server.Advance(500 * time.Millisecond)
	}
	if granted != 15 {
		t.Errorf("%d granted in three intervals", granted)
	}
	passed := 0
	for range 25 {
		ok, err := both(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			passed++
		}
	}
	if passed != 20 {
		t.Errorf("%d passed within a second", passed)
	}
}

func big(client *rratelimiter.Client) *rratelimiter.Limiter {
	imports := client.RateLimiter("imports",
		rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)),
		rratelimiter.WithGranularity(time.Minute), // normally at most 62 records of this client
	)
	return imports
}

func TestABigLimitIsSmallInMemory(t *testing.T) {
	server := limittest.New(t)
	imports := big(server.Client())
	for range 89 {
		for range 3 {
			if err := imports.Acquire(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
		}
		server.Advance(40 * time.Second)
	}
	state, err := imports.State(t.Context())
	if err != nil || state.Records > 62 || state.Used != 267 {
		t.Errorf("%+v, %v", state, err)
	}
}
