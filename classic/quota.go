package classic

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var (
	quotaScript      = load("quota")
	quotaResetScript = load("quota_reset")
)

// A Quota is a counter for each day, week, month or year: a limit for a user from midnight to
// midnight.
//
// Model: permits of a period are counted until it ends; unused permits can be given back. Charge
// counts beyond the limit, up to 2^53 - 1. What is above the limit is not carried over: the next
// period starts at zero, as with a monthly bill.
//
// Layout: user::DATE holds the count of a day, user::week:DATE, user::month:DATE or user::year:DATE
// that of a longer period, where DATE is its first day. INCRBY and DECRBY write it, and it expires
// a minute after the end of the period, since clocks differ. A key without a TTL gets it again, an
// invalid count is replaced by zero, and a count below zero is zero.
//
// A day ends when the date at its Location changes. If daylight saving time begins there at
// midnight, clocks skip from 00:00 to 01:00, and the new day begins at 01:00. A day on which clocks
// change has more or fewer hours than 24.
//
// Cost: one key that holds a number for the rest of the period, one call with three commands, or
// four for the first grant of a period. It works on a cluster: a call uses one key.
//
// Weakness: all permits of a period can be used at once, and around its end up to 2 x the limit can
// pass. Days are those of the client's clock.
type Quota struct {
	*Limiter
	days Days
}

// NewQuota returns the quota of a user: limit permits a day, or another period (Days.Period). The
// limit is at most 9,007,199,254,740,991 (2^53 - 1).
func NewQuota(rdb rratelimiter.Redis, user string, limit int64, days Days, opts ...Option) *Quota {
	if days.Layout == "" {
		days.Layout = time.DateOnly
	}
	if days.Location == nil {
		days.Location = time.UTC
	}
	l := newLimiter(rdb, user, limit, limit, opts, checkCount("permits", limit, mostExact), days.Period.check())
	q := &Quota{l, days}
	q.try = func(ctx context.Context, n int64, m mode) (rratelimiter.Result, int64, error) {
		key, left := q.current()
		reply, err := q.run(ctx, quotaScript, m, []string{key}, limit, n, left+grace)
		if err != nil {
			return rratelimiter.Result{}, 0, err
		}
		return counted(limit, append(reply, left)), reply[0], nil
	}
	return q
}

// Key returns the key that counts now.
func (q *Quota) Key() string {
	key, _ := q.current()
	return key
}

// grace is the time (ms) for which the key of a period outlives it, for clients whose clock is
// behind, and a server whose clock is fast.
const grace = 60_000

// current returns the key of the current period and how many ms are left of it. These, not the time
// of its end, are sent to Redis: the server's clock may be ahead of the client's, and a key that
// expires in the past counts nothing.
func (q *Quota) current() (key string, left int64) {
	now := time.UnixMilli(q.now()).In(q.days.Location)
	today, period := dateOf(now), q.days.Period
	return q.name + "::" + q.days.key(period.begin(today)), firstOf(period.next(today), now).Sub(now).Milliseconds()
}

// Return gives permits of the current period back, at most as many as are counted, and returns how
// many are then counted.
func (q *Quota) Return(ctx context.Context, n int64) (int64, error) {
	err := q.err
	if err == nil && n < 1 {
		err = fmt.Errorf("%w (%d)", rratelimiter.ErrInvalidPermits, n)
	}
	if err != nil {
		return 0, q.wrap("return to", err)
	}
	key, left := q.current()
	reply, err := q.run(ctx, quotaScript, take, []string{key}, q.limit, -n, left+grace)
	if err != nil {
		return 0, q.wrap("return to", err)
	}
	return reply[1], nil
}

// Reset reads the count of the current period and sets it to zero, in one step.
func (q *Quota) Reset(ctx context.Context) (int64, error) {
	if q.err != nil {
		return 0, q.wrap("reset", q.err)
	}
	key, left := q.current()
	reply, err := q.run(ctx, quotaResetScript, take, []string{key}, left+grace)
	if err != nil {
		return 0, q.wrap("reset", err)
	}
	return reply[0], nil
}
