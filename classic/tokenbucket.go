package classic

import (
	"context"
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var tokenBucketScript = load("token_bucket")

// Tokens has the parameters of a token bucket.
type Tokens struct {
	Capacity int64         // tokens in a full bucket
	PerStep  int64         // tokens that a step adds
	Step     time.Duration // whole seconds
	// tokens that a request may take in advance; the next request waits for them
	Debt int64
}

// NewTokenBucket returns a token bucket that is refilled in whole steps.
//
// Model: a bucket holds Capacity tokens and is full at first. Each Step adds PerStep tokens; the
// time since the last whole Step counts for the next one. A request takes its tokens or is refused.
// With Debt, a request is served if there is at least one token and the request needs at most Debt
// more than there are. The next request waits until the debt is paid (pre-consumption).
//
// Layout: key holds the number of tokens left. key_time holds the time at which the last refill was
// due (s). The TTL of both is the time of a full refill. When the bucket is made, the TTL of the
// time key is one second longer. A time key that is missing, or lies further ahead than a full
// refill takes, is replaced by now. If key is missing or invalid, the bucket counts as full. A debt
// above 100 x (Capacity + Debt), ten times that of a Charge, is reduced to Debt.
//
// Cost: two keys, each with one number, one call with four commands. On a cluster the two keys need
// a hash tag: over a *redis.ClusterClient a key without one is kept as {key} and {key}_time; a key
// with its own tag is the same everywhere.
//
// Weakness: a full bucket can be emptied at once, and the refill continues: in any time at most
// Capacity + Debt, and PerStep for each Step that begins in it. The time is cut to whole seconds,
// so a client may get a refill up to a second too early.
func NewTokenBucket(rdb rratelimiter.Redis, key string, p Tokens, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, p.Capacity, p.Capacity+p.Debt, opts, p.check())
	keys := l.pair("_time")
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		now, step := l.now(), int64(p.Step/time.Second)
		reply, err := l.run(ctx, tokenBucketScript, m, keys, p.Capacity, p.PerStep, step, now/1000, n, p.Debt)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		tokens, last := reply[1], reply[2]
		// after returns the time until the bucket holds that many tokens.
		after := func(wanted int64) time.Duration {
			steps := (wanted - tokens + p.PerStep - 1) / p.PerStep
			due := min(last+steps*step, math.MaxInt64/1000) // so that it fits in ms
			return millis(max(0, due*1000-now))
		}
		return rratelimiter.Result{
			Remaining: tokens, RetryAfter: after(max(1, n-p.Debt)), NextAfter: after(max(0, tokens) + 1),
			ResetAfter: after(p.Capacity),
		}, reply[0], nil
	}
	return l
}

func (p Tokens) check() error {
	if err := checkCount("tokens of capacity", p.Capacity, mostPermits); err != nil {
		return err
	}
	if err := checkCount("tokens a step", p.PerStep, mostPermits); err != nil {
		return err
	}
	switch {
	case p.Step < time.Second || p.Step%time.Second != 0 || p.Step > maxStep:
		return invalidRate("step %v is not a number of whole seconds from 1s to %v", p.Step, maxStep)
	case p.Debt < 0 || p.Debt > maxDebt:
		return invalidRate("debt %d is not 0 to %d", p.Debt, maxDebt)
	}
	return nil
}

const (
	maxStep = 30 * 24 * time.Hour
	maxDebt = int64(1) << 32
)
