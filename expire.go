package rratelimiter

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// expire.go is about the life time of a limiter: of all its keys together, other clients' PerClient state excepted.

// An ExpireCondition says when a new life time is set. At most one can be given. They work on every server, also on those
// before 7.0, whose PEXPIRE has none.
type ExpireCondition int

// The conditions, with Redisson's methods.
const (
	IfNotSet  ExpireCondition = iota + 1 // it has no life time yet (expireIfNotSet)
	IfSet                                // it has one (expireIfSet)
	IfGreater                            // it has one, and the new one ends later (expireIfGreater)
	IfLess                               // it has none, or the new one ends earlier (expireIfLess)
)

// Expire sets the time after which the limiter is gone, rounded up to whole milliseconds, and tells whether it did: not
// without a limiter, nor when a condition is not met (Redisson: expire). Acquiring gives the state the same life time. A
// time that is not positive removes the limiter now. Two conditions, or an unknown one, are ErrInvalidOption. Where the
// answer did not arrive the error is ErrOutcomeUnknown.
func (l *Limiter) Expire(ctx context.Context, ttl time.Duration, cond ...ExpireCondition) (bool, error) {
	ms := ttl.Milliseconds()
	if ttl > 0 && ttl%time.Millisecond > 0 {
		ms++
	}
	return l.expire(ctx, "PEXPIRE", ms, cond)
}

// ExpireAt sets the time at which the limiter is gone, rounded down to whole milliseconds, and tells whether it did
// (Redisson: expireAt). A time that has passed removes the limiter now; one more than 31,000 years away is taken for that
// long. See Expire.
func (l *Limiter) ExpireAt(ctx context.Context, t time.Time, cond ...ExpireCondition) (bool, error) {
	const last = 1e15 // ms since the epoch; what scripts count with exactly
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(last)) {
		ms = last
	} else if t.Before(time.UnixMilli(0)) {
		ms = 0
	}
	return l.expire(ctx, "PEXPIREAT", ms, cond)
}

// ClearExpire lets the limiter live for ever, and tells whether it had a life time before (Redisson: clearExpire). A rate
// with KeepAlive sets one again when it is next used. This client's PerClient state still leaves once it is of no use.
func (l *Limiter) ClearExpire(ctx context.Context) (bool, error) {
	return l.expire(ctx, "PERSIST", 0, nil)
}

func (l *Limiter) expire(ctx context.Context, command string, ms int64, cond []ExpireCondition) (bool, error) {
	condition, err := conditionOf(cond)
	if l.err != nil {
		err = l.err
	}
	var reply []int64
	if err == nil {
		sent := new(trail)
		twice := condition == "" && command != "PERSIST" && ms > 0 // else the second answer may be another one
		reply, err = within(ctx, l.client, func(ctx context.Context) ([]int64, error) {
			return l.client.run(ctx, sent, expireScript, twice, l.keys(), command, ms, condition)
		})
		err = sent.outcome(err)
	}
	return err == nil && reply[0] == 1, wrap("set the life time of", l.name, err)
}

func conditionOf(cond []ExpireCondition) (string, error) {
	names := map[ExpireCondition]string{IfNotSet: "NX", IfSet: "XX", IfGreater: "GT", IfLess: "LT"}
	switch {
	case len(cond) == 0:
		return "", nil
	case len(cond) > 1:
		return "", invalidOption("%d conditions, at most one can be given", len(cond))
	case names[cond[0]] == "":
		return "", invalidOption("unknown condition %d", cond[0])
	}
	return names[cond[0]], nil
}

// TTL tells how long the limiter still lives; 0 means for ever (Redisson: remainTimeToLive). Without a limiter the error
// is ErrNotInitialized.
func (l *Limiter) TTL(ctx context.Context) (time.Duration, error) {
	const operation = "read the life time of"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	ms, err := within(ctx, l.client, func(ctx context.Context) (int64, error) {
		cmd := redis.NewIntCmd(ctx, "pttl", l.keyNames[keyConfig])
		err := l.client.process(ctx, cmd)
		return cmd.Val(), err
	})
	if err == nil && ms == -2 {
		err = fmt.Errorf("%w: there is no limiter", ErrNotInitialized)
	}
	return max(millis(ms), 0), wrap(operation, l.name, err)
}
