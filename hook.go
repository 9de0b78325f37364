package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/hook"
)

// hook.go opens a back door to packages of this module (internal/hook), so that what only they need is no API. It holds
// no logic.

func init() {
	hook.Keys = func(name, clientID string) [keyCount]string { return keyNames(name, clientID) }
	hook.Alone = func(client any) { client.(*Client).alone = true }
	hook.RedissonHere = func(ctx context.Context, limiter any) bool { return limiter.(*Limiter).redissonHere(ctx) }
	hook.Wake = func(client any) { client.(*Client).wake("") }
	hook.FormatOf = func(member []byte) (format, idLength int, known bool) {
		f, _, known := formatOf(member)
		_, idLength, _ = f.layout()
		return int(f), idLength, known
	}
	hook.Allow = func(ctx context.Context, limiter any, n int64) (any, func(context.Context) error, error) {
		l, from := limiter.(*Limiter), source{}
		result, err := l.request(ctx, "allow", ask{n: n, detail: true, source: &from})
		return result, func(ctx context.Context) error { return l.undo(ctx, n, from) }, err
	}
	hook.Survey = func(ctx context.Context, limiter any, first, count int, own bool) (hook.Stored, error) {
		return limiter.(*Limiter).survey(ctx, first, count, own)
	}
	hook.Collect = func(ctx context.Context, limiter any, idle time.Duration, dry bool) (hook.Collected, error) {
		return limiter.(*Limiter).collect(ctx, idle, dry)
	}
	hook.Silence = func(limiter any) time.Duration { return limiter.(*Limiter).silence() }
	hook.Look = func(client any, limiter string) hook.Calls { return client.(*Client).look(limiter) }
}

// look tells what goes on, on the limiters with a name, or on all of them with "".
func (c *Client) look(limiter string) (calls hook.Calls) {
	for _, ln := range c.lines.list(func(l *Limiter) bool { return limiter == "" || l.name == limiter }) {
		ln.mu.Lock()
		calls.Waiting += ln.waiting
		calls.Flying = calls.Flying || ln.flight != nil || ln.astray > 0 || ln.gathers > 0 // or is about to
		if ln.first != nil && ln.first.asked {
			if wait := ln.first.result.RetryAfter; calls.Next == 0 || wait < calls.Next {
				calls.Next = wait
			}
		}
		ln.mu.Unlock()
	}
	return calls
}

// silence tells how long the last call that departed for a limiter has had no answer; 0: it had one.
func (l *Limiter) silence() time.Duration {
	ln := l.line.Load()
	if ln == nil {
		return 0
	}
	ln.mu.Lock()
	defer ln.mu.Unlock()
	f := ln.flight
	if first := ln.first; f == nil && first != nil && first.flying && first.on.number == ln.flights {
		f = first.on // it stalled, and nobody departed since
	}
	if f == nil {
		return 0
	}
	return time.Since(f.started)
}
