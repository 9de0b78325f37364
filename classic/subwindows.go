package classic

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var subWindowsScript = load("sub_windows")

// NewSubWindows returns a sliding window of a number of sub-windows of equal length, each with a
// counter. The length must be a whole number of milliseconds.
//
// Model: the current sub-window and those before it count together, one interval in all. The
// permits of a sub-window expire together, an interval after it began.
//
// Layout: one hash with a field for each sub-window that counts: its number since 1970, and its
// permits. Its TTL is an interval from the last grant. Invalid numbers, and sub-windows more than
// an interval ahead, are removed. All clients of a key must use the same interval and the same
// number of sub-windows: the numbers depend on the length, which the hash does not hold. Clients
// with different lengths remove each other's counts, and no limit holds. So a change of either,
// also in a rolling deploy, needs another key.
//
// Cost: one hash with a field for each sub-window that counts, whatever the rate; one call with
// three commands, and one more for each sub-window that has expired. It works on a cluster: there
// is one key.
//
// Weakness: permits expire up to a sub-window early, so an interval may hold up to 2 x Permits. Any
// period that is one sub-window shorter than the interval holds at most Permits. The more
// sub-windows, the less this matters, and the more memory they take.
func NewSubWindows(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, parts int, opts ...Option) *Limiter {
	fault := checkRate(rate)
	switch {
	case fault != nil:
	case parts < 2 || parts > 1000:
		fault = invalidOption("%d sub-windows, not 2 to 1000", parts)
	case rate.Interval%(time.Duration(parts)*time.Millisecond) != 0:
		fault = invalidRate("%d sub-windows of an interval of %v are not whole milliseconds", parts, rate.Interval)
	}
	l := newLimiter(rdb, key, rate.Permits, rate.Permits, opts, fault)
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		length := rate.Interval.Milliseconds() / int64(parts)
		reply, err := l.run(ctx, subWindowsScript, m, []string{key}, rate.Permits, length, parts, l.now(), n)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		r := counted(rate.Permits, reply)
		r.ResetAfter, r.NextAfter = millis(reply[3]), millis(reply[4])
		return r, reply[0], nil
	}
	return l
}
