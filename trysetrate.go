package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// trysetrate.go sets and reads a limiter's rate, and deletes and renames the limiter. The README discusses which
// process should set the rate.

// TrySetRate sets the rate of a limiter that has none, and returns whether it did (Redisson: trySetRate). Fields of the
// configuration that are already stored stay. As with Redisson, the type field decides the result: true if there was
// none.
//
// An invalid rate is ErrInvalidRate. If the reply was lost, the error is ErrOutcomeUnknown; calling TrySetRate again
// then returns false if the rate was set.
func (l *Limiter) TrySetRate(ctx context.Context, r Rate) (bool, error) {
	sent := new(script.Attempts)
	set, err := l.change(ctx, r, func(ctx context.Context) (bool, error) {
		defer l.changed()
		request := protocol.TrySetRate{Rate: r.protocol()}
		reply, err := l.client.topology.Run(ctx, sent, protocol.TrySetRateScript, false, l.keys(), request.Args()...)
		return err == nil && request.Reply(reply), err
	})
	return set, wrap("try to set the rate of", l.name, sent.Outcome(err))
}

// A SetOption changes how SetRate and UpdateRate set a rate.
type SetOption func(*setOptions)

type setOptions struct{ keep bool }

// KeepState makes the live grants count against the new rate (Redisson: RateLimiterArgs.keepState, since 4.6.1).
// Without it they are forgotten, so that both rates may be used up in one interval. A new Type forgets them in any
// case.
func KeepState() SetOption { return func(o *setOptions) { o.keep = true } }

func setOptionsOf(opts []SetOption) (o setOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// SetRate sets the rate, whether or not the limiter has one (Redisson: setRate). Waiting callers of this process retry
// at once.
//
// An invalid rate is ErrInvalidRate. If the reply was lost, the error is ErrOutcomeUnknown. Calling SetRate again is
// then safe, except that without KeepState it also forgets the grants made since. If one of the keys has another Redis
// type, it belongs to another program: nothing is set, and the error is Redis's WRONGTYPE.
func (l *Limiter) SetRate(ctx context.Context, r Rate, opts ...SetOption) error {
	sent := new(script.Attempts)
	_, err := l.change(ctx, r, func(ctx context.Context) (bool, error) {
		return l.setRate(ctx, sent, protocol.SetRate{Rate: r.protocol(), Keep: setOptionsOf(opts).keep})
	})
	return wrap("set the rate of", l.name, sent.Outcome(err))
}

// UpdateRate sets the rate of a limiter that already has one, and returns whether it had one (Redisson: updateRate,
// since 4.6.1). An invalid rate is ErrInvalidRate.
func (l *Limiter) UpdateRate(ctx context.Context, r Rate, opts ...SetOption) (bool, error) {
	sent := new(script.Attempts)
	set, err := l.change(ctx, r, func(ctx context.Context) (bool, error) {
		return l.setRate(ctx, sent, protocol.SetRate{Rate: r.protocol(), Keep: setOptionsOf(opts).keep, Update: true})
	})
	return set, wrap("update the rate of", l.name, sent.Outcome(err))
}

// change validates the rate, runs an operation that sets it, and wakes the limiter's waiting callers if it was set.
func (l *Limiter) change(ctx context.Context, r Rate, set func(context.Context) (bool, error)) (bool, error) {
	if err := errors.Join(l.err, r.validate()); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	done, err := within(ctx, l, set)
	if done {
		l.client.wake(l.key())
	}
	return done, err
}

// setRate runs setrate.lua, and the calls that finish its work: a rebuild of the free permits after many records have
// expired, or a recount.
func (l *Limiter) setRate(ctx context.Context, t *script.Attempts, request protocol.SetRate) (bool, error) {
	defer l.changed()
	request.Now = l.encoder.Now()
	reply, err := l.client.topology.Run(ctx, t, protocol.SetRateScript, true, l.keys(), request.Args()...)
	if err != nil {
		return false, err
	}
	set, notes := request.Reply(reply)
	if notes.Has(protocol.RebuildPending) {
		_, err = l.acquireDirect(ctx, protocol.RecentIDs{}, protocol.Ask{Rebuild: true})
	} else if notes.Has(protocol.Many) {
		err = l.recount(ctx)
	}
	return set, err
}

// Config returns the rate (Redisson: getConfig). If it is missing or invalid, the error is ErrNotInitialized, and its
// text names the field.
func (l *Limiter) Config(ctx context.Context) (Rate, error) {
	r, err := l.read(ctx, protocol.StateScript, true)
	if err != nil {
		return Rate{}, wrap("read the configuration of", l.name, err)
	}
	return rateOf(r.Rate), nil
}

// Exists returns whether the limiter has a configuration (Redisson: isExists).
func (l *Limiter) Exists(ctx context.Context) (bool, error) {
	err := l.err
	var n int64
	if err == nil {
		n, err = within(ctx, l, func(ctx context.Context) (int64, error) {
			cmd := redis.NewIntCmd(ctx, "exists", l.key())
			err := l.client.topology.Process(ctx, cmd)
			return cmd.Val(), err
		})
	}
	return n > 0, wrap("look for", l.name, err)
}

// Delete removes the limiter: its configuration, its state, and this client's state (Redisson: delete). It returns
// whether any of these existed, even if it was state alone. The state of other clients stays, as with Redisson; if a
// PerClient rate is set again, it is used again. If the reply was lost, the error is ErrOutcomeUnknown.
//
// Unlike Redisson's delete, it leaves keys of another Redis type alone, because they belong to another program. The
// rest is removed, and the error is a WRONGTYPE that names the first such key. Redis frees the memory in the background
// (UNLINK).
func (l *Limiter) Delete(ctx context.Context) (bool, error) {
	err := l.err
	var request protocol.Delete
	var reply []int64
	if err == nil {
		sent := new(script.Attempts)
		reply, err = within(ctx, l, func(ctx context.Context) ([]int64, error) {
			defer l.changed()
			return l.client.topology.Run(ctx, sent, protocol.DeleteScript, false, l.keys(), request.Args()...)
		})
		err = sent.Outcome(err)
	}
	if err != nil {
		return false, wrap("delete", l.name, err)
	}
	removed, other := request.Reply(reply)
	if removed {
		l.client.wake(l.key())
	}
	if other >= 0 {
		err = wrap("delete", l.name, foreign(l.keys(), other))
	}
	return removed, err
}

// foreign returns the error for a key of another program.
func foreign(all []string, at int) error {
	types := [keys.Count]string{"hash", "string", "string", "sorted set", "sorted set"}
	return script.Said(fmt.Sprintf("WRONGTYPE the key %s is no %s, so another program uses it: it was left as it is",
		quoted(all[at]), types[at%keys.Count]))
}

// Rename renames the limiter's keys (Redisson: rename). This Limiter keeps the old name. A limiter that already has the
// new name is removed. The PerClient state of other clients keeps the old name.
//
// Without a limiter the error is ErrNotInitialized. A new name that equals one of the limiter's own keys is
// ErrInvalidOption. If a key of either name has another Redis type, it belongs to another program: nothing is renamed,
// and the error is a WRONGTYPE that names the key. If the reply was lost, the error is ErrOutcomeUnknown.
//
// On a cluster both names must be in one slot, and on a Ring both must have the same hash tag ("{tag}x"); otherwise the
// error is ErrCrossSlotName. An AutoPipeliner over a Ring cannot check this, so there, too, rename only within a hash
// tag.
func (l *Limiter) Rename(ctx context.Context, newName string) error {
	_, err := l.rename(ctx, newName, protocol.Rename{})
	return wrap("rename", l.name, err)
}

// RenameNX is Rename if no limiter has the new name (Redisson: renamenx). It returns whether it renamed the limiter.
func (l *Limiter) RenameNX(ctx context.Context, newName string) (bool, error) {
	renamed, err := l.rename(ctx, newName, protocol.Rename{OnlyNew: true})
	return renamed, wrap("rename", l.name, err)
}

func (l *Limiter) rename(ctx context.Context, newName string, request protocol.Rename) (bool, error) {
	to := l.client.RateLimiter(newName)
	if err := errors.Join(l.err, to.err); err != nil {
		return false, err
	}
	if to.key() != l.key() {
		for _, key := range to.keyNames {
			if slices.Contains(l.keys(), key) {
				return false, invalidOption("the new name %s shares the key %s with the old one", quoted(newName), quoted(key))
			}
		}
	}
	all := append(append([]string(nil), l.keys()...), to.keys()...)
	if !l.client.topology.Reachable(all) {
		return false, fmt.Errorf("%w: the new name %s lies elsewhere", ErrCrossSlotName, quoted(newName))
	}
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		defer l.changed()
		defer to.changed()
		return l.client.topology.Run(ctx, sent, protocol.RenameScript, false, all, request.Args()...)
	})
	if err = sent.Outcome(err); err != nil {
		return false, err
	}
	renamed, other, err := request.Reply(reply)
	if other >= 0 {
		err = foreign(all, other)
	}
	if renamed {
		l.client.wake(l.key())
		l.client.wake(to.key())
	}
	return renamed, err
}
