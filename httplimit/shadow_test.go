package httplimit

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A limit in shadow counts the requests that it would refuse. It takes nothing for requests that
// other limits refuse, and clients do not see it.
func TestALimitInShadowRefusesNothing(t *testing.T) {
	s := limittest.New(t)
	trial := Per(s.Client(), "trial", rratelimiter.PerHour(2), byAddr).Shadow()
	var denied []string
	guard := patient(trial, Per(s.Client(), "real", rratelimiter.PerHour(4), byAddr))
	guard.Policy.OnDeny = func(_ context.Context, d Decision) { denied = append(denied, d.Refused()...) }
	h := guard.Middleware(ok)
	wantCodes(t, h, "192.0.2.1", "/", 200, 200, 200, 200, 429, 429)
	wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 2, Shadowed: 2, Denied: 2})
	if want := []string{"trial", "trial", "real", "real"}; !slices.Equal(denied, want) {
		t.Errorf("%q refused, want %q", denied, want)
	}
	if fields := headerText(get(h, "192.0.2.2", "/").Header()); fields != "Content-Type: text/plain; charset=utf-8\n"+
		"Ratelimit: \"real\";r=3;t=3600\nRatelimit-Policy: \"real\";q=4;w=3600\n" {
		t.Errorf("a client sees\n%s", fields)
	}
	r, err := s.Client().RateLimiter("ratelimit:192.0.2.1:trial").State(t.Context())
	if err != nil || r.Used != 2 {
		t.Errorf("%+v, %v", r, err)
	}

	alone := patient(trial)
	wantCodes(t, alone.Middleware(ok), "192.0.2.3", "/", 200, 200, 200)
	wantCount(t, alone.Policy, map[Outcome]int64{Allowed: 2, Shadowed: 1})
}

// Without a reply from a limit in shadow, the others decide; if there are none, the request passes
// as a failed one.
func TestALimitInShadowThatFails(t *testing.T) {
	broken := Shared("broken", fixed{err: errors.New("no connection")}).Shadow()
	full := Shared("full", fixed{rratelimiter.Result{Limit: 1, RetryAfter: time.Second}, nil})
	var failed []error
	guard := patient(broken, Shared("open", fixed{rratelimiter.Result{Allowed: true, Limit: 1}, nil}))
	guard.Policy.OnError = func(_ context.Context, err error) { failed = append(failed, err) }
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200)
	wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 1})
	if len(failed) != 1 {
		t.Errorf("the errors are %v", failed)
	}
	guard = patient(broken, full)
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 429)
	guard = patient(broken)
	guard.Policy.Logger = quiet
	wantCodes(t, guard.Middleware(ok), "192.0.2.1", "/", 200)
	wantCount(t, guard.Policy, map[Outcome]int64{FailedOpen: 1})
}

// The permits of a limit in shadow are corrected after the response, too.
func TestALimitInShadowSettles(t *testing.T) {
	s := limittest.New(t)
	failures := Per(s.Client(), "failures", rratelimiter.PerHour(2), byAddr).
		CountIf(func(status int, _ http.Header) bool { return status == http.StatusUnauthorized }).Shadow()
	guard := patient(failures)
	h := guard.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	l := s.Client().RateLimiter("ratelimit:192.0.2.1:failures")
	wantCodes(t, h, "192.0.2.1", "/", 200)
	for free := int64(0); free != 2; { // given back in the background
		var err error
		if free, err = l.AvailablePermits(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	wantCodes(t, h, "192.0.2.1", "/wrong", 401, 401, 401)
	wantCount(t, guard.Policy, map[Outcome]int64{Allowed: 3, Shadowed: 1})
}
