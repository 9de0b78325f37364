package pipeline

import (
	"context"
	"runtime"
	"sync"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

// inline.go lets the goroutine that sends a job execute the run itself, without another
// goroutine: handing a run over takes a fifth of the time of a call to a near node. That goroutine
// notices nothing else meanwhile, not even that the context of its caller has ended. So an inline
// run ends when it stalls, and its job goes on elsewhere, as after a lost reply.

const (
	timedRuns = 16                          // so many runs tell the usual time
	near      = ShortestStall / stallFactor // usual time of a run; above it a hand-over costs little
	// after an inline run that stalled, there is no other one for so long
	inlinePause = 5 * time.Second
)

// An inliner is what a pipeline knows about inline runs.
type inliner struct {
	// a copy of the node's client, which shares its connections: it ends a command with its
	// context. It has no hooks. nil: no run is inline
	copy   *redis.Client
	timed  int       // runs, at most timedRuns
	paused time.Time // there is no inline run before
}

// AllowInline lets runs be inline. It adds a hook to the Redis client, which must be that of the
// only node. It does nothing if a command of that client may take longer than its context allows:
// if the connections have no deadlines, or if a new connection calls other code.
func (p *Pipeline) AllowInline(node *redis.Client) {
	o := node.Options()
	if p.timeout < ShortestStall || o.ReadTimeout < 0 || o.WriteTimeout < 0 || o.OnConnect != nil ||
		o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil {
		return
	}
	addDetour(node)
	p.inliner.copy = node.WithTimeout(ShortestStall)
	p.inliner.copy.Options().ContextTimeoutEnabled = true // each step of a command ends with its context
}

// lockedInline reports whether a job that is about to be added may have an inline run: the
// pipeline does nothing else, and its node is near.
func (p *Pipeline) lockedInline() bool {
	in := &p.inliner
	return in.copy != nil && p.inFlight+p.stalled+len(p.waiting) == 0 &&
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
	copy     *redis.Client
}

func (b *inlineBound) Deadline() (time.Time, bool) { return b.deadline, true }

// Value tells the detour of the command.
func (b *inlineBound) Value(key any) any {
	if key == any(detour{}) {
		return b
	}
	return nil
}

// context returns the context for the only command of the run.
func (t *Run) context() context.Context {
	if !t.inline {
		return t.bound
	}
	return &inlineBound{t.bound, t.cmds[0], t.started.Add(min(t.stall, ShortestStall)), t.pipeline.inliner.copy}
}

// A detour is a hook of a Redis client. It sends the commands of inline runs through the copy of
// the client. The hooks that were added before it are called for them, later ones are not: go-redis
// does not give a copy the hooks of its client.
type detour struct{}

// detours holds the Redis clients that have a detour, as weak pointers.
var detours sync.Map

// addDetour adds a detour to a Redis client, unless it has one.
func addDetour(client *redis.Client) {
	key := weak.Make(client)
	if _, has := detours.LoadOrStore(key, true); has {
		return
	}
	client.AddHook(detour{})
	runtime.AddCleanup(client, func(key weak.Pointer[redis.Client]) { detours.Delete(key) }, key)
}

func (detour) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if b, is := ctx.Value(detour{}).(*inlineBound); is && b.cmd == cmd {
			return b.copy.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

func (detour) DialHook(next redis.DialHook) redis.DialHook { return next }

func (detour) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
