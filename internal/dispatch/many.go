package dispatch

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Shared commands: on a single server, batches that stand next to each other in a run of a pipeline share a command, if each is
// likely to need plain grants only. A batch that needs more, and each batch of a command that Redis refuses, is sent again with
// a command of its own: the shared one had no effect on it. After a network error each batch is repeated for itself, as after
// any other command.

// mostShared is how many limiters a shared command asks at most. More of them save no more time of Redis, which serves nobody
// else meanwhile.
const mostShared = 16

func (b *batch) plain() bool { return b.queue.limiter.settings.Plain(b.ask, b.free) }

func (b *batch) manyArgs(args []any, now int64) []any {
	return b.request.ArgsOfMany(args, &b.limiter().encoder, b.ask, now)
}

func (b *jointBatch) plain() bool { return b.request.Plain() }

func (b *jointBatch) manyArgs(args []any, now int64) []any { return b.request.ArgsOfMany(args, now) }

// sharable reports whether a batch may share its command.
func sharable(s sender) bool {
	b := s.common()
	return !b.alone && !b.client.topology.Clustered() && !b.client.apart.Load() && s.plain()
}

// company returns how many of the batches behind s share its command: the first ones.
func company(s sender, behind []pipeline.Batch) int {
	if len(behind) == 0 || !sharable(s) {
		return 0
	}
	limiters := len(s.common().limiters)
	for i, next := range behind {
		other := next.(sender)
		if !sharable(other) {
			return i
		}
		if limiters += len(other.common().limiters); limiters > mostShared {
			return i
		}
	}
	return len(behind)
}

// share makes the command of s and of the batches behind it.
func share(ctx context.Context, text bool, s sender, behind []pipeline.Batch) redis.Cmder {
	all := make([]sender, 1, 1+len(behind))
	all[0] = s
	for _, other := range behind {
		all = append(all, other.(sender))
	}
	var cmd script.Command
	limiters, calls := 0, make([]*script.Attempts, len(all))
	for i, s := range all {
		b := s.common()
		b.attempts.Begin(keys.Count * len(b.limiters))
		b.shared, b.place, b.script = &cmd, limiters, protocol.AcquireManyScript
		calls[i] = &b.attempts
		limiters += len(b.limiters)
	}
	const arguments = 4 // of a limiter
	args := make([]any, 0, 4+limiters*(protocol.ManyKeys+arguments))
	args = append(append(args, protocol.AcquireManyScript.Head(text)...), script.NewShared(protocol.ManyKeys*limiters, calls))
	for _, s := range all {
		for _, l := range s.common().limiters {
			args = protocol.KeysOfMany(args, l.arguments())
		}
	}
	now := s.common().client.clock().UnixMicro()
	args = append(args, protocol.NowOfMany(now))
	for _, s := range all {
		args = s.manyArgs(args, now)
	}
	cmd = script.NewCommand(ctx, args)
	return &cmd
}

// separate sends s again with a command of its own if its shared command ended with an error that proves that it had no effect.
// It reports whether it did. If the run has stalled, s is sent directly: the timer of that run may still complete it, so it must
// not be in another run.
func separate(s sender, err error, regular bool) bool {
	if err == nil {
		return false
	}
	b := s.common()
	notPlain := errors.Is(err, protocol.ErrNotPlain)
	refused := script.IsAnswer(err) && !script.Unreachable(err)
	if notPlain || b.alone && refused { // the second: Redis refused a shared command because of this limiter, and would again
		for _, l := range b.limiters {
			b.client.checks.notPlain(l.Key())
		}
	}
	if b.shared == nil || !notPlain && !script.IsAnswer(err) {
		return false
	}
	if errors.Is(err, script.ErrCrossSlotName) { // the server is a proxy of several
		b.client.apart.Store(true)
	}
	b.alone = true
	if !regular {
		go s.retryDirect(nil)
	} else if t := b.client.pipeline.Admit(s); t != nil {
		go t.Start()
	}
	return true
}
