package httplimit

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// zero_test.go: a rate of 0 permits refuses every request, wherever it comes from and whatever else
// happens.

func TestRateOfZeroRefusesEveryRequest(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	one := func(*http.Request) int64 { return 1 }
	three := func(*http.Request) int64 { return 3 }
	stored := client.RateLimiter("stored")
	if err := stored.SetRate(t.Context(), rratelimiter.PerSecond(0)); err != nil {
		t.Fatal(err)
	}
	zero := Per(client, "zero", rratelimiter.PerSecond(0), byAddr)
	hour := Per(client, "1h", rratelimiter.PerHour(10), byAddr)
	for name, limits := range map[string][]Limit{
		"by the request": {
			PerFunc(client, "func", func(*http.Request) rratelimiter.Rate { return rratelimiter.PerMinute(0) }, nil),
		},
		"for each key":             {zero},
		"stored":                   {Shared("stored", stored)},
		"larger cost":              {zero.Cost(three)},
		"stored, larger cost":      {Shared("stored", stored).Cost(three)},
		"counted by the response":  {zero.CountIf(succeeded)},
		"with others":              {hour, zero},
		"with others, larger cost": {hour, zero.Cost(three), Shared("stored", stored).Cost(one)},
		"twice":                    {zero, zero},
		"with another rate": {
			Per(client, "zero", rratelimiter.PerSecond(5), byAddr),
			Per(client, "zero", rratelimiter.PerSecond(5), byAddr), zero,
		},
		"with another rate, last": {zero, Per(client, "zero", rratelimiter.PerSecond(5), byAddr)},
	} {
		guard := patient(limits...)
		for _, wait := range []time.Duration{0, time.Minute} {
			guard.Policy.Wait = wait
			w := get(guard.Middleware(ok), "192.0.2.1", "/")
			if after := w.Header().Get("Retry-After"); w.Code != http.StatusTooManyRequests || after != "" {
				t.Errorf("%s, waiting for %v: %d, Retry-After %q", name, wait, w.Code, after)
			}
		}
	}
	state, err := client.RateLimiter("ratelimit:192.0.2.1:1h").State(t.Context())
	if err != nil || state.Used != 0 {
		t.Errorf("refused requests have taken %d permits of another limit: %v", state.Used, err)
	}
	wantCodes(t, patient(Per(client, "none", rratelimiter.Unlimited, nil)).Middleware(ok), "192.0.2.1", "/", 200, 200)
}

func TestRateOfZeroRefusesWithoutRedis(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	zero, hour := Per(client, "zero", rratelimiter.PerSecond(0), nil), Per(client, "1h", rratelimiter.PerHour(10), nil)
	s.Fail("LOADING Redis is loading the dataset in memory")
	for _, test := range []struct {
		policy *Policy
		code   int
	}{
		{&Policy{Failure: FailOpen}, http.StatusTooManyRequests},
		{&Policy{Failure: FailLocal}, http.StatusTooManyRequests},
		{&Policy{Failure: FailClosed}, http.StatusServiceUnavailable},
		{&Policy{Failure: FailOpen, Shadow: true}, http.StatusOK},
	} {
		test.policy.Logger = quiet
		guard := New(hour, zero)
		guard.Policy = test.policy
		if w := get(guard.Middleware(ok), "192.0.2.1", "/"); w.Code != test.code {
			t.Errorf("failure mode %v: %d, not %d", test.policy.Failure, w.Code, test.code)
		}
		guard.SetLimits(hour)
		if w := get(guard.Middleware(ok), "192.0.2.1", "/"); test.policy.Failure != FailClosed &&
			w.Code != http.StatusOK {
			t.Errorf("failure mode %v: %d without the limit of 0", test.policy.Failure, w.Code)
		}
	}
}

// A request that waits in line is refused if the rate becomes too low for it.
func TestRateOfZeroEndsTheWait(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	l := client.RateLimiter("stored", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	p := &Policy{Wait: 90 * time.Second, Bound: 10 * time.Second, Logger: quiet}
	claim := Claim{Name: "stored", Limiter: l}
	if d := p.Decide(t.Context(), claim); d.Outcome != Allowed {
		t.Fatalf("%+v", d)
	}
	second := make(chan Decision)
	go func() { second <- p.Decide(context.Background(), claim) }()
	s.AwaitWaiting("", 1)
	if err := l.SetRate(t.Context(), rratelimiter.PerMinute(0)); err != nil {
		t.Fatal(err)
	}
	if d := <-second; d.Outcome != Denied || d.Err != nil {
		t.Errorf("%v: %v", d.Outcome, d.Err)
	}
}
