// Package charge tests permits that are charged, free or not: what a charge counts and from when
// on, what its result tells, how a debt is paid back, and how grants are settled.
package charge

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

// checks is the number of random stories, unless -rapid.checks is given.
const checks = "100"

func TestMain(m *testing.M) {
	redistest.Drawing(map[string]string{"rapid.checks": checks})
	rig.Main(m)
}

// result returns a Result, given its fields in their order.
func result(allowed bool, limit, remaining int64, retry, next, reset time.Duration) rratelimiter.Result {
	return rratelimiter.Result{
		Allowed: allowed, Limit: limit, Remaining: remaining, RetryAfter: retry, NextAfter: next, ResetAfter: reset,
	}
}

// mustCharge charges a limiter, and checks the result.
func mustCharge(t *testing.T, what string, l *rratelimiter.Limiter, n int64, want rratelimiter.Result) {
	t.Helper()
	if got, err := l.Charge(t.Context(), n); got != want || err != nil {
		t.Errorf("%s: %+v, %v; want %+v", what, got, err, want)
	}
}
