package classic

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

var gcraScript = load("gcra")

// NewGCRA returns a limiter by the generic cell rate algorithm, in the layout of
// go-redis/redis_rate v10 and with its results, except that RetryAfter is 0 after a grant, not -1.
//
// Model: the theoretical arrival time (TAT) is when the next permit would be due if permits came
// evenly, one per interval / permits. Each permit moves the TAT by interval / permits. A request
// passes if the TAT is then at most burst x interval / permits after now. It is a leaky bucket that
// stores a time in the place of a level.
//
// Layout: rate:KEY holds the TAT in seconds since the beginning of 2017, with as many digits as a
// double has. It lives until that time, rounded up to seconds, but at most 1e9 s. A value counts as
// missing if it is not a decimal number, or if it is ahead of now by more than one minute and by
// more than 110 times the duration of the burst, ten times that of a Charge. redis_rate accepts
// any.
//
// Cost: one key that holds a number, one call with three commands. It works on a cluster: there is
// one key. The clock is the server's, unless WithClock sets another, so clients' clocks don't
// matter.
//
// Weakness: burst permits pass at once, and further permits continue at the rate: in any time t, at
// most burst + t x rate. So if burst equals rate.Permits, nearly twice the rate can pass in one
// interval. It calculates with doubles, as redis_rate does, so the last permit of a burst may come
// a microsecond late.
func NewGCRA(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, burst int64, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, burst, burst, opts, checkRate(rate), checkCount("permits of burst", burst, mostPermits))
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		cmd, err := ask(ctx, l, gcraScript, m,
			func(ctx context.Context, a *script.Attempts, s *script.Script) (*redis.Cmd, error) {
				return l.servers.TryAny(ctx, a, s, []string{"rate:" + key},
					m.args(burst, rate.Permits, rate.Interval.Seconds(), n, l.serverNow())...)
			})
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		r, taken, err := gcraResult(cmd.Slice())
		// k permits return, one after each period, the last one after ResetAfter. What is owed
		// returns first.
		each := float64(rate.Interval) / float64(rate.Permits)
		if k := min(math.Ceil(float64(r.ResetAfter)/each-1e-6), float64(burst)); k > 0 {
			r.NextAfter = r.ResetAfter - time.Duration((k-1)*each)
		}
		return r, taken, err
	}
	return l
}

// serverNow returns the time in seconds since the epoch, or "" if the server's clock is used.
func (l *Limiter) serverNow() string {
	if l.clock == nil {
		return ""
	}
	micros := l.clock().UnixMicro()
	return fmt.Sprintf("%d.%06d", micros/1e6, micros%1e6)
}

// gcraResult returns the result of a reply in which times are texts, in seconds, and the permits
// that were counted.
func gcraResult(reply []any, err error) (r rratelimiter.Result, taken int64, _ error) {
	if err != nil {
		return r, 0, err
	}
	var seconds [2]float64
	for i := range seconds {
		text, _ := reply[2+i].(string)
		if seconds[i], err = strconv.ParseFloat(text, 64); err != nil {
			return r, 0, err
		}
	}
	taken, _ = reply[0].(int64)
	r.Remaining, _ = reply[1].(int64)
	r.RetryAfter, r.ResetAfter = duration(seconds[0]), duration(seconds[1])
	return r, taken, nil
}

// duration returns a time in seconds as a Duration, at most the longest one.
func duration(seconds float64) time.Duration {
	if ns := seconds * float64(time.Second); ns < math.MaxInt64 {
		return time.Duration(ns)
	}
	return math.MaxInt64
}
