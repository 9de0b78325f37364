package rratelimiter

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// expire.go sets and reads the TTL of a limiter: of all its keys together, except the PerClient state of other clients.

// An ExpireCondition makes a new TTL depend on the present one. At most one condition can be given. Conditions work on
// every server, also before Redis 7.0, whose PEXPIRE has none.
type ExpireCondition int

// The conditions, with Redisson's methods.
const (
	IfNotSet  ExpireCondition = iota + 1 // there is no TTL (expireIfNotSet)
	IfSet                                // there is a TTL (expireIfSet)
	IfGreater                            // there is a TTL, and the new one ends later (expireIfGreater)
	IfLess                               // there is no TTL, or the new one ends earlier (expireIfLess)
)

// Expire sets the time after which the limiter is removed, rounded up to whole milliseconds (Redisson: expire). It
// returns whether the TTL was set: false if there is no limiter or the condition is not met. A ttl of zero or less
// removes the limiter now. State that later grants create gets the same TTL. Keys of another Redis type belong to
// another program and keep their TTL.
//
// More than one condition, or an unknown one, is ErrInvalidOption. If the reply was lost, the error is
// ErrOutcomeUnknown.
func (l *Limiter) Expire(ctx context.Context, ttl time.Duration, cond ...ExpireCondition) (bool, error) {
	ms := ttl.Milliseconds()
	if ttl > 0 && ttl%time.Millisecond > 0 {
		ms++
	}
	return l.expire(ctx, protocol.ExpireIn, ms, cond)
}

// ExpireAt sets the time at which the limiter is removed, rounded down to whole milliseconds, and returns whether it
// was set (Redisson: expireAt). A time in the past removes the limiter now; a time after 1e15 ms since the epoch (more
// than 31,000 years) counts as that time. Conditions and errors are those of Expire.
func (l *Limiter) ExpireAt(ctx context.Context, t time.Time, cond ...ExpireCondition) (bool, error) {
	const last = 1e15 // ms since the epoch; Lua numbers are exact up to here
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(last)) {
		ms = last
	} else if t.Before(time.UnixMilli(0)) {
		ms = 0
	}
	return l.expire(ctx, protocol.ExpireAt, ms, cond)
}

// ClearExpire removes the TTL, and returns whether there was one (Redisson: clearExpire). A rate with KeepAlive sets
// one again at its next use. This client's PerClient state keeps a TTL, and expires once it is no longer needed.
func (l *Limiter) ClearExpire(ctx context.Context) (bool, error) {
	return l.expire(ctx, protocol.Persist, 0, nil)
}

func (l *Limiter) expire(ctx context.Context, command protocol.ExpireCommand, ms int64, cond []ExpireCondition) (bool, error) {
	condition, err := conditionOf(cond)
	if l.err != nil {
		err = l.err
	}
	request := protocol.Expire{Command: command, Time: ms, Condition: condition}
	var reply []int64
	if err == nil {
		sent := new(script.Attempts)
		reply, err = within(ctx, l, func(ctx context.Context) ([]int64, error) {
			defer l.changed()
			return l.client.topology.Run(ctx, sent, protocol.ExpireScript, request.Idempotent(), l.keys(), request.Args()...)
		})
		err = sent.Outcome(err)
	}
	return err == nil && request.Reply(reply), wrap("set the TTL of", l.name, err)
}

func conditionOf(cond []ExpireCondition) (protocol.ExpireCondition, error) {
	names := map[ExpireCondition]protocol.ExpireCondition{IfNotSet: "NX", IfSet: "XX", IfGreater: "GT", IfLess: "LT"}
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

// TTL returns the time after which the limiter is removed; 0 means never (Redisson: remainTimeToLive). Without a
// limiter the error is ErrNotInitialized.
func (l *Limiter) TTL(ctx context.Context) (time.Duration, error) {
	const operation = "read the TTL of"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	ms, err := within(ctx, l, func(ctx context.Context) (int64, error) {
		cmd := redis.NewIntCmd(ctx, "pttl", l.key())
		err := l.client.topology.Process(ctx, cmd)
		return cmd.Val(), err
	})
	if err == nil && ms == -2 {
		err = fmt.Errorf("%w: there is no limiter", ErrNotInitialized)
	}
	return protocol.TTL(ms), wrap(operation, l.name, err)
}
