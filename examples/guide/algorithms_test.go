package guide

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// An asker is a limiter, whatever its algorithm.
type asker interface {
	Allow(ctx context.Context, n int64) (rratelimiter.Result, error)
	Acquire(ctx context.Context, n int64) error
}

func exact(client *rratelimiter.Client) asker {
	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
	return limiter
}

func forManyKeys(rdb *redis.Client, key string, rate rratelimiter.Rate) []asker {
	// 20 at once, then the rate; stored as rate:KEY, as by redis_rate
	gcra := classic.NewGCRA(rdb, key, rate, 20)
	counters := classic.NewTwoCounters(rdb, key, rate) // a sliding window, estimated
	bucket := classic.NewTokenBucket(rdb, key+":b", classic.Tokens{Capacity: 20, PerStep: 10, Step: time.Second})
	gateway := classic.NewGatewayBucket(rdb, key+"/api", classic.Gateway{
		Every: 100 * time.Millisecond, Capacity: 20, Interval: 2 * time.Second, // a permit each 100 ms
	})
	spring := classic.NewSpringBucket(rdb, "orders."+key, classic.Spring{ReplenishRate: 10, BurstCapacity: 20})
	return []asker{gcra, counters, bucket, gateway, spring}
}

func windows(rdb *redis.Client, name string, rate rratelimiter.Rate) []asker {
	fixed := classic.NewFixedWindow(rdb, name+":f", rate)   // INCR and EXPIRE
	keys := classic.NewWindowKeys(rdb, name+":k", rate)     // a key for each window
	list := classic.NewListWindow(rdb, name+":l", rate)     // RPUSH and LLEN, without a script
	cursor := classic.NewCursorWindow(rdb, name+":c", rate) // a hash
	log := classic.NewSlidingLog(rdb, name+":z", rate)      // exact: a record for each grant
	parts := classic.NewSubWindows(rdb, name+":s", rate, 10)
	return []asker{fixed, keys, list, cursor, log, parts}
}

func evenly(rdb *redis.Client, rate rratelimiter.Rate) []asker {
	bucket := classic.NewLeakyBucket(rdb, "crm", rate, 20) // up to 20 at once
	// Acquire: one after the other, over all processes; 20 may wait
	queue := classic.NewLeakyQueue(rdb, "bank", rate, 20)
	bursty := classic.NewSmoothBursty(10) // this process alone: 10 a second
	warming := classic.NewSmoothWarmingUp(10, 3*time.Second)
	return []asker{bucket, queue, bursty, warming}
}

func quotas(rdb *redis.Client, user string) []asker {
	daily := classic.NewQuota(rdb, user, 1000, classic.Days{Location: time.UTC})
	// from each 15th; Weekly(time.Monday): weeks
	monthly := classic.NewQuota(rdb, user, 20_000, classic.Days{Period: classic.Monthly(15)})
	return []asker{daily, monthly}
}

func TestEachAlgorithmIsMade(t *testing.T) {
	server := limittest.New(t)
	rdb, rate := server.Redis(), rratelimiter.PerSecond(10)
	all := []asker{exact(server.Client())}
	all = append(all, forManyKeys(rdb, "192.0.2.1", rate)...)
	all = append(all, windows(rdb, "w", rate)...)
	all = append(all, evenly(rdb, rate)...)
	all = append(all, quotas(rdb, "user")...)
	for i, l := range all {
		if r, err := l.Allow(t.Context(), 1); err != nil || !r.Allowed {
			t.Errorf("limiter %d: %+v, %v", i, r, err)
		}
	}
}
