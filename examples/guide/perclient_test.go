package guide

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

func eachPod(rdb *redis.Client, pod string) *rratelimiter.Limiter {
	client := rratelimiter.NewClient(rdb, rratelimiter.WithClientID(pod)) // such as "worker-3", of a StatefulSet
	reports := client.RateLimiter("reports", rratelimiter.WithRate(rratelimiter.Rate{
		Type: rratelimiter.PerClient, Permits: 5, Interval: time.Hour,
	}))
	return reports
}

func pods(ctx context.Context, reports *rratelimiter.Limiter) ([]string, error) {
	ids, err := reports.Clients(ctx)
	return ids, err
}

func TestAStableIDSurvivesARestart(t *testing.T) {
	rdb := limittest.New(t).Redis()
	for i, c := range []struct {
		pod  string
		free int64
	}{{"worker-3", 5}, {"worker-4", 5}, {"worker-3", 2}} {
		reports := eachPod(rdb, c.pod)
		if free, err := reports.AvailablePermits(t.Context()); free != c.free || err != nil {
			t.Errorf("%d, %s: %d permits are free: %v", i, c.pod, free, err)
		}
		if ok, err := reports.TryAcquire(t.Context(), 3); ok != (c.free >= 3) || err != nil {
			t.Error(ok, err)
		}
	}
	ids, err := pods(t.Context(), eachPod(rdb, "operator"))
	if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"worker-3", "worker-4"}) {
		t.Errorf("clients: %q, %v", ids, err)
	}
}
