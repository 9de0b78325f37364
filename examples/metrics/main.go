// Command metrics runs a worker at the rate of a limiter, and serves the metrics of the limiter for
// Prometheus at http://localhost:2112/metrics. docs/observability.md describes the metrics.
//
//	go run ./metrics -redis redis://localhost:6379
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

func main() {
	listen := flag.String("listen", "localhost:2112", "`address` to listen on")
	server := flag.String("redis", "redis://localhost:6379", "`URL` of Redis")
	flag.Parse()
	options, err := redis.ParseURL(*server)
	if err != nil {
		log.Fatal(err)
	}
	client, page := watched(redis.NewClient(options))
	go func() {
		for {
			if err := work(context.Background(), client); err != nil {
				log.Print(err)
				time.Sleep(time.Second)
			}
		}
	}()
	http.Handle("/metrics", page)
	log.Fatal((&http.Server{Addr: *listen, ReadHeaderTimeout: 10 * time.Second}).ListenAndServe())
}

// watched returns a client, and a handler that serves its metrics.
func watched(rdb rratelimiter.Redis) (*rratelimiter.Client, http.Handler) {
	// there is only one limiter, so the label has few values
	metrics := promlimit.New(promlimit.Config{Label: func(limiter string) string { return limiter }})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	client := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(metrics))
	return client, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// work waits for a permit and does one piece of work.
func work(ctx context.Context, client *rratelimiter.Client) error {
	jobs := client.RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
	if err := jobs.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("no work: %w", err)
	}
	return nil
}
