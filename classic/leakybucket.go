package classic

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter"
)

var leakyBucketScript = loadScript("leaky_bucket")

// NewLeakyBucket makes a leaky bucket that drops what does not fit (as a meter).
//
// Model: each permit is a drop in a bucket that holds capacity drops and leaks at the rate, evenly, while there are any. What
// would overflow is refused.
//
// Layout: one hash: level, the drops in the bucket as a decimal number of up to six places, and lastLeak, when it was so
// (ms). It lives until the bucket is empty. Numbers that are none are zero; a time further ahead than the bucket takes to
// empty is now.
//
// Cost: one hash of two numbers, one call with three commands. It works on a cluster: there is one key.
//
// Weakness: an empty bucket passes capacity at once: in any time t, at most capacity + t x rate. Small capacities are even,
// and refuse bursts that a window would take.
func NewLeakyBucket(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, capacity int64, opts ...Option) *Limiter {
	l := newLimiter(rdb, key, capacity, capacity, opts, checkRate(rate), checkCount("drops of capacity", capacity))
	l.try = func(ctx context.Context, n int64) (rratelimiter.Result, error) {
		return l.pour(ctx, rate, n, capacity-n)
	}
	return l
}

// pour asks for n drops to be added, where at most so many are in the bucket.
func (l *Limiter) pour(ctx context.Context, rate rratelimiter.Rate, n, before int64) (rratelimiter.Result, error) {
	reply, err := l.run(ctx, leakyBucketScript, []string{l.name},
		l.limit, rate.Permits, rate.Interval.Milliseconds(), l.now(), n, before)
	if err != nil {
		return rratelimiter.Result{}, err
	}
	return rratelimiter.Result{
		Allowed: reply[0] == 1, Remaining: reply[1], RetryAfter: millis(reply[2]), ResetAfter: millis(reply[4]),
	}, nil
}

// ErrQueueFull says that a LeakyQueue has no room for a request, which is dropped.
var ErrQueueFull = errors.New("classic: the queue is full")

// A LeakyQueue is the waiting form of the leaky bucket: what is in the bucket waits until it leaks.
//
// Model, layout, cost: as NewLeakyBucket, whose bucket it can share. The drops of a request leave, one after the other, when
// all that were there before have left, so callers of all processes go on in the order in which they asked, at an even pace
// and never in a burst. What would overflow is dropped: then Acquire fails with ErrQueueFull.
//
// Weakness: callers wait even when nobody has asked for long, where the bucket form would let a burst pass. A caller who
// leaves, since its ctx ends, leaves its drops: they pass unused. A request of many drops goes on with its first, so in any
// time t at most t x rate, and one request, pass.
type LeakyQueue struct {
	*Limiter
	rate rratelimiter.Rate
}

// NewLeakyQueue makes a queue that holds up to so many permits.
func NewLeakyQueue(rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, capacity int64, opts ...Option) *LeakyQueue {
	q := &LeakyQueue{NewLeakyBucket(rdb, key, rate, capacity, opts...), rate}
	q.try = func(ctx context.Context, n int64) (rratelimiter.Result, error) { return q.pour(ctx, rate, n, 0) }
	return q
}

// Allow takes n permits if nobody is before them: it does not wait.
func (q *LeakyQueue) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	return q.Limiter.Allow(ctx, n)
}

// Acquire queues up and waits for its turn, or until ctx ends. It fails at once with ErrQueueFull where there is no room.
func (q *LeakyQueue) Acquire(ctx context.Context, n int64) error {
	return q.wrap("acquire from", q.enter(ctx, n))
}

func (q *LeakyQueue) enter(ctx context.Context, n int64) error {
	if err := errors.Join(q.check(n), ctx.Err()); err != nil {
		return err
	}
	reply, err := q.run(ctx, leakyBucketScript, []string{q.name},
		q.limit, q.rate.Permits, q.rate.Interval.Milliseconds(), q.now(), n, q.limit-n)
	switch {
	case err != nil:
		return err
	case reply[0] == 0:
		return ErrQueueFull
	case reply[3] == 0:
		return nil
	}
	return pause(ctx, millis(reply[3]))
}
