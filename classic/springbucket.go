package classic

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var springBucketScript = load("spring_bucket")

// Spring has the parameters of a bucket of Spring Cloud Gateway. They have the names of the
// gateway's configuration.
type Spring struct {
	ReplenishRate int64 // tokens that each second adds
	BurstCapacity int64 // tokens in a full bucket; at least half of ReplenishRate
}

// NewSpringBucket returns a token bucket that Spring Cloud Gateway's RedisRateLimiter shares: it
// grants and stores the same as the gateway of the releases 3.0.6 to 5.0.4. The gateway's
// requestedTokens is the number of permits in a call of Allow.
//
// The id is in the names of the keys. In the gateway 4.2.0 and later, it is the id of the route, a
// dot, and the key of the KeyResolver: "orders.alice". In earlier releases, it is the key alone, so
// that all routes share a bucket.
//
// Model: a bucket holds BurstCapacity tokens and is full at first. Each second of the clock that
// begins adds ReplenishRate tokens. A request takes its tokens or is refused.
//
// Layout: request_rate_limiter.{ID}.tokens holds the number of tokens left, and
// request_rate_limiter.{ID}.timestamp the time of the last request, granted or not (s). The TTL of
// both is 2 x BurstCapacity / ReplenishRate, cut to whole seconds. If this is 0, because
// BurstCapacity is below half of ReplenishRate, the gateway stores nothing and grants every request
// that its capacity holds; here it is ErrInvalidRate. A bucket with a missing or invalid key is
// full, one with a negative number of tokens is empty.
//
// Cost: two keys, each with one number, one call with five commands. It works on a cluster: the
// braces are a hash tag, which must not be empty. The clock is the server's, unless WithClock sets
// another. The gateway before 3.0.6 used its own.
//
// Weakness: a full bucket can be emptied at once, and the refill continues: in any time at most
// BurstCapacity, and ReplenishRate for each second that begins in it. If the clock goes back, the
// next request stores the earlier time, so the seconds until then add tokens a second time.
func NewSpringBucket(rdb rratelimiter.Redis, id string, p Spring, opts ...Option) *Limiter {
	l := newLimiter(rdb, id, p.BurstCapacity, p.BurstCapacity, opts, p.check())
	prefix := "request_rate_limiter.{" + id + "}."
	keys := l.together(prefix+"tokens", prefix+"timestamp")
	l.try = func(ctx context.Context, n int64, peek bool) (rratelimiter.Result, error) {
		reply, err := l.run(ctx, springBucketScript, peek, keys, p.ReplenishRate, p.BurstCapacity, n, l.serverNow())
		if err != nil {
			return rratelimiter.Result{}, err
		}
		tokens, passed := reply[1], time.Duration(reply[2])*time.Microsecond
		// after returns the time until the bucket holds that many tokens.
		after := func(wanted int64) time.Duration {
			seconds := (wanted - tokens + p.ReplenishRate - 1) / p.ReplenishRate
			return max(0, time.Duration(seconds)*time.Second-passed)
		}
		return rratelimiter.Result{
			Allowed: reply[0] == 1, Remaining: tokens, RetryAfter: after(n), NextAfter: after(tokens + 1),
			ResetAfter: after(p.BurstCapacity),
		}, nil
	}
	return l
}

func (p Spring) check() error {
	if err := checkCount("tokens of capacity", p.BurstCapacity); err != nil {
		return err
	}
	if err := checkCount("tokens a second", p.ReplenishRate); err != nil {
		return err
	}
	if 2*p.BurstCapacity < p.ReplenishRate {
		return invalidRate("a capacity of %d is less than half of %d tokens a second", p.BurstCapacity, p.ReplenishRate)
	}
	return nil
}
