package redisson_test

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// testBench sees that callers call for as long as they are told to, that what they got is counted,
// and that a call that fails ends it.
func testBench(t *testing.T, java *redisson.Process, name string) {
	ctx := t.Context()
	for _, mode := range []redisson.Mode{redisson.Sync, redisson.Async, redisson.Blocked} {
		_, err := java.Bench(ctx, name+" nothing", mode, 2, 100*time.Millisecond)
		wantError(t, err, "RateLimiter is not initialized")
	}
	// A grant is there before each bench: old releases fail in a call that is refused and finds no
	// grant as old as itself, as when its time was read just before that of the call that took the
	// last permit.
	for _, mode := range []redisson.Mode{redisson.Sync, redisson.Async} {
		limiter := name + string(mode)
		want(t, true)(java.TrySetRate(ctx, limiter, redisson.Rate{Permits: 2, Interval: time.Hour}))
		want(t, true)(java.TryAcquire(ctx, limiter, 1))
		const callers, d = 4, 100 * time.Millisecond
		r, err := java.Bench(ctx, limiter, mode, callers, d)
		ok(t, err)
		// a histogram rounds
		if r.Granted != 1 || r.Requests < callers || r.Took < d || r.P50 <= 0 || r.P99 < r.P50 ||
			r.P50 > r.Took*101/100 {
			t.Errorf("%s: %+v", mode, r)
		}
	}
	limiter := name + "blocked"
	rate := redisson.Rate{Permits: 4, Interval: 500 * time.Millisecond}
	want(t, true)(java.TrySetRate(ctx, limiter, rate))
	want(t, true)(java.TryAcquire(ctx, limiter, 1))
	r, err := java.Bench(ctx, limiter, redisson.Blocked, 6, 0)
	ok(t, err)
	// A caller who begins late waits less than an interval, and so does Redisson by a ms, which it
	// dates grants by.
	if r.Granted != 6 || r.Requests != 6 || r.Took < rate.Interval-time.Millisecond || r.P99 < rate.Interval/2 {
		t.Errorf("blocked: %+v", r)
	}
}
