package classic

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

var leakyBucketScript = load("leaky_bucket")

// NewLeakyBucket returns a leaky bucket that refuses requests that do not fit (as a meter).
//
// Model: each permit is a drop in a bucket that holds capacity drops and leaks evenly at the rate
// while it is not empty. A request that would overflow it is refused.
//
// Layout: one hash: level, the drops in the bucket as a decimal number of up to six places, and
// lastLeak, the time of that level (ms). It lives until the bucket is empty, but at most 1e9 s. A
// level that is no number is zero. If the time is invalid, or ahead by more than a minute and by
// more than a full bucket takes to empty, it is replaced by now, and the level is at most the
// capacity. A level above 110 times the capacity, ten times that of a Charge, is reduced to the
// capacity.
//
// Cost: one hash of two numbers, one call with three commands. It works on a cluster: there is one
// key.
//
// Weakness: while the bucket is empty, capacity permits can be granted at once: in any time t, at
// most capacity + t x rate. With a small capacity the flow is even, but bursts that a window would
// allow are refused.
func NewLeakyBucket(
	rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, capacity int64, opts ...Option,
) *Limiter {
	fault := checkCount("drops of capacity", capacity, mostPermits)
	l := newLimiter(rdb, key, capacity, capacity, opts, checkRate(rate), fault)
	l.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		return l.pour(ctx, rate, n, capacity-n, m)
	}
	return l
}

// pour adds n drops if at most before drops are in the bucket.
func (l *Limiter) pour(
	ctx context.Context, rate rratelimiter.Rate, n, before int64, m mode,
) (rratelimiter.Result, int64, error) {
	reply, err := l.run(ctx, leakyBucketScript, m, []string{l.name},
		l.limit, rate.Permits, rate.Interval.Milliseconds(), l.now(), n, before)
	if err != nil {
		return rratelimiter.Result{}, 0, err
	}
	return rratelimiter.Result{
		Remaining: reply[1], RetryAfter: millis(reply[2]), NextAfter: millis(reply[5]), ResetAfter: millis(reply[4]),
	}, reply[0], nil
}

// ErrQueueFull is returned by a LeakyQueue that has no room for a request, which is dropped.
var ErrQueueFull = errors.New("classic: the queue is full")

// A LeakyQueue is the waiting form of the leaky bucket: each request puts its drops into the
// bucket, and its caller waits until all earlier drops have leaked.
//
// Model, layout, cost: as NewLeakyBucket, whose bucket it can share. The drops of a request leave
// one after the other, when all earlier ones have left, so callers of all processes are served in
// the order of their requests, at an even pace and never in a burst. A request that would overflow
// the bucket is dropped: then Acquire fails with ErrQueueFull.
//
// Weakness: a burst is spread out even after a long idle time: the first caller is served at once,
// the others wait. The bucket form would let the burst pass. If a caller's ctx ends, its drops stay
// and pass unused. A request of many drops is served with its first drop, so in any time t at most
// t x rate, plus one request, pass.
//
// A Charge adds drops for which nobody waits. While the bucket overflows, Acquire fails.
type LeakyQueue struct {
	*Limiter
	rate rratelimiter.Rate
}

// NewLeakyQueue returns a queue that holds up to capacity permits.
func NewLeakyQueue(
	rdb rratelimiter.Redis, key string, rate rratelimiter.Rate, capacity int64, opts ...Option,
) *LeakyQueue {
	q := &LeakyQueue{NewLeakyBucket(rdb, key, rate, capacity, opts...), rate}
	q.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		return q.pour(ctx, rate, n, 0, m)
	}
	return q
}

// Allow takes n permits if the queue is empty: it does not wait.
func (q *LeakyQueue) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	return q.Limiter.Allow(ctx, n)
}

// Acquire enters the queue and waits for its turn, or until ctx ends. It fails at once with
// ErrQueueFull if there is no room.
func (q *LeakyQueue) Acquire(ctx context.Context, n int64) error {
	return q.wrap("acquire from", q.enter(ctx, n))
}

func (q *LeakyQueue) enter(ctx context.Context, n int64) error {
	if err := errors.Join(q.check(n, 1, q.most), ctx.Err()); err != nil {
		return err
	}
	reply, err := q.run(ctx, leakyBucketScript, take, []string{q.name},
		q.limit, q.rate.Permits, q.rate.Interval.Milliseconds(), q.now(), n, q.limit-n)
	switch {
	case err != nil:
		return err
	case reply[0] == 0:
		return ErrQueueFull
	case reply[3] == 0:
		return nil
	}
	return script.Sleep(ctx, millis(reply[3]))
}
