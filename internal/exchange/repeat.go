package exchange

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// repeat.go decides what follows an attempt of a call, in a pipeline or not:
//
//	a shared command was refused,    it had no effect: again with a command of its own, in the
//	or its part is no plain grant    pipeline or, after a stall, directly
//	another rate is in force         the own one is set, then again at once, directly
//	a redirect to another node       again at once, directly: the cluster client follows it
//	the server lacks the script      the same; an attempt that is made directly loads it
//	script.Attempts.Again: it was    again after a pause, directly, until the call is due
//	surely not executed, or the
//	next attempt finds its grant
//	anything else                    the call has ended, with a reply or an error
//
// Attempts that are made directly belong to no run of a pipeline. Other scripts, which take no
// permits, are repeated by script.Topology.Run.

// A step is what follows an attempt with a command of its own.
type step uint8

const (
	finish  step = iota // the call has ended
	enforce             // the limiter's own rate is set first
	follow              // again at once
	pause               // again after a pause
)

// after returns what follows an attempt that ended with err.
func (x *Exchange) after(err error, a *script.Attempts, findable bool) step {
	switch {
	case err == nil:
		return finish
	case errors.Is(err, protocol.ErrOtherRate):
		return enforce
	case x.topology.Redirected(err), script.Lacking(err): // an inline run loads no script
		return follow
	case a.Again(err, findable):
		return pause
	}
	return finish
}

// Done reads the reply to the command, which a run of a pipeline has carried. The call ends, or is
// repeated. In a run that never stalled nothing uses a call any more once it has ended. Otherwise a
// timer may.
func (c *Call) Done(regular bool) {
	reply, err := c.sent().Reply()
	c.attempts.End(err)
	switch {
	case err != nil:
	case c.command.shared != nil:
		err = c.body.ReadShared(&c.attempts, reply, c.command.place)
	default:
		err = c.body.Read(&c.attempts, reply)
	}
	if c.unshare(err, regular) {
		return
	}
	c.proceed(err, regular)
}

// proceed ends the call after an attempt, or goes on with it directly.
func (c *Call) proceed(err error, unused bool) {
	if c.exchange.after(err, &c.attempts, c.body.Findable()) == finish {
		c.end(err, unused)
	} else {
		go c.direct(err)
	}
}

// direct repeats the call outside of the pipeline, until it is due. last is the error of its last
// attempt; nil if there was none with a command of its own. If the process can decide, the call
// ends as soon as its node is found to be away.
func (c *Call) direct(last error) {
	defer c.stall()()
	orAway := c.CanDecide()
	_, err := withinRest(
		context.Background(),
		c.exchange,
		c.targets[0],
		time.Until(c.due),
		orAway,
		func(ctx context.Context) (struct{}, error) {
			return struct{}{}, c.exchange.Do(ctx, &c.attempts, c.body, last, c.targets...)
		},
	)
	c.end(err, false)
}

// stall tells the owner once the call has stalled (stallAt), unless the function that it returns
// was called before.
func (c *Call) stall() (stop func() bool) {
	if rest := time.Until(c.stallAt); rest > 0 {
		return time.AfterFunc(rest, c.owner.Stalled).Stop
	}
	c.owner.Stalled()
	return func() bool { return false }
}

// Do makes attempts of a call until one is final, and returns its error. Without one, the body has
// the reply. last is the error of an earlier attempt that is to be repeated, or nil.
func (x *Exchange) Do(ctx context.Context, a *script.Attempts, body Body, last error, targets ...Target) error {
	var pauses script.Backoff
	for all := keysOf(targets); ; {
		switch x.after(last, a, body.Findable()) {
		case enforce:
			if err := body.Enforce(ctx, a); err != nil {
				return err
			}
		case pause:
			x.topology.Reload(ctx, last)
			if !pauses.Rest(ctx) {
				return last
			}
		case finish:
			if last != nil {
				return last
			}
		}
		var reply []int64
		reply, last = x.topology.Try(ctx, a, body.Script(), all, body.Args(nil, a.MaybeExecuted())...)
		if last == nil {
			last = body.Read(a, reply)
		}
		if last == nil {
			return nil
		}
	}
}
