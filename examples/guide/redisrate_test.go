package guide

import (
	"context"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func before(ctx context.Context, rdb *redis.Client) (bool, time.Duration, error) {
	limiter := redis_rate.NewLimiter(rdb)
	res, err := limiter.Allow(ctx, "project:123", redis_rate.PerMinute(10))
	if err != nil {
		return false, 0, err
	}
	return res.Allowed > 0, res.RetryAfter, nil
}

func sameKeys(ctx context.Context, rdb *redis.Client) (bool, time.Duration, error) {
	limiter := classic.NewGCRA(rdb, "project:123", rratelimiter.PerMinute(10), 10) // the burst of PerMinute(10)
	res, err := limiter.Allow(ctx, 1)
	if err != nil {
		return false, 0, err
	}
	return res.Allowed, res.RetryAfter, nil
}

func after(ctx context.Context, client *rratelimiter.Client) (bool, time.Duration, error) {
	limiter := client.RateLimiter("project:123", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	res, err := limiter.Allow(ctx, 1)
	if err != nil {
		return false, 0, err
	}
	return res.Allowed, res.RetryAfter, nil
}

func TestGCRASharesTheKeysOfRedisRate(t *testing.T) {
	server := limittest.New(t)
	for i := range 12 {
		ask := before
		if i%2 == 1 {
			ask = sameKeys
		}
		ok, retry, err := ask(t.Context(), server.Redis())
		if err != nil {
			t.Fatal(err)
		}
		if ok != (i < 10) || !ok && retry != 6*time.Second {
			t.Errorf("request %d: %v, again after %v", i, ok, retry)
		}
	}
}

func TestTheWindowHoldsWhatGCRALetsThrough(t *testing.T) {
	server := limittest.New(t)
	client := server.Client()
	old, exact := 0, 0
	for range 60 {
		if ok, _, err := before(t.Context(), server.Redis()); err != nil {
			t.Fatal(err)
		} else if ok {
			old++
		}
		if ok, _, err := after(t.Context(), client); err != nil {
			t.Fatal(err)
		} else if ok {
			exact++
		}
		server.Advance(time.Second - time.Millisecond)
	}
	if old != 19 || exact != 10 {
		t.Errorf("within a minute redis_rate granted %d, rratelimiter %d", old, exact)
	}
}
