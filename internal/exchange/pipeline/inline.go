package pipeline

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// inline.go lets the goroutine that sends a batch execute the run itself, without another
// goroutine: handing a run over takes a fifth of the time of a call to a near node. That goroutine
// notices nothing else meanwhile, not even that the context of its caller has ended. So an inline
// run ends when it stalls, and its batch goes on elsewhere, as after a lost reply.

const (
	timedRuns = 16                          // so many runs tell the usual time
	near      = ShortestStall / stallFactor // usual time of a run; above it a hand-over costs little
	// after an inline run that stalled, there is no other one for so long
	inlinePause = 5 * time.Second
)

// An inliner is what a pipeline knows about inline runs.
type inliner struct {
	detour *detour       // of the node's client; nil: no run is inline
	copy   *redis.Client // of that client: ends a command with its context; it has no hooks
	timed  int           // runs, at most timedRuns
	paused time.Time     // there is no inline run before
}

// CanInline reports whether there can be inline runs. They need a hook, and go-redis before 9.22
// lets nobody add one to a client that is in use.
var CanInline = sync.OnceValue(func() bool {
	var major, minor int
	_, err := fmt.Sscanf(redis.Version(), "%d.%d.", &major, &minor)
	return err == nil && (major > 9 || major == 9 && minor >= 22)
})

// AllowInline lets runs be inline. It adds a hook to the Redis client, which must be that of the
// only node. It does nothing if a command of that client may take longer than its context allows:
// if the connections have no deadlines, or if a new connection calls other code.
func (p *Pipeline) AllowInline(node *redis.Client) {
	o := node.Options()
	if !CanInline() || p.timeout < ShortestStall || o.ReadTimeout < 0 || o.WriteTimeout < 0 || o.OnConnect != nil ||
		o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil {
		return
	}
	copy := node.WithTimeout(ShortestStall)
	copy.Options().ContextTimeoutEnabled = true // each step of a command ends with its context
	p.inliner.detour, p.inliner.copy = detourOf(node), copy
}

// lockedInline reports whether a batch that is about to be added may have an inline run: the
// pipeline does nothing else, and its node is near.
func (p *Pipeline) lockedInline() bool {
	in := &p.inliner
	return in.detour != nil && !in.detour.skips.Load() && p.inFlight+p.stalled+len(p.waiting) == 0 &&
		in.timed == timedRuns && p.usual <= near && !time.Now().Before(in.paused)
}

// lockedTimed notes how long a run took that has ended. How long one takes that has no answer tells
// nothing about the next.
func (p *Pipeline) lockedTimed(t *Run, answered bool) {
	now, in := time.Now(), &p.inliner
	took := now.Sub(t.started)
	if answered {
		p.usual += (took - p.usual) / 8
		in.timed = min(in.timed+1, timedRuns)
	}
	if t.inline && took >= min(t.stall, ShortestStall) {
		in.paused = now.Add(inlinePause)
	}
}

// An inlineBound is the context of the command of an inline run. Hooks may use it longer than the
// run, so it never changes.
type inlineBound struct {
	*bound
	cmd      redis.Cmder
	deadline time.Time // when the run stalls
	detour   *detour
	copy     *redis.Client
}

func (b *inlineBound) Deadline() (time.Time, bool) { return b.deadline, true }

// Value tells the detour of the command.
func (b *inlineBound) Value(key any) any {
	if key == any(b.detour) {
		return b
	}
	return nil
}

// context returns the context for the only command of the run.
func (t *Run) context() context.Context {
	if !t.inline {
		return t.bound
	}
	in := &t.pipeline.inliner
	return &inlineBound{t.bound, t.cmds[0], t.started.Add(min(t.stall, ShortestStall)), in.detour, in.copy}
}

// A detour is the last hook of a Redis client. It sends the commands of inline runs through a copy
// of the client that has no hooks: all others were called before.
type detour struct {
	end   atomic.Uintptr // the code that followed the detour when it was added: it sends commands
	skips atomic.Bool    // another hook was added later, which an inline run would not call
}

// detours holds the detour of each Redis client, as a weak.Pointer by a weak.Pointer.
var detours sync.Map

// detourOf returns the detour of a Redis client, which gets one if it has none.
func detourOf(client *redis.Client) *detour {
	key, d := weak.Make(client), &detour{}
	if known, has := detours.LoadOrStore(key, weak.Make(d)); has {
		return known.(weak.Pointer[detour]).Value()
	}
	client.AddHook(d)
	runtime.AddCleanup(client, func(key weak.Pointer[redis.Client]) { detours.Delete(key) }, key)
	return d
}

func (d *detour) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if after := reflect.ValueOf(next).Pointer(); !d.end.CompareAndSwap(0, after) && d.end.Load() != after {
		d.skips.Store(true)
	}
	return func(ctx context.Context, cmd redis.Cmder) error {
		if b, is := ctx.Value(d).(*inlineBound); is && b.cmd == cmd {
			return b.copy.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (d *detour) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *detour) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
