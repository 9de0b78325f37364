package envoylimit_test

import (
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// hits returns a request whose first descriptors take these numbers of permits.
func hits(r *ratelimitv3.RateLimitRequest, hits ...uint64) *ratelimitv3.RateLimitRequest {
	for i, n := range hits {
		r.Descriptors[i].HitsAddend = wrapperspb.UInt64(n)
	}
	return r
}

const sums = `
domains:
  shop:
    - {key: all, rate: 1000/m}
    - {key: once, rate: 1/h}
    - {key: path, value: /api/*, shared: true, rate: 10/m}
    - {key: trial, rate: 10/m, shadow: true}
    - {key: none, rate: 0/s}
    - {key: leased, rate: 1000/m, lease: 1s}
`

// Descriptors with the same limiter are asked once, for the sum of their permits.
func TestDescriptorsWithTheSameLimiterAreSummed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, sums)
		// More than the rate together: over the limit, and nothing is taken.
		e.send(hits(to("shop", of("all=1"), of("all=1")), 600, 600),
			"OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE, OVER_LIMIT 0 of 1000/MINUTE")
		e.send(to("shop", of("once=1"), of("once=1")), "OVER_LIMIT: OVER_LIMIT 0 of 1/HOUR, OVER_LIMIT 0 of 1/HOUR")
		e.send(to("shop", of("once=1")), "OK: OK 0 of 1/HOUR in 1h0m0s")
		e.send(hits(to("shop", of("all=1"), of("all=1"), of("all=1")), 1<<63, 1<<63, 1<<63),
			"OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE, OVER_LIMIT 0 of 1000/MINUTE, OVER_LIMIT 0 of 1000/MINUTE")
		// Each has its own number of permits, and the figures of the limiter.
		e.send(hits(to("shop", of("all=1"), of("all=2"), of("all=1")), 600, 1000, 300),
			"OK: OK 100 of 1000/MINUTE in 1m0s, OK 0 of 1000/MINUTE in 1m0s, OK 100 of 1000/MINUTE in 1m0s")
		// More than is free together: the request waits for the sum.
		e.now = e.now.Add(10 * time.Second)
		e.send(hits(to("shop", of("all=1"), of("all=1")), 60, 60),
			"OVER_LIMIT: OVER_LIMIT 100 of 1000/MINUTE in 50s, OVER_LIMIT 100 of 1000/MINUTE in 50s")
		response := e.send(hits(to("shop", of("all=1"), of("all=1")), 60, 40),
			"OK: OK 0 of 1000/MINUTE in 50s, OK 0 of 1000/MINUTE in 50s")
		if got := headers(response); got != `Ratelimit: "all";r=0;t=50`+"\n"+`Ratelimit-Policy: "all";q=1000;w=60` {
			t.Error(got)
		}
		// Without hits it asks whether a permit is free.
		e.send(hits(to("shop", of("all=1"), of("all=3")), 0, 1),
			"OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE in 50s, OK")
		e.send(to("shop", of("none=1"), of("none=1")), "OVER_LIMIT: OVER_LIMIT 0 of 0/SECOND, OVER_LIMIT 0 of 0/SECOND")
		e.send(hits(to("shop", of("leased=1"), of("leased=1")), 600, 600),
			"OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE, OVER_LIMIT 0 of 1000/MINUTE")
	})
}

// Values of a shared rule have the same limiter.
func TestDescriptorsOfASharedRuleAreSummed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, sums)
		e.send(hits(to("shop", of("path=/api/a"), of("path=/api/b")), 6, 5),
			"OVER_LIMIT: OVER_LIMIT 0 of 10/MINUTE, OVER_LIMIT 0 of 10/MINUTE")
		e.send(hits(to("shop", of("path=/api/a"), of("path=/api/b")), 6, 3),
			"OK: OK 1 of 10/MINUTE in 1m0s, OK 1 of 10/MINUTE in 1m0s")
	})
}

// Descriptors of rules in shadow mode are summed, too, and refuse nothing. They are no part of the
// sum of others with the same limiter.
func TestShadowIsSummedByItself(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, sums)
		e.send(hits(to("shop", of("trial=1"), of("trial=1")), 6, 5), "OK: OK 0 of 10/MINUTE, OK 0 of 10/MINUTE")
		e.send(hits(to("shop", of("trial=1"), of("trial=1")), 6, 3),
			"OK: OK 1 of 10/MINUTE in 1m0s, OK 1 of 10/MINUTE in 1m0s")
		e.send(
			hits(to("shop", of("trial=2"), limited("trial=2", 10, typev3.RateLimitUnit_MINUTE, 1)), 11, 10),
			"OK: OK 0 of 10/MINUTE, OK 0 of 10/MINUTE in 1m0s",
		)
	})
}

// If descriptors give one limiter different rates, the strictest rate counts for all of them.
func TestTheStrictestRateOfALimiterCounts(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, sums)
		override := limited("all=1", 20, typev3.RateLimitUnit_MINUTE, 1)
		e.send(hits(to("shop", of("all=1"), override), 15, 10),
			"OVER_LIMIT: OVER_LIMIT 0 of 20/MINUTE, OVER_LIMIT 0 of 20/MINUTE")
		e.send(hits(to("shop", override, of("all=1")), 10, 5),
			"OK: OK 5 of 20/MINUTE in 1m0s, OK 5 of 20/MINUTE in 1m0s")
	})
}

// Envoy drops the fraction of a second of a time, so times are whole seconds, rounded up. A request
// that can never pass has no time, and no Retry-After.
func TestTimesAreWholeSeconds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, "domains: {shop: [{key: a, rate: 1/100ms}, {key: b, rate: 2/1500ms}, {key: none, rate: 0/s}]}")
		e.send(to("shop", of("a=1"), of("b=1")), "OK: OK 0 of 1/UNKNOWN in 1s, OK 1 of 2/UNKNOWN in 2s")
		response := e.send(to("shop", of("a=1")), "OVER_LIMIT: OVER_LIMIT 0 of 1/UNKNOWN in 1s")
		const fields = `Ratelimit: "a";r=0;t=1` + "\n" + `Ratelimit-Policy: "a";q=1` + "\nRetry-After: 1"
		if got := headers(response); got != fields {
			t.Error(got)
		}
		for _, never := range []*ratelimitv3.RateLimitRequest{
			to("shop", of("none=1")), hits(to("shop", of("b=1")), 3), hits(to("shop", of("b=1"), of("a=2")), 3, 1),
		} {
			response, err := e.rpc.ShouldRateLimit(t.Context(), never)
			if err != nil || response.OverallCode != ratelimitv3.RateLimitResponse_OVER_LIMIT {
				t.Fatal(response, err)
			}
			for _, h := range response.ResponseHeadersToAdd {
				if h.Key == "Retry-After" {
					t.Errorf("%v: Retry-After: %s", never, h.Value)
				}
			}
		}
	})
}
