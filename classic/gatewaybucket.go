package classic

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var gatewayBucketScript = load("gateway_bucket")

// GatewayKey returns the usual name of a bucket in the gateway form: ratelimit:IP:PATH:INTERVAL,
// the interval in ms.
func GatewayKey(ip, path string, interval time.Duration) string {
	return fmt.Sprintf("ratelimit:%s:%s:%d", ip, path, interval.Milliseconds())
}

// Gateway has the parameters of a token bucket in the gateway form. Its times are whole
// milliseconds.
type Gateway struct {
	Every    time.Duration // time between two permits
	Capacity int64         // permits in a full bucket
	// after this time without a refill the bucket is full; it must be at least Every
	Interval time.Duration
}

// NewGatewayBucket returns a token bucket with a continuous refill, in the gateway form: API
// gateways often keep one bucket for each client address and path, in a hash with the fields below.
//
// Model: a bucket holds Capacity permits and is full at first. One permit is added after each
// period of length Every. The part of a period that has passed counts for the next refill. A
// refused request stores no refill; the next grant does. When more than an Interval has passed
// since lastRefillTime, the bucket is full. A caller whose clock is behind refills nothing.
//
// Layout: one hash, best named by GatewayKey: lastRefillTime, when the last refill was due (ms),
// and tokensRemaining. Its TTL is an interval and 1 ms from its last change. A time that is
// missing, or ahead by more than one minute, an interval and ten times the longest debt, is
// replaced by now. If tokensRemaining is missing or invalid, the bucket counts as full. The debt of
// a Charge is a lastRefillTime that is ahead: until then the usual scripts refill nothing. They
// accept no negative number of tokens.
//
// The scripts in common use have three bugs that this one avoids. They pass the interval in ms to
// EXPIRE, which takes seconds. They set the TTL only when the bucket is made, so a bucket in use
// expires and is full again. They compute Every as interval / limit, which is 0 if the limit is
// larger than the interval in ms. Here, an Every below 1 ms is ErrInvalidRate.
//
// Cost: one hash of two numbers, one call with three commands. It works on a cluster: there is one
// key.
//
// Weakness: a full bucket can be emptied at once, and the refill continues: in any time t, at most
// Capacity + t / Every (rounded up) permits are granted. If Capacity x Every is longer than
// Interval, up to Capacity permits more can pass after each Interval.
func NewGatewayBucket(rdb rratelimiter.Redis, key string, p Gateway, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, p.Capacity, p.Capacity, opts, p.check())
	every, interval := p.Every.Milliseconds(), p.Interval.Milliseconds()
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		now := l.now()
		reply, err := l.run(ctx, gatewayBucketScript, m, []string{key}, every, now, p.Capacity, interval, n)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		tokens, last, stored := reply[1], reply[2], reply[3]
		// after returns the time until the bucket holds that many tokens, by refills or by the
		// interval since the stored one.
		after := func(wanted int64) time.Duration {
			if tokens >= wanted {
				return 0
			}
			refills := min(wanted-tokens, interval/every+1) // more take longer than an interval
			return millis(min(last+refills*every, stored+interval+1) - now)
		}
		r := rratelimiter.Result{
			Remaining: tokens, RetryAfter: after(n), NextAfter: after(tokens + 1), ResetAfter: after(p.Capacity),
		}
		if tokens == 0 && last > now {
			r.Remaining = -(last - now + every - 1) / every // a debt
		}
		return r, reply[0], nil
	}
	return l
}

func (p Gateway) check() error {
	const ms = time.Millisecond
	switch {
	case p.Every < ms || p.Every%ms != 0:
		return invalidRate("a permit every %v: not a positive number of whole milliseconds", p.Every)
	case p.Interval < p.Every || p.Interval%ms != 0:
		return invalidRate("interval %v must be whole milliseconds and at least %v", p.Interval, p.Every)
	}
	return checkCount("permits of capacity", p.Capacity, mostPermits)
}
