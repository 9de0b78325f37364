package classic

import (
	"context"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var windowKeysScript = load("window_keys")

// NewWindowKeys returns a fixed window with a key for each window, the first pattern of the
// documentation of INCR: GET, then INCR and EXPIRE, here as one step. The interval is whole
// seconds.
//
// Model: time is divided into windows of one interval, counted from 1970; each has its own counter.
//
// Layout: name:UNIXSECOND holds the count, where UNIXSECOND is the second in which the window
// begins. If the interval is one second, it is the current second. Its TTL is an interval from the
// first permit on. The usual comparison, count > limit before INCR, lets one more than the limit
// through; this one does not.
//
// Cost: up to two keys, each with one number, one call with three commands. It works on a cluster:
// a call uses one key.
//
// Weakness: up to 2 x Permits in an interval across the border of two windows; and since the
// windows of all clients begin at the same moment, all refused callers retry together. Clients
// whose clocks differ count in different windows.
func NewWindowKeys(rdb rratelimiter.Redis, name string, rate rratelimiter.Rate, opts ...Option) *Limiter {
	fault := checkRate(rate)
	if fault == nil && rate.Interval%time.Second != 0 {
		fault = invalidRate("interval %v is not a number of whole seconds", rate.Interval)
	}
	l := newLimiter(rdb, name, rate.Permits, rate.Permits, opts, fault)
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		now, interval := l.now(), rate.Interval.Milliseconds()
		begins := now - now%interval
		key := name + ":" + strconv.FormatInt(begins/1000, 10)
		reply, err := l.run(ctx, windowKeysScript, m, []string{key}, rate.Permits, interval/1000, n)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		return counted(rate.Permits, append(reply, begins+interval-now)), reply[0], nil
	}
	return l
}
