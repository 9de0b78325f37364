package exchange

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Call is one call of a script, with all its attempts. It is filled by Begin, and then passed to
// Send.
type Call struct {
	exchange *Exchange
	body     Body
	owner    Owner
	targets  []Target // the node of the first one gets the call

	breaker  *breaker.Breaker // of the node
	started  time.Time        // the timeout counts from here
	due      time.Time        // when the call ends at the latest
	stallAt  time.Time        // when its owner stops waiting for it
	attempts script.Attempts
	ended    atomic.Bool // Done of the owner was called, or is about to be
	command  command
}

// A command is the last one of a call. Its memory is reused.
type command struct {
	script   *script.Script
	args     []any // memory for the arguments of own
	own      script.Command
	shared   *script.Command // if the call shares it, else nil
	place    int             // of its first target in the shared command
	unshared bool            // the call has shared a command in vain, and must not do so again
}

// Begin makes c a call that begins now. The targets must stay unchanged as long as the call is
// used.
func (c *Call) Begin(x *Exchange, body Body, owner Owner, targets []Target) {
	c.exchange, c.body, c.owner, c.targets = x, body, owner, targets
	c.started, c.breaker = time.Now(), x.firstBreaker(targets[0])
	c.attempts.NoRetryIfUnsent = true
	for _, t := range targets {
		c.attempts.NoRetryIfUnsent = c.attempts.NoRetryIfUnsent && t.FallsBack()
	}
}

// Emptied returns a zero call, which uses memory of c.
func (c *Call) Emptied() Call { return Call{command: command{args: c.command.args[:0]}} }

// Started returns when the call began.
func (c *Call) Started() time.Time { return c.started }

// Attempts returns how many attempts were made.
func (c *Call) Attempts() int { return c.attempts.Count() }

// InTime reports whether the time of the call is not over.
func (c *Call) InTime() bool { return time.Since(c.started) < c.exchange.timeout }

// decided lets the owner decide in the process if the node is known to be away, and reports whether
// it does.
func (c *Call) decided() bool {
	if !c.attempts.NoRetryIfUnsent {
		return false
	}
	away, retry := c.breaker.Ask(c.targets[0])
	return away && c.owner.Away(retry)
}

// end ends the call, unless it has ended: it tells the breaker, and the owner.
func (c *Call) end(err error, unused bool) {
	if c.ended.Swap(true) {
		return
	}
	cause := script.Failure(context.Background(), c.exchange.timeout, c.attempts.Explain(err))
	o := Outcome{Unused: unused}
	if err != script.ErrUnsent && !c.reached(err) {
		o.Away, o.Retry = true, c.breaker.Retry()
	}
	o.Err = c.attempts.Outcome(cause)
	if errors.Is(err, os.ErrDeadlineExceeded) && c.breaker.Silent(c.started) {
		o.Behind = cause
	}
	c.owner.Done(o)
}

// reached tells the breaker how the call ended, and reports whether Redis was reached.
func (c *Call) reached(err error) bool {
	if !script.Unreachable(err) {
		c.breaker.Answer(c.started, c.targets[0])
		return true
	}
	if script.IsOfNode(err) {
		c.breaker.Fail(c.started)
	}
	return false
}

// canDecide reports whether the process can decide on all targets.
func canDecide(targets []Target) bool {
	for _, t := range targets {
		if !t.CanDecide() {
			return false
		}
	}
	return true
}

// keysOf returns the names of the keys of all targets.
func keysOf(targets []Target) []string {
	if len(targets) == 1 {
		return targets[0].Keys()
	}
	var all []string
	for _, t := range targets {
		all = append(all, t.Keys()...)
	}
	return all
}

// The methods of pipeline.Job, but for Started, and Done in repeat.go.

// Cancelled reports whether nobody waits for the call, so that no permits are to be taken for it.
func (c *Call) Cancelled() bool { return c.owner.Cancelled() }

// Sent reports whether the command was written to a connection.
func (c *Call) Sent() bool { return c.attempts.Sent() }

// CanDecide reports whether the process can decide on the call.
func (c *Call) CanDecide() bool { return canDecide(c.targets) }

// Breaker returns the breaker of the node.
func (c *Call) Breaker() *breaker.Breaker { return c.breaker }

// Prober returns the target on whose behalf the node is probed.
func (c *Call) Prober() breaker.Prober { return c.targets[0] }

// Begun notes until when the call may take.
func (c *Call) Begun(due, stallAt time.Time) { c.due, c.stallAt = due, stallAt }

// Command makes the command of an attempt, with the current time. With text it carries the script's
// text instead of its SHA-1. It returns how many of the calls behind share the command.
func (c *Call) Command(ctx context.Context, text bool, behind []pipeline.Job) (redis.Cmder, int) {
	if n := c.company(behind); n > 0 || c.body.Joint() && c.plain() {
		return c.share(ctx, text, behind[:n]), n
	}
	cmd := &c.command
	cmd.shared, cmd.script = nil, c.body.Script()
	c.attempts.Begin(keys.Count * len(c.targets))
	cmd.args = append(append(cmd.args[:0], cmd.script.Head(text)...), &c.attempts)
	for _, t := range c.targets {
		cmd.args = append(cmd.args, t.Arguments()...)
	}
	cmd.args = c.body.Args(cmd.args, false)
	cmd.own = script.NewCommand(ctx, cmd.args)
	return &cmd.own, 0
}

// sent returns the command.
func (c *Call) sent() *script.Command {
	if c.command.shared != nil {
		return c.command.shared
	}
	return &c.command.own
}

// Err returns the error of the command.
func (c *Call) Err() error { return c.sent().Err() }

// Missing notes that the server lacks the script.
func (c *Call) Missing(err error) { c.attempts.End(err) }

// Script returns the script.
func (c *Call) Script() *script.Script { return c.command.script }

// Load loads the script into the server.
func (c *Call) Load(ctx context.Context) error {
	return c.exchange.topology.Load(ctx, c.command.script, c.targets[0].Key())
}

// Late ends the call with a timeout.
func (c *Call) Late() {
	c.end(script.Late(min(time.Since(c.started).Round(time.Millisecond), c.exchange.timeout)), false)
}

// Stalled tells the owner that the call takes longer than usual.
func (c *Call) Stalled() { c.owner.Stalled() }

// Unsent ends the call, which nobody waits for.
func (c *Call) Unsent() { c.end(script.ErrUnsent, false) }
