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
	// tokens that each second adds, more than 0; a whole number in the gateway up to 5.0
	ReplenishRate float64
	// tokens in a full bucket, from ReplenishRate to 9,007,199,254,740,991 (2^53 - 1)
	BurstCapacity int64
}

// SpringHeader returns a value of a header field as Spring Cloud Gateway reads it: each byte is a
// character of ISO-8859-1. With it, a key from a header field names the gateway's bucket also if it
// is not ASCII: the field "ü" is sent as the two bytes c3 bc, and the gateway's key is "Ã¼". A
// query parameter that is percent-encoded does not need it, since the gateway reads it as UTF-8.
//
//	classic.NewSpringBucket(rdb, "orders."+classic.SpringHeader(r.Header.Get("X-User")), bucket)
func SpringHeader(value string) string {
	characters := make([]rune, len(value))
	for i := range len(value) {
		characters[i] = rune(value[i])
	}
	return string(characters)
}

// NewSpringBucket returns a token bucket that Spring Cloud Gateway's RedisRateLimiter shares: it
// grants and stores the same as the gateway of the releases 3.0.6 to 5.0.4. The gateway's
// requestedTokens is the number of permits in a call of Allow.
//
// The id is in the names of the keys. In the gateway 4.2.0 and later, it is the id of the route, a
// dot, and the key of the KeyResolver: "orders.alice". In earlier releases, it is the key alone, so
// that all routes share a bucket. A key from a header field may need SpringHeader.
//
// Model: a bucket holds BurstCapacity tokens and is full at first. Each second of the clock that
// begins adds ReplenishRate tokens. A request takes its tokens or is refused.
//
// Layout: request_rate_limiter.{ID}.tokens holds the number of tokens left, and
// request_rate_limiter.{ID}.timestamp the time of the last request, granted or not (s). The TTL of
// both is 2 x BurstCapacity / ReplenishRate, cut to whole seconds, or the time until the bucket is
// full if that is longer; at most 9e9 s. A bucket with a missing or invalid key is full. A number
// below -100 x BurstCapacity counts as zero.
//
// The debt of a Charge is a negative number of tokens, which the gateway refills as this library
// does. But with each of its requests, the gateway sets the TTL without regard to a debt. So of a
// debt above BurstCapacity, the rest is lost if no request follows within that TTL.
//
// A BurstCapacity below ReplenishRate is ErrInvalidRate, as in the gateway since 3.1.5 and 4.0.1.
// Beside an earlier gateway that has one, use it as ReplenishRate, too: a second then fills the
// bucket in both. (If it is below half of ReplenishRate, this gateway stores nothing and grants
// every request that its capacity holds.)
//
// Cost: two keys, each with one number, one call with five commands. It works on a cluster: the
// braces are a hash tag, which must not be empty. The clock is the server's, unless WithClock sets
// another. The gateway before 3.0.6 used its own.
//
// Weakness: a full bucket can be emptied at once, and the refill continues: in any time at most
// BurstCapacity, and ReplenishRate for each second that begins in it. If the clock goes back, the
// next request stores the earlier time, so the seconds until then add tokens a second time. The
// parts of tokens are doubles, as in the gateway: if requests come while a token fills up, their
// sum can miss it by the last digit, and the token comes a second later.
func NewSpringBucket(rdb rratelimiter.Redis, id string, p Spring, opts ...Option) *Limiter {
	l := newLimiter(rdb, id, p.BurstCapacity, p.BurstCapacity, opts, p.check())
	prefix := "request_rate_limiter.{" + id + "}."
	keys := l.together(prefix+"tokens", prefix+"timestamp")
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		reply, err := l.run(ctx, springBucketScript, m, keys, p.ReplenishRate, p.BurstCapacity, n, l.serverNow())
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		// after returns the time until so many seconds of the clock have begun.
		after := func(seconds int64) time.Duration {
			return time.Duration(seconds)*time.Second - time.Duration(reply[2])*time.Microsecond
		}
		return rratelimiter.Result{
			Remaining: reply[1], RetryAfter: after(reply[3]), NextAfter: after(reply[4]), ResetAfter: after(reply[5]),
		}, reply[0], nil
	}
	return l
}

func (p Spring) check() error {
	if err := checkCount("tokens of capacity", p.BurstCapacity, mostExact); err != nil {
		return err
	}
	if !(p.ReplenishRate > 0 && p.ReplenishRate <= float64(p.BurstCapacity)) {
		return invalidRate("%v tokens a second, not more than 0 to the capacity, %d", p.ReplenishRate, p.BurstCapacity)
	}
	return nil
}
