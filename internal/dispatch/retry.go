package dispatch

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// One acquiring call with its retries.

// An exchange is a call that takes permits, as its retries see it.
type exchange interface {
	script() *script.Script
	keys() []string
	args(find bool) []any              // of the next attempt; with find it searches what an earlier one was granted
	read(reply []int64) error          // stores a reply
	findable() bool                    // a retry finds what an earlier attempt was granted
	enforce(ctx context.Context) error // sets a limiter's own rate after ErrOtherRate
}

// repeat asks Redis for permits until there is a final reply or error. last is the error of the attempt that a pipeline made,
// or nil. If a limiter enforces a rate and another one is in force, repeat sets the limiter's own rate and calls again.
func (c *Client) repeat(ctx context.Context, t *script.Attempts, x exchange, last error) error {
	var pauses script.Backoff
	for {
		switch {
		case errors.Is(last, protocol.ErrOtherRate):
			if err := x.enforce(ctx); err != nil {
				return err
			}
		case last != nil && !c.topology.Redirected(last):
			c.topology.Reload(ctx, last)
			if !pauses.Rest(ctx) {
				return last
			}
		}
		var reply []int64
		reply, last = c.topology.Try(ctx, t, x.script(), x.keys(), x.args(t.MaybeExecuted())...)
		if last == nil {
			last = x.read(reply)
		}
		if !errors.Is(last, protocol.ErrOtherRate) && !t.Again(last, x.findable()) {
			return last
		}
	}
}

// repeats reports whether a call that was sent by a pipeline is to be made again after its attempt ended with err.
func (c *Client) repeats(t *script.Attempts, err error, findable bool) bool {
	return errors.Is(err, protocol.ErrOtherRate) || c.topology.Redirected(err) || t.Again(err, findable)
}

// DoWithRetry makes a call of acquire.lua. If it was sent before, last is the error of that attempt, else nil.
func (l *Limiter) DoWithRetry(
	ctx context.Context, r *protocol.AcquireRequest, t *script.Attempts, ask protocol.Ask, last error,
) (protocol.AcquireReply, error) {
	x := acquiring{limiter: l, request: r, ask: ask, sent: t}
	return x.do(ctx, last)
}

// An acquiring is a call of acquire.lua for one limiter.
type acquiring struct {
	limiter *Limiter
	request *protocol.AcquireRequest
	ask     protocol.Ask
	sent    *script.Attempts
	renewed func() // called once the rate was enforced, if no attempt has had an effect; or nil
	reply   protocol.AcquireReply
}

// do is DoWithRetry.
func (x *acquiring) do(ctx context.Context, last error) (protocol.AcquireReply, error) {
	err := x.limiter.client.repeat(ctx, x.sent, x, last)
	return x.reply, err
}

func (x *acquiring) script() *script.Script { return protocol.AcquireScript }
func (x *acquiring) keys() []string         { return x.limiter.Keys() }
func (x *acquiring) findable() bool         { return x.limiter.settings.Findable(x.request.Records) }

func (x *acquiring) args(find bool) []any {
	return x.request.Args(nil, &x.limiter.encoder, x.ask, find && (len(x.ask.Groups) > 0 || x.ask.Lease > 0))
}

func (x *acquiring) read(reply []int64) (err error) {
	x.reply, err = x.request.Reply(&x.limiter.encoder, x.sent, reply)
	return err
}

func (x *acquiring) enforce(ctx context.Context) error {
	x.request.Sets++
	err := x.limiter.enforce(ctx)
	if err == nil && x.renewed != nil && !x.sent.MaybeExecuted() {
		x.renewed()
	}
	return err
}

// setRate runs setrate.lua, and the calls that finish its work: a rebuild of the free permits after many records have
// expired, or a recount. Then it calls changed.
func (l *Limiter) setRate(
	ctx context.Context, t *script.Attempts, request protocol.SetRate, changed func(error),
) (set bool, err error) {
	end := l.changing(ctx, changed)
	defer func() { end(err) }()
	request.Now = l.encoder.Now()
	reply, err := l.client.topology.Run(ctx, t, protocol.SetRateScript, true, l.Keys(), request.Args()...)
	if err != nil {
		return false, err
	}
	set, notes := request.Reply(reply)
	if notes.Has(protocol.RebuildPending) {
		_, err = l.look(ctx, protocol.Ask{Rebuild: true})
	} else if notes.Has(protocol.Many) {
		err = l.Recount(ctx)
	}
	return set, err
}

// enforce sets the limiter's own rate in the place of another one.
func (l *Limiter) enforce(ctx context.Context) error {
	_, err := l.setRate(ctx, new(script.Attempts), protocol.SetRate{Rate: l.settings.Own, Keep: true}, func(err error) {
		l.client.denyCache.Forget(l.Key())
		if err == nil {
			l.client.wakeChosen(func(other *Limiter) bool { // not those that would set their own rate again
				return other.Key() == l.Key() && (!other.settings.Enforced || other.settings.Own == l.settings.Own)
			})
		}
	})
	return err
}
