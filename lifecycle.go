package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// An ExpireCondition makes a new TTL depend on the present TTL. At most one condition can be given.
// Conditions work on every server, including Redis before 7.0, where PEXPIRE has no conditions.
type ExpireCondition int

// The conditions, with Redisson's methods.
const (
	IfNotSet ExpireCondition = iota + 1 // there is no TTL (expireIfNotSet)
	IfSet                               // there is a TTL (expireIfSet)
	// there is a TTL, and the new one ends later (expireIfGreater)
	IfGreater
	IfLess // there is no TTL, or the new one ends earlier (expireIfLess)
)

// Expire sets the time after which the limiter is removed, rounded up to whole milliseconds
// (Redisson: expire). It returns whether the TTL was set: false if there is no limiter or the
// condition is not met. If ttl is zero or less, the limiter is removed now. Keys that later grants
// create expire at the same time as the limiter. Keys of another Redis type belong to another
// program and keep their TTL.
//
// The TTL ends whether the limiter is in use or not, and the grants that still count are then
// forgotten, as by Delete. So an interval that includes that time can hold the rate twice.
// [Rate.KeepAlive] removes only a limiter that is unused.
//
// More than one condition, or an unknown condition, is ErrInvalidOption. If the reply was lost,
// Expire is retried, provided that it has no condition and that ttl is more than WithCallTimeout.
// Otherwise, or if no retry has a reply, the error is ErrOutcomeUnknown.
func (l *Limiter) Expire(ctx context.Context, ttl time.Duration, cond ...ExpireCondition) (bool, error) {
	ms := ttl.Milliseconds()
	if ttl > 0 && ttl%time.Millisecond > 0 {
		ms++
	}
	return l.expire(ctx, protocol.ExpireIn, ms, cond)
}

// ExpireAt sets the time at which the limiter is removed, rounded down to whole milliseconds, and
// returns whether the time was set (Redisson: expireAt). If t is in the past, the limiter is
// removed now. If t is more than 1e15 ms (31,000 years) after the epoch, that time is used instead.
// Conditions, retries and errors are as for Expire, where ttl is the time until t.
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

// ClearExpire removes the TTL, and returns whether there was one (Redisson: clearExpire). A limiter
// with a KeepAlive gets a TTL again when it is used next. This client's PerClient state keeps a
// TTL, and expires when it is no longer needed. If the reply was lost, the error is
// ErrOutcomeUnknown.
func (l *Limiter) ClearExpire(ctx context.Context) (bool, error) {
	return l.expire(ctx, protocol.Persist, 0, nil)
}

func (l *Limiter) expire(
	ctx context.Context, command protocol.ExpireCommand, ms int64, cond []ExpireCondition,
) (bool, error) {
	condition, err := conditionOf(cond)
	if l.err != nil {
		err = l.err
	}
	request := protocol.Expire{Command: command, Time: ms, Condition: condition}
	var reply []int64
	if err == nil {
		idempotent := request.Idempotent(l.core.Clock(), l.core.Timeout())
		reply, err = l.core.Change(ctx, protocol.ExpireScript, idempotent, request.Args())
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

// TTL returns the time after which the limiter is removed; 0 means never (Redisson:
// remainTimeToLive). Without a limiter the error is ErrNotInitialized.
func (l *Limiter) TTL(ctx context.Context) (time.Duration, error) {
	const operation = "read the TTL of"
	if l.err != nil {
		return 0, wrap(operation, l.name, l.err)
	}
	ms, err := l.core.Integer(ctx, "pttl")
	if err == nil && ms == -2 {
		err = fmt.Errorf("%w: there is no limiter", ErrNotInitialized)
	}
	return protocol.TTL(ms), wrap(operation, l.name, err)
}

// Exists returns whether the limiter has a configuration (Redisson: isExists).
func (l *Limiter) Exists(ctx context.Context) (bool, error) {
	err := l.err
	var n int64
	if err == nil {
		n, err = l.core.Integer(ctx, "exists")
	}
	return n > 0, wrap("look for", l.name, err)
}

// Delete removes the limiter: its configuration, its state, and this client's state (Redisson:
// delete). It returns whether any of these existed. The state of other clients stays, as with
// Redisson; it is used again if a PerClient rate is set again. If the reply was lost, the error is
// ErrOutcomeUnknown.
//
// Unlike Redisson's delete, Delete does not remove keys of another Redis type, because they belong
// to another program. It removes the other keys, and returns a WRONGTYPE error that names the first
// key that stays. Redis frees the memory in the background (UNLINK).
func (l *Limiter) Delete(ctx context.Context) (bool, error) {
	err := l.err
	var request protocol.Delete
	var reply []int64
	if err == nil {
		reply, err = l.core.Change(ctx, protocol.DeleteScript, false, request.Args())
	}
	if err != nil {
		return false, wrap("delete", l.name, err)
	}
	removed, other := request.Reply(reply)
	if other >= 0 {
		err = wrap("delete", l.name, foreign(l.core.Keys(), other))
	}
	return removed, err
}

// foreign returns the error for a key of another program.
func foreign(all []string, at int) error {
	types := [keys.Count]string{"hash", "string", "string", "sorted set", "sorted set"}
	return script.Said(fmt.Sprintf("WRONGTYPE the key %s is no %s, so another program uses it: it was left as it is",
		keys.Quoted(all[at]), types[at%keys.Count]))
}

// Rename renames the limiter's keys in Redis (Redisson: rename). This Limiter still has the old
// name. If another limiter has the new name, that limiter is removed. The PerClient state of other
// clients keeps the old name.
//
// Without a limiter the error is ErrNotInitialized. If the two names have a key in common (as "a"
// and "{a}:value" do), the error is ErrInvalidOption; the same name changes nothing. If a key of
// either name has another Redis type, it belongs to another program: nothing is renamed, and the
// error is a WRONGTYPE that names the key. If the reply was lost, the error is ErrOutcomeUnknown.
//
// On a cluster, both names must be in one slot. On a Ring, both names must have the same hash tag
// ("{tag}x"). Otherwise the error is ErrCrossSlotName. With an AutoPipeliner over a Ring this
// cannot be checked: use names with the same hash tag there.
func (l *Limiter) Rename(ctx context.Context, newName string) error {
	_, err := l.rename(ctx, newName, protocol.Rename{})
	return wrap("rename", l.name, err)
}

// RenameNX is Rename, but only if no limiter has the new name (Redisson: renamenx). State without a
// configuration that is left under the new name is removed, as by Rename. RenameNX returns whether
// the limiter was renamed.
func (l *Limiter) RenameNX(ctx context.Context, newName string) (bool, error) {
	renamed, err := l.rename(ctx, newName, protocol.Rename{OnlyNew: true})
	return renamed, wrap("rename", l.name, err)
}

func (l *Limiter) rename(ctx context.Context, newName string, request protocol.Rename) (bool, error) {
	to := l.client.RateLimiter(newName)
	if err := errors.Join(l.err, to.err); err != nil {
		return false, err
	}
	if to.core.Key() != l.core.Key() {
		for _, key := range to.core.Keys() {
			if slices.Contains(l.core.Keys(), key) {
				return false, invalidOption(
					"the new name %s shares the key %s with the old one", keys.Quoted(newName),
					keys.Quoted(key),
				)
			}
		}
	}
	all := slices.Concat(l.core.Keys(), to.core.Keys())
	if !l.client.core.Topology().Reachable(all) {
		return false, fmt.Errorf(
			"%w: the keys of the new name %s are not where those of the old name are", ErrCrossSlotName,
			keys.Quoted(newName),
		)
	}
	reply, err := l.core.Change(ctx, protocol.RenameScript, false, request.Args(), &to.core.Limiter)
	if err != nil {
		return false, err
	}
	renamed, other, err := request.Reply(reply)
	if other >= 0 {
		err = foreign(all, other)
	}
	return renamed, err
}
