package dispatch

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Shared commands: on a single server, batches of several limiters that stand next to each other in a run of a pipeline
// share a command, if each is likely to be a plain grant. A batch that is none, and each batch of a command that Redis
// refuses, is sent again with a command of its own: the shared one had no effect on it. After a network error each batch is
// repeated for itself, as after any other command.

// mostShared is how many batches share a command at most. More of them save no more time of Redis, which serves nobody else
// meanwhile.
const mostShared = 16

// sharable reports whether b may share its command.
func (b *batch) sharable() bool {
	l := b.limiter
	return !b.alone && !l.client.topology.Clustered() && l.settings.Plain(b.ask, b.free)
}

// company returns how many of the batches behind b share its command.
func (b *batch) company(behind []pipeline.Batch) int {
	if !b.sharable() {
		return 0
	}
	for i, next := range behind {
		if other, ok := next.(*batch); !ok || i == mostShared-1 || !other.sharable() {
			return i
		}
	}
	return len(behind)
}

// share makes the command of b and of the batches behind it.
func (b *batch) share(ctx context.Context, text bool, behind []pipeline.Batch) redis.Cmder {
	all := make([]*batch, 1, 1+len(behind))
	all[0] = b
	for _, other := range behind {
		all = append(all, other.(*batch))
	}
	calls := make([]*script.Attempts, len(all))
	for i, b := range all {
		calls[i] = &b.attempts
	}
	const arguments = 4 // of a batch
	args := make([]any, 0, 4+len(all)*(keys.Count+arguments))
	args = append(append(args, protocol.AcquireManyScript.Head(text)...), script.NewShared(keys.Count, calls))
	for _, b := range all {
		args = append(args, b.limiter.arguments()...)
	}
	now := b.client.clock().UnixMicro()
	args = append(args, protocol.NowOfMany(now))
	for _, b := range all {
		args = b.request.ArgsOfMany(args, &b.limiter.encoder, b.ask, now)
	}
	cmd := script.NewCommand(ctx, args)
	for i, b := range all {
		b.shared, b.place, b.script = &cmd, i, protocol.AcquireManyScript
	}
	return &cmd
}

// sent returns the command of b.
func (b *batch) sent() *script.Command {
	if b.shared != nil {
		return b.shared
	}
	return &b.cmd
}

// Err returns the error of the command.
func (b *batch) Err() error { return b.sent().Err() }

// separate sends b again if its shared command ended with an error that says that it had no effect. It reports whether it
// did. If the run has stalled, b cannot be in a second one.
func (b *batch) separate(err error, regular bool) bool {
	notPlain := errors.Is(err, protocol.ErrNotPlain)
	if b.shared == nil || !notPlain && !script.IsAnswer(err) {
		return false
	}
	if notPlain {
		b.client.checks.notPlain(b.limiter.Key())
	}
	b.alone = true
	if !regular {
		go b.retryDirect(nil)
	} else if t := b.client.pipeline.Admit(b); t != nil {
		go t.Start()
	}
	return true
}
