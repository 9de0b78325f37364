package classic

import (
	"context"

	"github.com/rratelimiter/rratelimiter"
)

var fixedWindowScript = load("fixed_window")

// NewFixedWindow returns a fixed window counter: INCR, and EXPIRE on the first hit, as one step.
//
// Model: the first permit opens a window of one interval, and key counts the permits; when the key
// expires a new window begins. Any string may be the key: an address and a route, a user and a
// route.
//
// Layout: key holds the count as INCR writes it and lives until the window ends. Refused
// requests are not counted. If the key has no TTL, or a TTL longer than ten intervals, its TTL is
// set to one interval. An invalid count is replaced by zero.
//
// Cost: one key that holds a number, one call with three commands. It works on a cluster.
//
// Weakness: windows are adjacent, so up to twice the permits pass around the border of two windows:
// at most 2 x Permits in any interval.
func NewFixedWindow(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, rate.Permits, rate.Permits, opts, checkRate(rate))
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		reply, err := l.run(ctx, fixedWindowScript, m, []string{key}, rate.Permits, rate.Interval.Milliseconds(), n)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		return counted(rate.Permits, reply), reply[0], nil
	}
	return l
}

// counted returns the result of a reply: 2 the stored count; 3 ms until all permits are free.
func counted(limit int64, reply []int64) rratelimiter.Result {
	after := millis(reply[2])
	return rratelimiter.Result{
		Remaining: limit - reply[1], RetryAfter: after, NextAfter: after, ResetAfter: after,
	}
}
