package envoylimit_test

import (
	"testing"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A rate for a month or a year is a quota of the calendar: its permits return together.
func TestRatesOfMonthsAndYearsAreQuotas(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, `
domains:
  shop:
    - {key: month, rate: 2/month, name: monthly}
    - {key: year, rate: 3/year}
    - {key: week, rate: 1/week}
    - {key: trial, rate: 1/month, shadow: true}
`)
		e.now = time.Date(2026, 2, 10, 12, 0, 0, 0, time.UTC) // 18.5 days before March
		response := e.send(to("shop", of("month=1")), "OK: OK 1 of 2/MONTH (monthly) in 444h0m0s")
		if got := headers(response); got != `Ratelimit: "monthly";r=1;t=1598400`+"\n"+
			`Ratelimit-Policy: "monthly";q=2` {
			t.Error(got)
		}
		e.send(to("shop", of("week=1")), "OK: OK 0 of 1/WEEK in 168h0m0s")
		// The week refuses, so the month gets its permit back.
		e.send(
			to("shop", of("month=1"), of("week=1")),
			"OVER_LIMIT: OK 1 of 2/MONTH (monthly), OVER_LIMIT 0 of 1/WEEK in 168h0m0s",
		)
		// The limiter of an override is that of the rule.
		e.send(to("shop", limited("month=1", 2, typev3.RateLimitUnit_MONTH, 1)), "OK: OK 0 of 2/MONTH in 444h0m0s")
		e.send(to("shop", of("month=1")), "OVER_LIMIT: OVER_LIMIT 0 of 2/MONTH (monthly) in 444h0m0s")
		e.send(hits(to("shop", of("month=2")), 3), "OVER_LIMIT: OVER_LIMIT 0 of 2/MONTH (monthly)")
		e.send(hits(to("shop", of("year=1"), of("year=1")), 2, 1),
			"OK: OK 0 of 3/YEAR in 7788h0m0s, OK 0 of 3/YEAR in 7788h0m0s")
		for range 2 {
			e.send(to("shop", of("trial=1")), "OK: OK 0 of 1/MONTH in 444h0m0s")
		}
		e.now = time.Date(2026, 2, 28, 23, 59, 59, 0, time.UTC)
		e.send(to("shop", of("month=1")), "OVER_LIMIT: OVER_LIMIT 0 of 2/MONTH (monthly) in 1s")
		e.now = e.now.Add(time.Second)
		e.send(to("shop", of("month=1")), "OK: OK 1 of 2/MONTH (monthly) in 744h0m0s")
		e.send(to("shop", of("year=1")), "OVER_LIMIT: OVER_LIMIT 0 of 3/YEAR in 7344h0m0s")
	})
}

// A month counts as 30 days and a year as 365 where a limiter has several rates.
func TestTheStrictestQuotaOfALimiterCounts(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := serve(t, s, "domains: {shop: [{key: a, rate: 100/month}, {key: b, rate: 1/h}]}")
		year := func(entries string, permits uint32) string {
			e.t.Helper()
			response, err := e.rpc.ShouldRateLimit(
				t.Context(), to("shop", of(entries), limited(entries, permits, typev3.RateLimitUnit_YEAR, 1)),
			)
			if err != nil {
				t.Fatal(err)
			}
			return response.Statuses[0].CurrentLimit.Unit.String()
		}
		if got := year("a=1", 1000); got != "YEAR" { // 2.7 a day, the month 3.3
			t.Error(got)
		}
		if got := year("a=1", 2000); got != "MONTH" {
			t.Error(got)
		}
		if got := year("b=1", 8000); got != "YEAR" { // 21.9 a day, the hour 24
			t.Error(got)
		}
		if got := year("b=2", 9000); got != "HOUR" {
			t.Error(got)
		}
	})
}
