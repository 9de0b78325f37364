package classic

import (
	"context"

	"github.com/rratelimiter/rratelimiter"
)

var twoCountersScript = load("two_counters")

// NewTwoCounters returns the cheap approximation of a sliding window: a counter of this window and
// one of the previous.
//
// Model: time is divided into windows of one interval, counted from 1970. At a fraction f of this
// window, the grants of the last interval are estimated as current + previous x (1 - f), as if the
// permits of the previous window had been spread evenly; and as current alone once the last grant
// of the previous window is an interval old.
//
// Layout: one hash: window (number of this window since 1970), current and previous (permits
// granted in it and in the one before), lasts (ms from the beginning of each to its last grant,
// after the window and current that they belong to). Its TTL is two intervals from the last grant.
// If the stored window is missing, invalid, or more than one window away from the client's,
// counting starts again. An invalid current or previous counts as 0. If lasts is invalid, or
// another client has counted permits without it, the last grants count as at the end of their
// windows. A client whose clock is one window behind uses the stored window as if it had just
// begun. All clients of a key must use the same interval: the number of a window depends on it, and
// the hash does not hold it. Clients with different intervals discard each other's counts, and no
// limit holds. So a change of the interval, also in a rolling deploy, needs another key.
//
// Cost: one hash of four fields, whatever the rate; one call with three commands. It works on a
// cluster: there is one key.
//
// Weakness: the estimate is up to previous x f too low, if the previous window's permits all came
// at its end, and up to previous x (1 - f) too high, if they came at its beginning. So at most
// Permits + previous x f, which is less than 2 x Permits, are granted in any interval, and never
// more than Permits if traffic is even. A limit of one permit is exact.
func NewTwoCounters(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, rate.Permits, rate.Permits, opts, checkRate(rate))
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		reply, err := l.run(
			ctx, twoCountersScript, m, []string{key}, rate.Permits, rate.Interval.Milliseconds(), l.now(), n,
		)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		r := counted(rate.Permits, reply)
		r.ResetAfter, r.NextAfter = millis(reply[3]), millis(reply[4])
		return r, reply[0], nil
	}
	return l
}
