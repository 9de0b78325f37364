package httplimit

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// headerText returns the fields of a header, sorted by name, one per line.
func headerText(h http.Header) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(h)) {
		for _, value := range h[name] {
			b.WriteString(name + ": " + value + "\n")
		}
	}
	return b.String()
}

func TestFields(t *testing.T) {
	burst := Claim{Name: "burst", Key: "192.0.2.1", Rate: rratelimiter.PerMinute(100)}
	daily := Claim{Name: "daily", Rate: rratelimiter.Rate{Permits: 1000, Interval: 24 * time.Hour}}
	short := Claim{Name: `a "\ é`, Rate: rratelimiter.Rate{Permits: 5, Interval: 250 * time.Millisecond}}
	foreign := Claim{Name: "foreign"}
	result := func(allowed bool, limit, remaining int64, retry, reset time.Duration) rratelimiter.Result {
		return rratelimiter.Result{
			Allowed:    allowed,
			Limit:      limit,
			Remaining:  remaining,
			RetryAfter: retry,
			ResetAfter: reset,
		}
	}
	for _, c := range []struct {
		name  string
		guard *Guard
		d     Decision
		want  string
	}{
		{"no limit", &Guard{XRateLimit: true}, Decision{Outcome: Unlimited}, ""},
		{"one limit", &Guard{}, Decision{Outcome: Allowed, Answers: []Answer{
			{Claim: burst, Result: result(true, 100, 50, 0, 29*time.Second+time.Millisecond+1)},
		}}, `
Ratelimit: "burst";r=50;t=30
Ratelimit-Policy: "burst";q=100;w=60
`},
		{
			"the next permit, not all; a ms more is no second more",
			&Guard{XRateLimit: true},
			Decision{Outcome: Allowed, Answers: []Answer{
				{Claim: burst, Result: rratelimiter.Result{
					Allowed: true, Limit: 100, NextAfter: 29*time.Second + time.Millisecond, ResetAfter: time.Minute,
				}},
			}}, `
Ratelimit: "burst";r=0;t=29
Ratelimit-Policy: "burst";q=100;w=60
X-Ratelimit-Limit: 100
X-Ratelimit-Remaining: 0
X-Ratelimit-Reset: 29
`,
		},
		{"tokens, and a limit in shadow", &Guard{XRateLimit: true}, Decision{Outcome: Shadowed, Answers: []Answer{
			{
				Claim:  Claim{Name: "llm", Unit: "tokens", Rate: burst.Rate},
				Result: result(true, 100, 50, 0, time.Second),
			},
			{
				Claim:   Claim{Name: "trial", shadow: true},
				Refused: true,
				Result:  result(false, 10, 0, time.Second, time.Second),
			},
		}}, `
Ratelimit: "llm";r=50;t=1
Ratelimit-Policy: "llm";q=100;qu="tokens";w=60
X-Ratelimit-Limit: 100
X-Ratelimit-Remaining: 50
X-Ratelimit-Reset: 1
`},
		{"two limits", &Guard{XRateLimit: true, PartitionKeys: true}, Decision{Outcome: Allowed, Answers: []Answer{
			{Claim: burst, Result: result(true, 100, 99, 0, time.Minute)},
			{Claim: daily, Result: result(true, 1000, 10, 0, 24*time.Hour)},
		}}, `
Ratelimit: "burst";r=99;t=60;pk=:MTkyLjAuMi4x:, "daily";r=10;t=86400
Ratelimit-Policy: "burst";q=100;w=60;pk=:MTkyLjAuMi4x:, "daily";q=1000;w=86400
X-Ratelimit-Limit: 1000
X-Ratelimit-Remaining: 10
X-Ratelimit-Reset: 86400
`},
		{"refused by one of two", &Guard{XRateLimit: true}, Decision{Outcome: Denied, Answers: []Answer{
			{Claim: burst, Refused: true, Result: result(false, 100, 0, 1500*time.Millisecond, time.Minute)},
			{Claim: daily, Result: result(false, 1000, 10, 0, 24*time.Hour)},
		}}, `
Ratelimit: "burst";r=0;t=2
Ratelimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
Retry-After: 2
X-Ratelimit-Limit: 100
X-Ratelimit-Remaining: 0
X-Ratelimit-Reset: 2
`},
		{
			"refused for all that the request needs, not for the next permit",
			&Guard{},
			Decision{Outcome: Denied, Answers: []Answer{
				{Claim: burst, Refused: true, Result: rratelimiter.Result{
					Limit: 100, Remaining: 2, RetryAfter: time.Minute + time.Millisecond, NextAfter: time.Second,
					ResetAfter: time.Minute,
				}},
			}}, `
Ratelimit: "burst";r=2;t=60
Ratelimit-Policy: "burst";q=100;w=60
Retry-After: 60
`,
		},
		{"refused by both", &Guard{XRateLimit: true}, Decision{Outcome: Denied, Answers: []Answer{
			{Claim: burst, Refused: true, Result: result(false, 100, 2, time.Millisecond, time.Minute)},
			{Claim: daily, Refused: true, Result: result(false, 1000, 0, time.Hour, 24*time.Hour)},
		}}, `
Ratelimit: "burst";r=2;t=1, "daily";r=0;t=3600
Ratelimit-Policy: "burst";q=100;w=60, "daily";q=1000;w=86400
Retry-After: 3600
X-Ratelimit-Limit: 1000
X-Ratelimit-Remaining: 0
X-Ratelimit-Reset: 3600
`},
		{"no whole seconds, no ASCII", &Guard{}, Decision{Outcome: Allowed, Answers: []Answer{
			{Claim: short, Result: result(true, 5, 4, 0, 250*time.Millisecond)},
		}}, `
Ratelimit: "a \"\\ ?";r=4;t=1
Ratelimit-Policy: "a \"\\ ?";q=5
`},
		{"nothing known but the result", &Guard{}, Decision{Outcome: Allowed, Answers: []Answer{
			{Claim: foreign, Result: result(true, 1e18, -1, 0, 0)},
		}}, `
Ratelimit: "foreign";r=0
Ratelimit-Policy: "foreign";q=999999999999999
`},
		{"refused for ever", &Guard{}, Decision{Outcome: Denied, Answers: []Answer{{Claim: foreign, Refused: true}}}, `
Ratelimit: "foreign";r=0
Ratelimit-Policy: "foreign";q=0
`},
		{"failed closed", &Guard{XRateLimit: true}, Decision{Outcome: FailedClosed, Err: errors.New("secret")}, `
Retry-After: 1
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := http.Header{}
			c.guard.describe(h, c.d)
			if got := headerText(h); got != strings.TrimPrefix(c.want, "\n") {
				t.Errorf("\n%s\nnot%s", got, c.want)
			}
		})
	}
}

func TestRefusalBody(t *testing.T) {
	for _, c := range []struct {
		d      Decision
		status int
		body   string
	}{
		{
			Decision{
				Outcome: Denied,
				Answers: []Answer{{Claim: Claim{Name: "a"}}, {Claim: Claim{Name: `"b"`}, Refused: true}},
			},
			429,
			`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"violated-policies":["\"b\""]}`,
		},
		{Decision{Outcome: FailedClosed, Err: errors.New("secret")}, 503,
			`{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Not available now","status":503}`},
	} {
		w := httptest.NewRecorder()
		refuse(w, &http.Request{}, c.d)
		if got := strings.TrimSpace(w.Body.String()); w.Code != c.status || got != c.body || !json.Valid([]byte(got)) {
			t.Errorf("%d %s, not %d %s", w.Code, got, c.status, c.body)
		}
		if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("type %q", got)
		}
	}
}
