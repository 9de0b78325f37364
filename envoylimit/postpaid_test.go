package envoylimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

const postpaid = `
domains:
  shop:
    - {key: tokens, rate: 1000/m, postpaid: true}
    - {key: more, rate: 1000/m, postpaid: true}
    - {key: plain, rate: 10/m}
    - {key: none, rate: 0/s}
    - {key: free, rate: unlimited, postpaid: true}
    - {key: month, rate: 1000/month, postpaid: true}
    - {key: trial, rate: 1000/m, postpaid: true, shadow: true}
    - {key: replaces, rate: 10/m, replaces: [gone]}
    - {key: gone, rate: 1000/m, postpaid: true, name: gone}
`

// A request is checked when it begins, by 0 hits, and its cost is counted when its stream is done.
// What was used counts, so requests pass until there is no permit left.
func TestTheCostOfAStreamCountsAtItsEnd(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, postpaid)
		for _, c := range []struct {
			entries        string
			cost           uint64
			requests, pass int
			until          string        // the time of the first refusal
			debt           time.Duration // after this time, a request passes
		}{
			{"tokens=bytes", 84, 20, 12, "1m0s", time.Minute},
			{"tokens=large", 400, 30, 3, "1m0s", time.Minute},
			{"tokens=huge", 2500, 30, 1, "2m0s", 2 * time.Minute},
		} {
			passed := 0
			for range c.requests {
				check := hits(to("shop", of(c.entries)), 0)
				response, err := e.rpc.ShouldRateLimit(t.Context(), check)
				if err != nil {
					t.Fatal(err)
				}
				if response.OverallCode == ratelimitv3.RateLimitResponse_OVER_LIMIT {
					want := "OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE in " + c.until
					if got := shown(response); got != want {
						t.Errorf("%s: %s, want %s", c.entries, got, want)
					}
					continue
				}
				passed++
				if _, err = e.rpc.ShouldRateLimit(t.Context(), hits(to("shop", of(c.entries)), c.cost)); err != nil {
					t.Fatal(err)
				}
			}
			if passed != c.pass {
				t.Errorf("%s: %d of %d requests passed, not %d", c.entries, passed, c.requests, c.pass)
			}
			e.now = e.now.Add(c.debt - time.Second)
			e.send(hits(to("shop", of(c.entries)), 0), "OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE in 1s")
			e.now = e.now.Add(time.Second)
			response, err := e.rpc.ShouldRateLimit(t.Context(), hits(to("shop", of(c.entries)), 0))
			if err != nil || response.OverallCode != ratelimitv3.RateLimitResponse_OK {
				t.Errorf("%s: after %v: %v, %v", c.entries, c.debt, response, err)
			}
		}
	})
}

// 0 hits ask whether a permit is free, and take none, with and without postpaid.
func TestNoHitsAskWhetherAPermitIsFree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, postpaid)
		e.now = time.Date(2026, 2, 28, 23, 59, 50, 0, time.UTC)
		for range 2 {
			e.send(hits(to("shop", of("plain=1")), 0), "OK: OK 10 of 10/MINUTE in 1m0s")
		}
		e.send(hits(to("shop", of("plain=1")), 10), "OK: OK 0 of 10/MINUTE in 1m0s")
		response := e.send(hits(to("shop", of("plain=1")), 0), "OVER_LIMIT: OVER_LIMIT 0 of 10/MINUTE in 1m0s")
		const fields = `Ratelimit: "plain";r=0;t=60` + "\n" + `Ratelimit-Policy: "plain";q=10;w=60` +
			"\nRetry-After: 60"
		if got := headers(response); got != fields {
			t.Error(got)
		}
		e.send(hits(to("shop", of("none=1")), 0), "OVER_LIMIT: OVER_LIMIT 0 of 0/SECOND")
		e.send(hits(to("shop", of("free=1"), of("unknown=1")), 0, 0), "OK: OK 4294967295, OK")
		e.send(hits(to("shop", of("month=1")), 0), "OK: OK 1000 of 1000/MONTH in 10s")
		e.send(hits(to("shop", of("trial=1")), 0), "OK: OK 1000 of 1000/MINUTE in 1m0s")
		// Of several descriptors of one limiter, the sum counts.
		e.send(hits(to("shop", of("plain=2"), of("plain=2")), 0, 1),
			"OK: OK 9 of 10/MINUTE in 1m0s, OK 9 of 10/MINUTE in 1m0s")
	})
}

// Hits of a rule with postpaid count in full, also above the rate. The descriptor is over the limit
// if no permit was free before.
func TestHitsOfPostpaidCountInFull(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, postpaid)
		e.now = time.Date(2026, 2, 28, 23, 59, 50, 0, time.UTC)
		e.send(to("shop", of("tokens=1")), "OK: OK 999 of 1000/MINUTE in 1m0s")
		e.send(hits(to("shop", of("tokens=1")), 1999), "OK: OK 0 of 1000/MINUTE in 2m0s")
		e.send(to("shop", of("tokens=1")), "OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE in 2m0s")
		// As the sum of several descriptors, too; above the bound of a debt, up to the bound.
		e.send(hits(to("shop", of("tokens=2"), of("tokens=2")), 600, 600),
			"OK: OK 0 of 1000/MINUTE in 1m0s, OK 0 of 1000/MINUTE in 1m0s")
		e.send(hits(to("shop", of("tokens=3")), 1<<63), "OK: OK 0 of 1000/MINUTE in 11m0s")
		// A quota of the calendar: what is above it is not carried over.
		e.send(hits(to("shop", of("month=1")), 2500), "OK: OK 0 of 1000/MONTH in 10s")
		e.send(hits(to("shop", of("month=1")), 0), "OVER_LIMIT: OVER_LIMIT 0 of 1000/MONTH in 10s")
		// In shadow mode it refuses nothing.
		for range 2 {
			response, err := e.rpc.ShouldRateLimit(t.Context(), hits(to("shop", of("trial=1")), 2500))
			if err != nil || response.OverallCode != ratelimitv3.RateLimitResponse_OK ||
				response.Statuses[0].LimitRemaining != 0 {
				t.Error(response, err)
			}
		}
		// Without a limit nothing is counted.
		e.send(hits(to("shop", of("free=1")), 5), "OK: OK 4294967295")
		e.send(hits(to("shop", of("replaces=1"), of("gone=1")), 1, 5000), "OK: OK 9 of 10/MINUTE in 1m0s, OK")
		e.send(hits(to("shop", of("gone=1")), 0), "OK: OK 1000 of 1000/MINUTE (gone) in 1m0s")
		// An override is the rate, and the hits count as the rule says.
		override := limited("free=2", 100, typev3.RateLimitUnit_MINUTE, 1)
		e.send(hits(to("shop", override), 150), "OK: OK 0 of 100/MINUTE in 1m0s")
		e.send(hits(to("shop", override), 0), "OVER_LIMIT: OVER_LIMIT 0 of 100/MINUTE in 1m0s")
		e.now = e.now.Add(10 * time.Second)
		e.send(hits(to("shop", of("month=1")), 0), "OK: OK 1000 of 1000/MONTH in 744h0m0s")
	})
}

// The descriptors with postpaid count whatever the others answer. The others take all or none, and
// none if one with postpaid refuses.
func TestPostpaidBesideOtherDescriptors(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, postpaid)
		// Another descriptor refuses, for now or in any case: the hits count all the same.
		e.send(hits(to("shop", of("plain=1")), 10), "OK: OK 0 of 10/MINUTE in 1m0s")
		e.send(hits(to("shop", of("plain=1"), of("tokens=1")), 1, 400),
			"OVER_LIMIT: OVER_LIMIT 0 of 10/MINUTE in 1m0s, OK 600 of 1000/MINUTE in 1m0s")
		e.send(hits(to("shop", of("none=1"), of("tokens=1")), 1, 400),
			"OVER_LIMIT: OVER_LIMIT 0 of 0/SECOND, OK 200 of 1000/MINUTE in 1m0s")
		e.send(hits(to("shop", of("plain=2"), of("tokens=1")), 1, 400),
			"OK: OK 9 of 10/MINUTE in 1m0s, OK 0 of 1000/MINUTE in 1m0s")
		// One with postpaid refuses, or one that only asks: the others take nothing, the charges
		// count.
		e.send(hits(to("shop", of("plain=2"), of("tokens=1"), of("more=1")), 1, 0, 300),
			"OVER_LIMIT: OK, OVER_LIMIT 0 of 1000/MINUTE in 1m0s, OK 700 of 1000/MINUTE in 1m0s")
		e.send(hits(to("shop", of("plain=2"), of("tokens=1"), of("more=1")), 1, 1, 300),
			"OVER_LIMIT: OK, OVER_LIMIT 0 of 1000/MINUTE in 1m0s, OK 400 of 1000/MINUTE in 1m0s")
		e.send(hits(to("shop", of("plain=2")), 0), "OK: OK 9 of 10/MINUTE in 1m0s")
	})
}

// A check in debt is answered from the deny cache. While Redis is away, neither a check nor a
// charge passes for allowed.
func TestPostpaidWithoutCallsAndWithoutRedis(t *testing.T) {
	s := redistest.Real(t)
	e := serve(t, s, postpaid, rratelimiter.WithLimiterDefaults(rratelimiter.WithDenyCache(10)))
	e.send(hits(to("shop", of("tokens=1")), 1500), "OK: OK 0 of 1000/MINUTE in 1m0s")
	monitor := s.Monitor()
	for range 5 {
		e.send(hits(to("shop", of("tokens=1")), 0), "OVER_LIMIT: OVER_LIMIT 0 of 1000/MINUTE in 1m0s")
	}
	for _, call := range monitor.Stop() {
		if call.Name() == "EVALSHA" {
			t.Errorf("a call: %v", call)
		}
	}
	down := redistest.Embedded(t)
	down.Mini().Close()
	var told []error
	policy := patient(httplimit.FailClosed)
	policy.OnError = func(_ context.Context, err error) { told = append(told, err) }
	e = serveWith(t, down, policy, postpaid, rratelimiter.WithCallTimeout(10*time.Millisecond))
	for _, n := range []uint64{0, 1} {
		_, err := e.service.ShouldRateLimit(t.Context(), hits(to("shop", of(fmt.Sprint("tokens=", n))), n))
		if err == nil || len(told) == 0 || !errors.Is(told[len(told)-1], rratelimiter.ErrUnavailable) {
			t.Errorf("%d hits: %v, %v", n, err, told)
		}
	}
}
