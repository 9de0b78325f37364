package classic

import (
	"context"

	"github.com/rratelimiter/rratelimiter"
)

var fixedWindowScript = loadScript("fixed_window")

// NewFixedWindow makes a fixed window counter: INCR, and EXPIRE on the first hit, as one step.
//
// Model: the first permit opens a window of one interval and counts in key; when the key expires the count begins anew.
// Any string may be the key: an address and a route, a user and a route.
//
// Layout: key holds the count as INCR writes it and lives until the window ends. The script answers the count, or -1 when
// over. Refused requests are not counted. A key that has lost its life time gets a new one, and what is no count begins
// anew.
//
// Cost: one key of a number, one call with three commands. It works on a cluster.
//
// Weakness: windows stand side by side, so up to twice the permits pass around the moment where one ends: at most 2 x
// Permits in any interval.
func NewFixedWindow(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, rate.Permits, rate.Permits, opts, checkRate(rate))
	l.try = func(ctx context.Context, n int64) (rratelimiter.Result, error) {
		reply, err := l.run(ctx, fixedWindowScript, []string{key}, rate.Permits, rate.Interval.Milliseconds(), n)
		if err != nil {
			return rratelimiter.Result{}, err
		}
		return counted(rate.Permits, reply), nil
	}
	return l
}

// counted makes a result of a reply: 1 the count, or -1 when over; 2 the count as it stands now; 3 ms until all is free.
func counted(limit int64, reply []int64) rratelimiter.Result {
	return rratelimiter.Result{
		Allowed: reply[0] >= 0, Remaining: limit - reply[1], RetryAfter: millis(reply[2]), ResetAfter: millis(reply[2]),
	}
}
