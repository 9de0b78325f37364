package rratelimiter

import (
	"cmp"
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// TrySetRate sets the rate of a limiter that has no rate, and returns whether it set the rate
// (Redisson: trySetRate). Fields of the configuration that are already stored are not changed. As
// with Redisson, the result depends on the type field: it is true if this field was missing.
//
// An invalid rate is ErrInvalidRate. If the reply was lost, the error is ErrOutcomeUnknown. If the
// rate was set nevertheless, the next TrySetRate returns false.
func (l *Limiter) TrySetRate(ctx context.Context, r Rate) (bool, error) {
	request := protocol.TrySetRate{Rate: r.protocol()}
	err := l.mayChange(ctx, r)
	var reply []int64
	if err == nil {
		reply, err = l.core.Change(ctx, protocol.TrySetRateScript, false, request.Args())
	}
	return err == nil && request.Reply(reply), wrap("try to set the rate of", l.name, err)
}

// A SetOption changes how SetRate and UpdateRate set a rate.
type SetOption func(*setOptions)

type setOptions struct{ keep bool }

// KeepState makes the live grants count against the new rate (Redisson: RateLimiterArgs.keepState,
// since 4.6.1). Grants older than the new interval do not count, and the next call removes their
// records. Without KeepState, or if the Type changes, they are removed, so within one interval both
// the old and the new rate may be used up. Of the grants of a PerClient limiter only this client's
// are removed: those of other clients always stay.
func KeepState() SetOption { return func(o *setOptions) { o.keep = true } }

func setOptionsOf(opts []SetOption) (o setOptions) {
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o
}

// SetRate sets the rate, whether or not the limiter has one (Redisson: setRate). Waiting callers of
// this process then try again at once.
//
// An invalid rate is ErrInvalidRate. If the reply was lost, SetRate is retried. If no retry has a
// reply, the error is ErrOutcomeUnknown, and calling SetRate again is safe. Without KeepState, a
// retry or a repeated call also removes the grants made since the previous attempt. If one of the
// keys has another Redis type, it belongs to another program: nothing is set, and the error is
// Redis's WRONGTYPE.
func (l *Limiter) SetRate(ctx context.Context, r Rate, opts ...SetOption) error {
	_, err := l.set(ctx, r, false, opts)
	return wrap("set the rate of", l.name, err)
}

// UpdateRate is SetRate, but only for a limiter that already has a rate. It returns whether the
// limiter had a rate (Redisson: updateRate, since 4.6.1).
func (l *Limiter) UpdateRate(ctx context.Context, r Rate, opts ...SetOption) (bool, error) {
	set, err := l.set(ctx, r, true, opts)
	return set, wrap("update the rate of", l.name, err)
}

// set sets the rate, with update only if the limiter has one, and returns whether it did.
func (l *Limiter) set(ctx context.Context, r Rate, update bool, opts []SetOption) (bool, error) {
	if err := l.mayChange(ctx, r); err != nil {
		return false, err
	}
	return l.core.SetRate(ctx, protocol.SetRate{Rate: r.protocol(), Keep: setOptionsOf(opts).keep, Update: update})
}

// mayChange returns why the rate cannot be changed to r; nil if it can.
func (l *Limiter) mayChange(ctx context.Context, r Rate) error {
	return cmp.Or(errors.Join(l.err, r.validate()), ctx.Err())
}

// Config returns the rate (Redisson: getConfig). If the rate is missing or invalid, the error is
// ErrNotInitialized, and its text names the field.
func (l *Limiter) Config(ctx context.Context) (Rate, error) {
	r, err := l.read(ctx, protocol.StateScript, true)
	if err != nil {
		return Rate{}, wrap("read the configuration of", l.name, err)
	}
	return rateOf(r.Rate), nil
}
