package classic

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var (
	quotaScript      = load("quota")
	quotaResetScript = load("quota_reset")
)

// A Quota is a counter for each day: a limit for a user from midnight to midnight.
//
// Model: permits of a day are counted until it ends; unused permits can be given back.
//
// Layout: user::DATE holds the count, as INCRBY and DECRBY write it, and expires a minute after the end of the day,
// since clocks differ. A key without a TTL gets it again, an invalid count is replaced by zero, and a count below zero
// is zero.
//
// A day ends when the date at its Location changes. If daylight saving time begins there at midnight, clocks skip from
// 00:00 to 01:00, and the new day begins at 01:00. A day on which clocks change has more or fewer hours than 24.
//
// Cost: one key that holds a number for the rest of the day, one call with three commands, or four for the first grant of
// a day. It works on a cluster: a call uses one key.
//
// Weakness: all permits of a day can be used at once, and around midnight up to 2 x the limit can pass. Days are those
// of the client's clock.
type Quota struct {
	*Limiter
	days Days
}

// Days sets when a day begins and how its date is written in keys.
type Days struct {
	Layout   string         // as in time.Format; "": time.DateOnly
	Location *time.Location // nil: UTC
}

// NewQuota returns the quota of a user: limit permits a day.
func NewQuota(rdb rratelimiter.Redis, user string, limit int64, days Days, opts ...Option) *Quota {
	if days.Layout == "" {
		days.Layout = time.DateOnly
	}
	if days.Location == nil {
		days.Location = time.UTC
	}
	q := &Quota{newLimiter(rdb, user, limit, limit, opts, checkCount("permits", limit)), days}
	q.try = func(ctx context.Context, n int64, peek bool) (rratelimiter.Result, error) {
		key, left := q.day()
		reply, err := q.run(ctx, quotaScript, peek, []string{key}, limit, n, left+grace)
		if err != nil {
			return rratelimiter.Result{}, err
		}
		return counted(limit, append(reply, left)), nil
	}
	return q
}

// Key returns the key that counts now.
func (q *Quota) Key() string {
	key, _ := q.day()
	return key
}

// grace is the time (ms) for which the key of a day outlives it, for clients whose clock is behind, and a server whose
// clock is fast.
const grace = 60_000

// day returns the key of today and how many ms are left of the day. These, not the time of its end, are sent to Redis:
// the server's clock may be ahead of the client's, and a key that expires in the past counts nothing.
func (q *Quota) day() (key string, left int64) {
	now := time.UnixMilli(q.now()).In(q.days.Location)
	return q.name + "::" + now.Format(q.days.Layout), nextDate(now).Sub(now).Milliseconds()
}

// nextDate returns the first second after t that has another date at t's location. Neither time.Date nor
// Time.ZoneBounds can compute it: a midnight that the clocks skip has no time, and the bounds are wrong at the end of a
// leap year.
func nextDate(t time.Time) time.Time {
	const longest = 3 * 24 * 60 * 60 // s, more than any date has had
	year, month, day := t.Date()
	second := func(i int) time.Time { return t.Truncate(time.Second).Add(time.Duration(i) * time.Second) }
	return second(sort.Search(longest, func(i int) bool {
		y, m, d := second(i).Date()
		return d != day || m != month || y != year
	}))
}

// Return gives permits of today back, at most as many as are counted, and returns how many are then counted for today.
func (q *Quota) Return(ctx context.Context, n int64) (int64, error) {
	err := q.err
	if err == nil && n < 1 {
		err = fmt.Errorf("%w (%d)", rratelimiter.ErrInvalidPermits, n)
	}
	if err != nil {
		return 0, q.wrap("return to", err)
	}
	key, left := q.day()
	reply, err := q.run(ctx, quotaScript, false, []string{key}, q.limit, -n, left+grace)
	if err != nil {
		return 0, q.wrap("return to", err)
	}
	return reply[1], nil
}

// Reset reads today's count and sets it to zero, in one step.
func (q *Quota) Reset(ctx context.Context) (int64, error) {
	if q.err != nil {
		return 0, q.wrap("reset", q.err)
	}
	key, left := q.day()
	reply, err := q.run(ctx, quotaResetScript, false, []string{key}, left+grace)
	if err != nil {
		return 0, q.wrap("reset", err)
	}
	return reply[0], nil
}
