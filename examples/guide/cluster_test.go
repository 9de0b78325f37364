package guide

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

func onACluster(addrs []string) *rratelimiter.Client {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	client := rratelimiter.NewClient(rdb)
	return client
}

func oneSlot(ctx context.Context, client *rratelimiter.Client) ([]rratelimiter.Result, error) {
	perSecond := client.RateLimiter("{tenant7}:second", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
	perMinute := client.RateLimiter("{tenant7}:minute", rratelimiter.WithRate(rratelimiter.PerMinute(200)))
	return client.AllowAll(ctx, 1, perSecond, perMinute)
}

// The test makes no call to Redis, so it needs no cluster.
func TestNamesWhoseKeysLieApartAreToldAtOnce(t *testing.T) {
	client := onACluster([]string{"127.0.0.1:1"})
	for _, name := range []string{"a{b", "a}b{c"} {
		if err := client.RateLimiter(name).Acquire(t.Context(), 1); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := oneSlot(ctx, client); !errors.Is(err, context.Canceled) {
		t.Errorf("names of one tag: %v", err)
	}
}
