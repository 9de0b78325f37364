package exchange

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Shared commands: on a single server, calls that stand next to each other in a run of a pipeline
// share a command, if each is likely to need plain grants only. A call that needs more, and each
// call of a command that Redis refuses, is sent again with a command of its own: the shared one had
// no effect on it. After a network error each call is repeated for itself, as after any other
// command.
//
// A call of several limiters (Body.Joint) has such a command even if no other call shares it, on a
// cluster, too: its own script makes no plain grants, and costs Redis twice as much. These cases
// get its own script:
//
//	too few permits were free, a        own script at once (Body.Plain)
//	granularity, the server's clock, ...
//	protocol.ErrNotNow                  own script, one round trip later; the reply says what is free
//	protocol.ErrNotPlain                the same; until the next check, calls of that limiter use their
//	                                    own scripts
//	a lost reply                        own script, which searches what the earlier attempt was granted
//	NOSCRIPT in an inline run           the shared command again, in a run that loads the script

// mostShared is how many limiters a shared command asks at most. More of them save no more time of
// Redis, which serves nobody else meanwhile.
const mostShared = 16

// plain reports whether a call is likely to need plain grants only.
func (c *Call) plain() bool { return !c.command.unshared && c.body.Plain() }

// sharable reports whether a call may share its command.
func (c *Call) sharable() bool {
	x := c.exchange
	return c.plain() && !x.topology.Clustered() && !x.proxied.Load()
}

// company returns how many of the jobs behind c share its command: the first ones.
func (c *Call) company(behind []pipeline.Job) int {
	if len(behind) == 0 || !c.sharable() {
		return 0
	}
	limiters := len(c.targets)
	for i, next := range behind {
		other := next.(*Call)
		if !other.sharable() {
			return i
		}
		if limiters += len(other.targets); limiters > mostShared {
			return i
		}
	}
	return len(behind)
}

// share makes the command of c and of the jobs behind it.
func (c *Call) share(ctx context.Context, text bool, behind []pipeline.Job) *script.Command {
	all := make([]*Call, 1, 1+len(behind))
	all[0] = c
	for _, other := range behind {
		all = append(all, other.(*Call))
	}
	var cmd script.Command
	limiters, attempts := 0, make([]*script.Attempts, len(all))
	for i, c := range all {
		c.attempts.Begin(keys.Count * len(c.targets))
		c.command.shared, c.command.place, c.command.script = &cmd, limiters, protocol.AcquireManyScript
		attempts[i] = &c.attempts
		limiters += len(c.targets)
	}
	const arguments = 4 // of a limiter
	args := make([]any, 0, 4+limiters*(protocol.ManyKeys+arguments))
	args = append(
		append(args, protocol.AcquireManyScript.Head(text)...), script.NewShared(protocol.ManyKeys*limiters, attempts),
	)
	for _, c := range all {
		for _, t := range c.targets {
			args = protocol.KeysOfMany(args, t.Arguments())
		}
	}
	now := c.exchange.clock().UnixMicro()
	args = append(args, protocol.NowOfMany(now))
	for _, c := range all {
		args = c.body.SharedArgs(args, now)
	}
	cmd = script.NewCommand(ctx, args)
	return &cmd
}

// unshare sends c again with a command of its own if its shared command ended with an error that
// proves that it had no effect. It reports whether it did. If the run has stalled, c is repeated
// directly: the timer of that run may still end it, so it must not be in another run.
func (c *Call) unshare(err error, regular bool) bool {
	if err == nil {
		return false
	}
	notPlain, notNow := errors.Is(err, protocol.ErrNotPlain), errors.Is(err, protocol.ErrNotNow)
	refused := script.IsAnswer(err) && !script.Unreachable(err)
	// the second: Redis refused a shared command because of this limiter, and would again
	if notPlain || c.command.unshared && refused {
		for _, t := range c.targets {
			t.NotPlain()
		}
	}
	if c.command.shared == nil || !notPlain && !notNow && !script.IsAnswer(err) {
		return false
	}
	if errors.Is(err, script.ErrCrossSlotName) {
		c.exchange.proxied.Store(true)
	}
	c.command.unshared = !script.Lacking(err) // an inline run loads no script; another one does
	if !regular || c.exchange.topology.Clustered() {
		go c.direct(nil)
	} else if t := c.exchange.server.Admit(c, false); t != nil {
		go t.Start()
	}
	return true
}
