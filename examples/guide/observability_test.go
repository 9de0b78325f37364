package guide

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/otellimit"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

func countedByPrometheus(rdb *redis.Client) *rratelimiter.Client {
	metrics := promlimit.New(promlimit.Config{})
	prometheus.MustRegister(metrics)
	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(metrics))
	return client
}

func countedByOpenTelemetry(rdb *redis.Client) (*rratelimiter.Client, error) {
	observer, err := otellimit.New(otellimit.Config{TracerProvider: otel.GetTracerProvider()})
	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(observer))
	return client, err
}

func TestLimitersAreWatched(t *testing.T) {
	rdb := limittest.New(t).Redis()
	other, err := countedByOpenTelemetry(rdb)
	if err != nil {
		t.Fatal(err)
	}
	for _, client := range []*rratelimiter.Client{countedByPrometheus(rdb), other} {
		if err := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(10))).Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "rratelimiter_granted_permits_total" && f.Metric[0].GetCounter().GetValue() == 1 {
			return
		}
	}
	t.Error("Prometheus does not see the permit")
}
