package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
)

// trysetrate.go sets and reads a limiter's rate. Who should set it is a question for the README.

// TrySetRate sets the rate of a limiter that has none, and tells whether it did (Redisson: trySetRate). Where a part of
// the configuration is there already, it stays; as with Redisson, the type decides the answer: true if there was none. A
// rate that can't be set is ErrInvalidRate; where the answer did not arrive the error is ErrOutcomeUnknown, and trying once
// more tells false if it was set.
func (l *Limiter) TrySetRate(ctx context.Context, r Rate) (bool, error) {
	sent := new(trail)
	set, err := l.change(ctx, r, func(ctx context.Context) (bool, error) {
		reply, err := l.client.run(ctx, sent, trySetRateScript, false, l.keys(), r.args()...)
		return err == nil && reply[0] == 1, err
	})
	return set, wrap("try to set the rate of", l.name, sent.outcome(err))
}

// A SetOption is a way of setting a rate.
type SetOption func(*setOptions)

type setOptions struct{ keep bool }

// KeepState counts the live grants against the new rate (Redisson: RateLimiterArgs.keepState, since 4.6.1). Without it
// they are forgotten, so that for one interval both rates may be used up. A new Type forgets them, too.
func KeepState() SetOption { return func(o *setOptions) { o.keep = true } }

func (o setOptions) flags() string {
	if o.keep {
		return "k"
	}
	return ""
}

func setOptionsOf(opts []SetOption) (o setOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// SetRate sets the rate, whatever it was (Redisson: setRate). Whoever waits in this process asks again at once. A rate
// that can't be set is ErrInvalidRate; where the answer did not arrive the error is ErrOutcomeUnknown, and setting it once
// more does no harm but that it forgets what was granted meanwhile, without KeepState.
func (l *Limiter) SetRate(ctx context.Context, r Rate, opts ...SetOption) error {
	sent := new(trail)
	_, err := l.change(ctx, r, func(ctx context.Context) (bool, error) {
		return l.setRate(ctx, sent, r, setOptionsOf(opts).flags())
	})
	return wrap("set the rate of", l.name, sent.outcome(err))
}

// UpdateRate sets the rate of a limiter that has one, and tells whether it had (Redisson: updateRate, since 4.6.1). A rate
// that can't be set is ErrInvalidRate.
func (l *Limiter) UpdateRate(ctx context.Context, r Rate, opts ...SetOption) (bool, error) {
	sent := new(trail)
	set, err := l.change(ctx, r, func(ctx context.Context) (bool, error) {
		return l.setRate(ctx, sent, r, "u"+setOptionsOf(opts).flags())
	})
	return set, wrap("update the rate of", l.name, sent.outcome(err))
}

// change runs one operation that sets a rate, and wakes who waits for it.
func (l *Limiter) change(ctx context.Context, r Rate, set func(context.Context) (bool, error)) (bool, error) {
	if err := errors.Join(l.err, r.validate()); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	done, err := within(ctx, l.client, set)
	if done {
		l.client.wake(l.keyNames[keyConfig])
	}
	return done, err
}

// setRate is one call of setrate.lua, and as many as it takes to get rid of expired records that stand in its way.
func (l *Limiter) setRate(ctx context.Context, t *trail, r Rate, flags string) (bool, error) {
	args := append(append([]any{l.now()}, r.args()...), flags)
	reply, err := l.client.run(ctx, t, setRateScript, true, l.keys(), args...)
	if err != nil {
		return false, err
	}
	if reply[1]&noteUnbuilt != 0 {
		_, err = l.look(ctx, past{}, nil, "b")
	}
	return reply[0] == 1, err
}

// Config reads the rate (Redisson: getConfig). ErrNotInitialized says what of it is missing or wrong.
func (l *Limiter) Config(ctx context.Context) (Rate, error) {
	reply, err := l.inspect(ctx, "c")
	if err != nil {
		return Rate{}, wrap("read the configuration of", l.name, err)
	}
	return readRate(reply), nil
}

// Exists tells whether the limiter has a configuration (Redisson: isExists).
func (l *Limiter) Exists(ctx context.Context) (bool, error) {
	err := l.err
	var n int64
	if err == nil {
		n, err = within(ctx, l.client, func(ctx context.Context) (int64, error) {
			cmd := redis.NewIntCmd(ctx, "exists", l.keyNames[keyConfig])
			err := l.client.process(ctx, cmd)
			return cmd.Val(), err
		})
	}
	return n > 0, wrap("look for", l.name, err)
}

// Delete removes the limiter: its configuration, its state, and this client's state (Redisson: delete). It tells whether
// any of these was there, be it state alone. The state of other clients stays, as with Redisson; the limiter of a
// PerClient rate that is set again finds it. Where the answer did not arrive the error is ErrOutcomeUnknown.
func (l *Limiter) Delete(ctx context.Context) (bool, error) {
	err := l.err
	var n int64
	if err == nil {
		sent := &trail{text: []byte(l.keyNames[keyConfig])}
		n, err = within(ctx, l.client, func(ctx context.Context) (int64, error) {
			return l.delete(ctx, sent)
		})
		err = sent.outcome(err)
	}
	if n > 0 {
		l.client.wake(l.keyNames[keyConfig])
	}
	return n > 0, wrap("delete", l.name, err)
}

// delete counts the keys that it removes. It is not repeated once it may have been served: then it would count none.
func (l *Limiter) delete(ctx context.Context, t *trail) (int64, error) {
	args := []any{"del", t}
	for _, key := range l.keys()[1:] {
		args = append(args, key)
	}
	var n int64
	err := l.client.repeat(ctx, t, false, func() error {
		cmd := onceInt{redis.NewIntCmd(ctx, args...)}
		t.begin()
		err := l.client.process(ctx, cmd)
		t.end(err)
		n = cmd.Val()
		return err
	})
	return n, err
}

// Rename gives the limiter's keys another name (Redisson: rename); this Limiter keeps the old one. A limiter that had the
// new name is gone. Other clients' PerClient state keeps its name. Without a limiter the error is ErrNotInitialized. A new
// name that is one of the limiter's own keys is ErrInvalidOption.
//
// On a cluster both names must lie in one slot, on a Ring both must have the same hash tag ("{tag}x"), else the error is
// ErrCrossSlotName. Over a Ring, an AutoPipeliner can't check that: there, too, rename within a hash tag only. Where the
// answer did not arrive the error is ErrOutcomeUnknown.
func (l *Limiter) Rename(ctx context.Context, newName string) error {
	_, err := l.rename(ctx, newName, "")
	return wrap("rename", l.name, err)
}

// RenameNX is Rename, but only if no limiter has the new name (Redisson: renamenx). It tells whether it did.
func (l *Limiter) RenameNX(ctx context.Context, newName string) (bool, error) {
	renamed, err := l.rename(ctx, newName, "n")
	return renamed, wrap("rename", l.name, err)
}

func (l *Limiter) rename(ctx context.Context, newName, flags string) (bool, error) {
	to := l.client.RateLimiter(newName)
	if err := errors.Join(l.err, to.err); err != nil {
		return false, err
	}
	if to.keyNames[keyConfig] != l.keyNames[keyConfig] {
		for _, key := range to.keyNames {
			if slices.Contains(l.keys(), key) {
				return false, invalidOption("the new name %s shares the key %s with the old one", quoted(newName), quoted(key))
			}
		}
	}
	keys := append(append([]string(nil), l.keys()...), to.keys()...)
	if !l.client.reachable(keys) {
		return false, fmt.Errorf("%w: the new name %s lies elsewhere", ErrCrossSlotName, quoted(newName))
	}
	sent := new(trail)
	reply, err := within(ctx, l.client, func(ctx context.Context) ([]int64, error) {
		return l.client.run(ctx, sent, renameScript, false, keys, flags)
	})
	if err = sent.outcome(err); err != nil {
		return false, err
	}
	if reply[0] < 0 {
		return false, notInitialized(1)
	}
	if reply[0] == 1 {
		l.client.wake(l.keyNames[keyConfig])
		l.client.wake(to.keyNames[keyConfig])
	}
	return reply[0] == 1, nil
}

// clustered tells whether keys must share a slot to be used together.
func (c *Client) clustered() bool {
	_, cluster := c.rdb.(*redis.ClusterClient)
	return cluster
}

// together tells whether one script surely can use all the keys.
func (c *Client) together(keys []string) bool {
	_, single := c.rdb.(*redis.Client)
	return single || c.reachable(keys) && (c.clustered() || sameTag(keys))
}

// reachable tells whether one script can use all the keys, as far as the redis client shows how it spreads them.
func (c *Client) reachable(keys []string) bool {
	switch c.rdb.(type) {
	case *redis.ClusterClient:
		return sameSlot(keys)
	case *redis.Ring:
		return sameTag(keys)
	}
	return true
}
