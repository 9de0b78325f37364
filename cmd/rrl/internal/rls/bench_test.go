package rls

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

const benchRules = `
domains:
  shop:
    - {key: free, rate: unlimited}
    - {key: all, rate: 4000000000/10s}
    - {key: user, rate: 4000000000/10s}
    - {key: path, rate: 4000000000/10s}
    - {key: method, rate: 4000000000/10s}
    - {key: leased, rate: 4000000000/10s, lease: 1s}
    - {key: refused, rate: 1/h}
`

// BenchmarkDecisions measures the decisions on requests of 32 callers that share a connection, as
// those of one worker of Envoy do. Redis and the callers run on the same machine.
func BenchmarkDecisions(b *testing.B) {
	var server *redistest.Server
	if testing.Short() {
		server = redistest.Embedded(b)
	} else {
		server = redistest.Real(b)
	}
	for _, c := range []struct {
		name      string
		keys      []string
		denyCache int
	}{
		{"no limit", []string{"free"}, 0},
		{"one limit", []string{"all"}, 0},
		{"a limit for each of 1,000 users", []string{"user"}, 0},
		{"4 limits", []string{"all", "user", "path", "method"}, 0},
		{"lease", []string{"leased"}, 0},
		{"all refused", []string{"refused"}, 0},
		{"all refused, deny cache", []string{"refused"}, 1000},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := start(b, server, benchRules, Options{Drain: time.Minute, DenyCache: c.denyCache, NearLimit: 0.8})
			r.serves()
			r.measure(b, c.keys)
		})
	}
}

// measure sends b.N requests, each with a descriptor for each key.
func (r *running) measure(b *testing.B, keys []string) {
	const callers, users = 32, 1000
	client := ratelimitv3.NewRateLimitServiceClient(r.conn)
	times := make([][]time.Duration, callers)
	var group sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for i := range callers {
		group.Go(func() {
			for n := i; n < b.N; n += callers {
				request := &ratelimitv3.RateLimitRequest{Domain: "shop"}
				for _, key := range keys {
					value := "a"
					if key == "user" {
						value = strconv.Itoa(n % users)
					}
					request.Descriptors = append(request.Descriptors, &ratelimit.RateLimitDescriptor{
						Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: key, Value: value}},
					})
				}
				began := time.Now()
				if _, err := client.ShouldRateLimit(b.Context(), request); err != nil {
					b.Error(err)
					return
				}
				times[i] = append(times[i], time.Since(began))
			}
		})
	}
	group.Wait()
	b.StopTimer()
	all := slices.Sorted(slices.Values(slices.Concat(times...)))
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "decisions/s")
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}
