package classic

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

var (
	quotaScript      = loadScript("quota")
	quotaResetScript = loadScript("quota_reset")
)

// A Quota is a counter a day: for what a user may use from midnight to midnight.
//
// Model: permits of a day are counted until it ends; what was not used can be given back.
//
// Layout: user::DATE holds the count, as INCRBY and DECRBY write it, and expires at the end of the day. A key that has
// lost its life time gets it again, what is no count begins anew, and a count below zero is zero.
//
// Cost: one key of a number for the rest of the day, one call with three commands. It works on a cluster: a call uses one
// key.
//
// Weakness: it says nothing about any time within the day, and around midnight up to 2 x the limit pass. Days are those of
// the client's clock.
type Quota struct {
	*Limiter
	days Days
}

// Days says when a day begins and how its date is written in keys.
type Days struct {
	Layout   string         // as in time.Format; "": time.DateOnly
	Location *time.Location // nil: UTC
}

// NewQuota makes the quota of a user: limit permits a day.
func NewQuota(rdb rratelimiter.Redis, user string, limit int64, days Days, opts ...Option) *Quota {
	if days.Layout == "" {
		days.Layout = time.DateOnly
	}
	if days.Location == nil {
		days.Location = time.UTC
	}
	q := &Quota{newLimiter(rdb, user, limit, limit, opts, checkCount("permits", limit)), days}
	q.try = func(ctx context.Context, n int64) (rratelimiter.Result, error) {
		key, now, end := q.day()
		reply, err := q.run(ctx, quotaScript, []string{key}, limit, n, end)
		if err != nil {
			return rratelimiter.Result{}, err
		}
		return counted(limit, append(reply, end-now)), nil
	}
	return q
}

// Key is the key that counts at the moment.
func (q *Quota) Key() string {
	key, _, _ := q.day()
	return key
}

// day gives the key of today, the time and the end of the day (ms).
func (q *Quota) day() (key string, now, end int64) {
	now = q.now()
	today := time.UnixMilli(now).In(q.days.Location)
	midnight := time.Date(today.Year(), today.Month(), today.Day()+1, 0, 0, 0, 0, q.days.Location)
	return q.name + "::" + today.Format(q.days.Layout), now, midnight.UnixMilli()
}

// Return gives permits of today back, as many as are counted at most, and tells what is still counted.
func (q *Quota) Return(ctx context.Context, n int64) (int64, error) {
	err := q.err
	if err == nil && n < 1 {
		err = fmt.Errorf("%w: %d", rratelimiter.ErrInvalidPermits, n)
	}
	if err != nil {
		return 0, q.wrap("return to", err)
	}
	key, _, end := q.day()
	reply, err := q.run(ctx, quotaScript, []string{key}, q.limit, -n, end)
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
	key, _, end := q.day()
	reply, err := q.run(ctx, quotaResetScript, []string{key}, end)
	if err != nil {
		return 0, q.wrap("reset", err)
	}
	return reply[0], nil
}
