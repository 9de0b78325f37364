package envoylimit_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/envoylimit"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// BenchmarkShouldRateLimit measures requests of 64 callers on one limiter, on a real Redis: by gRPC
// over one connection, as Envoy sends them, and by a call of the library. p99-µs is the 99th
// percentile of a request's time.
func BenchmarkShouldRateLimit(b *testing.B) {
	server := redistest.Real(b)
	rate := rratelimiter.Rate{Permits: 1e9, Interval: 10 * time.Second}
	bare := connect(b, envoylimit.New(rratelimiter.NewClient(server.Client()), nil))
	b.Run("gRPC, no limit", func(b *testing.B) {
		measure(b, func() error {
			_, err := bare.ShouldRateLimit(b.Context(), to("shop", of("all=1")))
			return err
		})
	})
	for _, lease := range []time.Duration{0, 100 * time.Millisecond} {
		kind, options := "", []rratelimiter.LimiterOption{rratelimiter.WithEnforcedRate(rate)}
		if lease > 0 {
			kind, options = ", lease", append(options, rratelimiter.WithLease(lease))
		}
		client := rratelimiter.NewClient(server.Client())
		service := envoylimit.New(client, patient(httplimit.FailClosed))
		service.SetDomains(
			[]rules.Domain{
				{Name: "shop", Descriptors: []rules.Descriptor{{Key: "all", HasRate: true, Rate: rate, Lease: lease}}},
			},
		)
		rpc := connect(b, service)
		limiter := client.RateLimiter("direct"+kind, options...)
		request := to("shop", of("all=1"))
		b.Run("gRPC"+kind, func(b *testing.B) {
			measure(b, func() error {
				response, err := rpc.ShouldRateLimit(b.Context(), request)
				if err == nil && response.OverallCode != ratelimitv3.RateLimitResponse_OK {
					b.Error(response)
				}
				return err
			})
		})
		b.Run("library"+kind, func(b *testing.B) {
			measure(b, func() error {
				_, err := limiter.Allow(b.Context(), 1)
				return err
			})
		})
	}
}

// measure sends requests of 64 callers.
func measure(b *testing.B, ask func() error) {
	const callers = 64
	var all []time.Duration
	var mu sync.Mutex // guards all
	var group sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for caller := range callers {
		group.Go(func() {
			var times []time.Duration
			for range (b.N + callers - 1 - caller) / callers {
				began := time.Now()
				if err := ask(); err != nil {
					b.Error(err)
					return
				}
				times = append(times, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, times...)
		})
	}
	group.Wait()
	b.StopTimer()
	slices.Sort(all)
	if len(all) > 0 {
		b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "requests/s")
		b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	}
}
