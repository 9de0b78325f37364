package httplimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A limit with an invalid configuration does not affect the others: they hold.
func TestLimitThatIsConfiguredWrongly(t *testing.T) {
	s := limittest.New(t)
	badRate := rratelimiter.Rate{Permits: 1, Interval: time.Hour + 1} // no whole milliseconds
	for _, c := range []struct {
		name    string
		policy  *Policy
		wrong   Claim
		want    []Outcome
		used    int64 // of the good limits
		refused []string
	}{
		{"no rate, open", &Policy{}, Claim{Name: "wrong", Limiter: s.Client().RateLimiter("unset")},
			[]Outcome{Allowed, Allowed, Denied, Denied}, 2, []string{"good"}},
		{
			"no rate, closed",
			&Policy{Failure: FailClosed},
			Claim{Name: "wrong", Limiter: s.Client().RateLimiter("unset")},
			[]Outcome{FailedClosed, FailedClosed, FailedClosed}, 0, nil,
		},
		{
			"no rate, closed shadow",
			&Policy{Failure: FailClosed, Shadow: true},
			Claim{Name: "wrong", Limiter: s.Client().RateLimiter("unset")},
			[]Outcome{Allowed, Allowed, Shadowed}, 2, []string{"good"},
		},
		{"no rate, local", &Policy{Failure: FailLocal}, Claim{Name: "wrong", Limiter: s.Client().RateLimiter("unset")},
			[]Outcome{Allowed, Allowed, Denied}, 2, []string{"good"}},
		{"a rate that can't be set, open", &Policy{}, Named(s.Client(), "wrong", "", badRate),
			[]Outcome{Allowed, Allowed, Denied}, 2, []string{"good"}},
		{"a rate that can't be set, local", &Policy{Failure: FailLocal}, Named(s.Client(), "wrong", "", badRate),
			[]Outcome{Allowed, Denied, Denied}, 1, []string{"wrong"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := s.Client()
			if l, ok := c.wrong.Limiter.(*rratelimiter.Limiter); ok {
				client = l.Client() // so that one call checks both
			}
			good := Named(client, "good", c.name, rratelimiter.PerHour(2))
			more := Named(client, "more", c.name, rratelimiter.PerHour(9))
			var reported []error
			c.policy.Bound, c.policy.Logger = 10*time.Second, quiet
			c.policy.OnError = func(_ context.Context, err error) { reported = append(reported, err) }
			for i, want := range c.want {
				d := c.policy.Decide(t.Context(), more, c.wrong, good)
				if d.Outcome != want {
					t.Fatalf("request %d: %v, not %v: %+v", i+1, d.Outcome, want, d)
				}
				order := []string{"more", "wrong", "good"}
				if !slices.IsSortedFunc(d.Answers, func(a, b Answer) int {
					return slices.Index(order, a.Name) - slices.Index(order, b.Name)
				}) {
					t.Errorf("answers %+v", d.Answers)
				}
				if refused := d.Refused(); i == len(c.want)-1 && !slices.Equal(refused, c.refused) {
					t.Errorf("refused by %v, not %v", refused, c.refused)
				}
			}
			if len(reported) != len(c.want) || !misconfigured(reported[0]) {
				t.Errorf("reported %v", reported)
			}
			for _, claim := range []Claim{good, more} {
				state, err := claim.Limiter.(*rratelimiter.Limiter).State(t.Context())
				if errors.Is(err, rratelimiter.ErrNotInitialized) {
					err = nil // it was not checked
				}
				if err != nil || state.Used != c.used {
					t.Errorf("%s: %d used, not %d: %v", claim.Name, state.Used, c.used, err)
				}
			}
		})
	}
}

// Claims on one limiter are cut to what its rate allows in sum.
func TestClaimsThatAreTooMuchInSum(t *testing.T) {
	client := limittest.New(t).Client()
	for _, c := range []struct{ first, second, taken int64 }{
		{6, 6, 10},
		{10, 1, 10},
		{12, 3, 10},
		{5, 5, 10},
		{4, 5, 9},
	} {
		var reported []error
		p := &Policy{
			Bound: 10 * time.Second, Logger: quiet,
			OnError: func(_ context.Context, err error) { reported = append(reported, err) },
		}
		claim := Named(client, "1h", fmt.Sprint(c.first, c.second), rratelimiter.PerHour(10))
		first, second := claim, claim
		first.Permits, second.Permits = c.first, c.second
		if d := p.Decide(t.Context(), first, second); d.Outcome != Allowed {
			t.Errorf("%+v: %+v", c, d)
		}
		state, err := claim.Limiter.(*rratelimiter.Limiter).State(t.Context())
		if err != nil || state.Used != c.taken || (len(reported) > 0) != (c.first+c.second > 10) {
			t.Errorf("%+v: %d taken, %v; reported %v", c, state.Used, err, reported)
		}
	}
}

// Other errors are reported beside an invalid configuration.
func TestFailureBesideAWrongConfiguration(t *testing.T) {
	first := &counting{limit: 5}
	cause := errors.New("out of order")
	d := (&Policy{Logger: quiet}).Decide(t.Context(),
		Claim{Name: "first", Limiter: first},
		Claim{Name: "wrong", Limiter: fixed{err: rratelimiter.ErrNotInitialized}},
		Claim{Name: "broken", Limiter: fixed{err: cause}})
	if d.Outcome != FailedOpen || !errors.Is(d.Err, cause) || !errors.Is(d.Err, rratelimiter.ErrNotInitialized) ||
		first.used != 0 {
		t.Errorf("%+v, %d used", d, first.used)
	}
}

// A claim above the rate of one limit is cut there, and not at the other limits.
func TestOnlyTheClaimAboveItsRateIsCut(t *testing.T) {
	small, large := &exceeding{counting{limit: 3}}, &counting{limit: 20}
	p := &Policy{Logger: quiet}
	d := p.Decide(
		t.Context(), Claim{Name: "large", Permits: 5, Limiter: large}, Claim{Name: "small", Permits: 5, Limiter: small},
	)
	if d.Outcome != Allowed || large.used != 5 || small.used != 1 {
		t.Errorf("%v, %d and %d used", d.Outcome, large.used, small.used)
	}
}

// A limit without Release is checked only once, also if a limit after it has an invalid
// configuration.
func TestLimitBeforeAWrongOneIsChargedOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		failure Failure
		wrong   Allower
		want    Outcome
	}{
		{"more than the rate", FailOpen, &exceeding{counting{limit: 5}}, Allowed},
		{"more than the rate, closed", FailClosed, &exceeding{counting{limit: 5}}, Allowed},
		{"no rate", FailOpen, fixed{err: rratelimiter.ErrNotInitialized}, Allowed},
		{"no rate, closed", FailClosed, fixed{err: rratelimiter.ErrNotInitialized}, FailedClosed},
		{"invalid rate, local", FailLocal, fixed{err: rratelimiter.ErrInvalidRate}, Allowed},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := &counting{limit: 10}
			var reported []error
			p := &Policy{
				Failure: c.failure,
				Logger:  quiet,
				OnError: func(_ context.Context, err error) { reported = append(reported, err) },
			}
			d := p.Decide(t.Context(),
				Claim{Name: "first", Permits: 8, Limiter: struct{ Allower }{first}}, // without Release
				Claim{Name: "wrong", Permits: 8, Limiter: c.wrong})
			if d.Outcome != c.want || first.used != 8 {
				t.Errorf("%v, %d used: %+v", d.Outcome, first.used, d)
			}
			if len(reported) != 1 || !misconfigured(reported[0]) {
				t.Errorf("reported %v", reported)
			}
		})
	}
}

// exceeding is a counting limiter that can't grant more than its limit at once.
type exceeding struct{ counting }

func (e *exceeding) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	if n > e.limit {
		return rratelimiter.Result{}, rratelimiter.ErrExceedsRate
	}
	return e.counting.Allow(ctx, n)
}

func TestTwoRatesOfOneLimiter(t *testing.T) {
	s := limittest.New(t)
	client := s.Client()
	var reported []error
	guard := patient(Per(client, "api", rratelimiter.PerHour(3), nil),
		Per(client, "api", rratelimiter.PerMinute(1), nil))
	guard.Policy = &Policy{
		Bound: 10 * time.Second, Logger: quiet,
		OnError: func(_ context.Context, err error) { reported = append(reported, err) },
	}
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200, 200, 200, 429)
	if len(reported) != 4 || !misconfigured(reported[0]) {
		t.Errorf("reported %v", reported)
	}
	rate, err := client.RateLimiter("ratelimit:api").Config(t.Context())
	if err != nil || rate.Interval != time.Hour {
		t.Errorf("%v, %v", rate, err)
	}
	reported = nil
	guard.SetLimits(Per(client, "one", rratelimiter.PerHour(3), nil), Per(client, "one", rratelimiter.PerHour(3), nil))
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200, 429)
	if len(reported) > 0 {
		t.Errorf("of one rate, twice: %v", reported)
	}
}

func TestLimitsThatAreNone(t *testing.T) {
	s := limittest.New(t)
	var none *rratelimiter.Limiter
	guard := patient(
		Shared("none", none), Shared("nil", nil),
		Per(s.Client(), "unlimited", rratelimiter.Unlimited, nil), Per(s.Client(), "1h", rratelimiter.PerHour(1), nil),
	)
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200, 429)
	guard.SetLimits(Shared("none", none), Per(s.Client(), "unlimited", rratelimiter.Unlimited, nil))
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200, 200)
	wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 1, Denied: 1, Unlimited: 2})
}
