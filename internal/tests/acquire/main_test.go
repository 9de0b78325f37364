// Package acquire tests the ways to acquire permits: their results, the permits that they take, how
// permits are given back, and contexts that end early.
package acquire

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }

// result returns a Result, given its fields in their order.
func result(allowed bool, limit, remaining int64, retry, next, reset time.Duration) rratelimiter.Result {
	return rratelimiter.Result{
		Allowed: allowed, Limit: limit, Remaining: remaining, RetryAfter: retry, NextAfter: next, ResetAfter: reset,
	}
}
