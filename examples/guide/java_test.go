package guide

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// trySetRate writes the same keys as Redisson's trySetRate.
func trySetRate(t *testing.T, rdb *redis.Client, name string) {
	t.Helper()
	if err := rdb.HSet(t.Context(), name, "rate", 100, "interval", 1000, "type", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func joinJava(ctx context.Context, rdb *redis.Client) error {
	client := rratelimiter.NewClient(rdb)
	orders := client.RateLimiter("orders")
	return orders.Acquire(ctx, 1)
}

func TestGoUsesTheRateThatJavaSet(t *testing.T) {
	server := limittest.New(t)
	trySetRate(t, server.Redis(), "orders")
	if err := joinJava(t.Context(), server.Redis()); err != nil {
		t.Fatal(err)
	}
	if free, err := server.Redis().Get(t.Context(), "{orders}:value").Int(); free != 99 || err != nil {
		t.Errorf("%d permits are free: %v", free, err)
	}
}

func mapped(rdb *redis.Client) *rratelimiter.Limiter {
	client := rratelimiter.NewClient(rdb, rratelimiter.WithNameMapper(func(name string) string {
		return "shop:" + name
	}))
	return client.RateLimiter("orders")
}

func TestNamesAreMappedAsInJava(t *testing.T) {
	server := limittest.New(t)
	trySetRate(t, server.Redis(), "shop:orders")
	if err := mapped(server.Redis()).Acquire(t.Context(), 1); err != nil {
		t.Error(err)
	}
}

func amongOldReleases(rdb *redis.Client) *rratelimiter.Client {
	client := rratelimiter.NewClient(rdb, rratelimiter.WithLimiterDefaults(
		rratelimiter.WithRecordFormat(rratelimiter.Redisson316), // 3.16.4 to 3.16.8 read this
		rratelimiter.WithRecordPerRequest(),                     // these releases are older than 3.35.0
	))
	return client
}

func TestRecordsAreWrittenForOldReleases(t *testing.T) {
	server := limittest.New(t)
	trySetRate(t, server.Redis(), "orders")
	if err := amongOldReleases(server.Redis()).RateLimiter("orders").Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	records, err := server.Redis().ZRange(t.Context(), "{orders}:permits", 0, -1).Result()
	if err != nil || len(records) != 1 || len(records[0]) != 20 || !strings.HasPrefix(records[0], "\x08\x00\x00\x00") {
		t.Errorf("%q, %v", records, err)
	}
}
