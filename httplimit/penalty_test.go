package httplimit

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A key that its limit refuses once stays refused in all processes until the penalty is over,
// however often it asks. Other keys and other limits do not change.
func TestPenalty(t *testing.T) {
	s := limittest.New(t)
	process := func() *Guard {
		client := s.Client()
		return patient(
			Per(client, "1m", rratelimiter.PerMinute(10), byAddr),
			Per(client, "1s", rratelimiter.PerSecond(2), byAddr).Penalty(client, 30*time.Second),
		)
	}
	first, second := process(), process()
	one, two := first.Middleware(ok), second.Middleware(ok)
	wantCodes(t, one, "192.0.2.1", "/", 200, 200)
	s.Advance(500 * time.Millisecond)
	response := get(one, "192.0.2.1", "/")
	if response.Code != 429 || response.Header().Get("Retry-After") != "30" {
		t.Errorf("%d, Retry-After %q, want 429 after 30 s", response.Code, response.Header().Get("Retry-After"))
	}
	for range 20 {
		s.Advance(time.Second)
		wantCodes(t, one, "192.0.2.1", "/", 429)
		wantCodes(t, two, "192.0.2.1", "/", 429)
	}
	response = get(two, "192.0.2.1", "/")
	if got := headerText(response.Header()); response.Code != 429 || got != "Content-Type: application/problem+json\n"+
		"Ratelimit: \"1s\";r=0;t=10\nRatelimit-Policy: \"1s\";q=2;w=1\nRetry-After: 10\nX-Content-Type-Options: nosniff\n" {
		t.Errorf("%d with\n%s", response.Code, got)
	}
	wantCodes(t, two, "192.0.2.2", "/", 200, 200)
	if free, err := s.Client().RateLimiter("ratelimit:192.0.2.1:1m").AvailablePermits(t.Context()); err != nil ||
		free != 8 {
		t.Errorf("the other limit has %d free permits, %v, want 8", free, err)
	}
	s.Advance(10 * time.Second)
	wantCodes(t, two, "192.0.2.1", "/", 200, 200, 429)
	wantCount(t, second.Policy, map[Outcome]int64{Allowed: 4, Denied: 22})
}

// The limiter of a penalty is one that all processes and rrl find.
func TestPenaltyEndsWithAReset(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		client := s.Client()
		limiter := rratelimiter.NewClient(client)
		h := patient(Per(limiter, "login", rratelimiter.PerHour(1), byAddr).Penalty(limiter, time.Hour)).Middleware(ok)
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
		for _, name := range []string{"ratelimit:192.0.2.1:login", "ratelimit:192.0.2.1:login:penalty"} {
			wantCodes(t, h, "192.0.2.1", "/", 429)
			if _, err := limiter.RateLimiter(name).Reset(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		wantCodes(t, h, "192.0.2.1", "/", 200, 429)
	})
}

// A rate of 0 is not exceeded by anybody: requests pass as soon as the rate is higher.
func TestNoPenaltyForARateOfZero(t *testing.T) {
	client, rate := limittest.New(t).Client(), rratelimiter.PerSecond(0)
	h := patient(
		PerFunc(client, "plan", func(*http.Request) rratelimiter.Rate { return rate }, byAddr).Penalty(client, time.Hour),
	).Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 429)
	rate = rratelimiter.PerSecond(1)
	wantCodes(t, h, "192.0.2.1", "/", 200)
}

// Without a reply about the penalty, Policy.Failure decides. A refusal is one even if its penalty
// cannot begin.
func TestPenaltyThatFails(t *testing.T) {
	away := limittest.New(t)
	box := away.Client()
	var failed []error
	guard := func(l Allower) *Guard {
		guard := patient(Shared("a", l).Penalty(box, time.Minute))
		guard.Policy.Logger = quiet
		guard.Policy.OnError = func(_ context.Context, err error) { failed = append(failed, err) }
		return guard
	}
	refusing := refusalThat(func() { away.Fail("ERR the penalty's server fails") })
	wantCodes(t, guard(refusing).Middleware(ok), "192.0.2.1", "/", 429)
	if len(failed) != 1 {
		t.Errorf("the errors are %v", failed)
	}
	wantCodes(t, guard(refusing).Middleware(ok), "192.0.2.1", "/", 503)
	if len(failed) != 2 {
		t.Errorf("the errors are %v", failed)
	}
}

// A refusalThat refuses after it has called the function.
type refusalThat func()

func (r refusalThat) Allow(context.Context, int64) (rratelimiter.Result, error) {
	r()
	return rratelimiter.Result{Limit: 1, RetryAfter: time.Second}, nil
}

func TestPenaltyPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a penalty of less than a millisecond is accepted")
		}
	}()
	client := limittest.New(t).Client()
	Per(client, "a", rratelimiter.PerSecond(1), nil).Penalty(client, time.Microsecond)
}
