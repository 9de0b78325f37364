package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/hook"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// Functions for other packages of this module (internal/hook), so that what only they need is not part of the API.

func init() {
	hook.Keys = func(name, clientID string) [keys.Count]string { return keys.Names(name, clientID) }
	hook.Alone = func(client any) { client.(*Client).alone = true }
	hook.RedissonHere = func(ctx context.Context, limiter any) bool { return limiter.(*Limiter).redissonHere(ctx) }
	hook.Wake = func(client any) { client.(*Client).wake("") }
	hook.FormatOf = func(member []byte) (format, idLength int, known bool) {
		f, _, known := record.FormatOf(member)
		_, idLength, _ = f.Layout()
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
	hook.Away = func(_ context.Context, limiter any) bool { return limiter.(*Limiter).away() }
	hook.DecidesLocally = func(limiter any) bool { return limiter.(*Limiter).decidesLocally() }
	hook.Look = func(client any, limiter string) hook.Calls { return client.(*Client).look(limiter) }
}

// look returns what goes on now on the limiters with a name; "" means all limiters.
func (c *Client) look(limiter string) (calls hook.Calls) {
	for _, q := range c.registry.list(func(l *Limiter) bool { return limiter == "" || l.name == limiter }) {
		q.mu.Lock()
		calls.Waiting += q.waiting
		calls.Flying = calls.Flying || q.inFlight != nil || q.detached > 0 || q.linger > 0 // or about to be
		if q.first != nil && q.first.asked {
			if wait := q.first.result.RetryAfter; calls.Next == 0 || wait < calls.Next {
				calls.Next = wait
			}
		}
		q.mu.Unlock()
	}
	return calls
}

// silence returns for how long the last batch sent for l has had no reply; 0 if it has one.
func (l *Limiter) silence() time.Duration {
	q := l.queue.Load()
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.inFlight
	if first := q.first; b == nil && first != nil && first.inFlight && first.batch.number == q.batches {
		b = first.batch // detached, and no batch was sent since
	}
	if b == nil {
		return 0
	}
	return time.Since(b.started)
}
