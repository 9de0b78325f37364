package limiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/keys"
)

// A limiter as a target of calls (exchange.Target), and what is known about reaching it.

// Breaker returns the breaker of the limiter's queue. It must not be called while a queue is
// locked.
func (l *Limiter) Breaker() *breaker.Breaker { return l.queues.Breaker() }

// Keys returns the names of the limiter's keys.
func (l *Limiter) Keys() []string { return l.keyNames[:] }

// Key returns the name of the configuration key, which identifies the limiter on its server.
func (l *Limiter) Key() string { return l.keyNames[keys.Config] }

// Arguments returns the names of the limiter's keys as arguments of a command. A limiter that is
// made for one request mostly shares the queue, and so the arguments, of an earlier one.
func (l *Limiter) Arguments() []any {
	known := l.keyArgs.Load()
	if known == nil {
		known = new([keys.Count]any)
		for i, key := range l.keyNames {
			known[i] = key
		}
		l.keyArgs.Store(known)
	}
	return known[:]
}

// FallsBack reports whether the limiter has WithFallback.
func (l *Limiter) FallsBack() bool { return l.Settings.FallsBack }

// CanDecide reports whether the process can decide on the limiter: it has WithFallback, its rate is
// known, and there is room to count its grants.
func (l *Limiter) CanDecide() bool {
	return l.Settings.FallsBack && l.client.Local.CanDecide(&l.Local, l.Clock())
}

// NotPlain notes that a request of the limiter was no plain grant.
func (l *Limiter) NotPlain() { l.client.Checks.NotPlain(l.Key()) }

// Timeout is how long one call may take.
func (l *Limiter) Timeout() time.Duration { return l.client.Exchange.Timeout() }

// NodeBack lets the waiting callers of all limiters with WithFallback ask again: a node can be
// reached again.
func (l *Limiter) NodeBack() {
	l.client.wakeChosen(func(l *Limiter) bool { return l.Settings.FallsBack })
}

// Probe makes one call that tells whether the node of b can be reached.
func (l *Limiter) Probe(b *breaker.Breaker) bool { return l.client.Exchange.Probe(l, b) }

// Refused reports whether the node of l refuses a connection, and the Redis client has no idle one.
func (l *Limiter) Refused() bool { return l.client.Exchange.Refused(l) }

// WriteProbe makes one call that tells whether Redis could grant permits, for tests.
func (l *Limiter) WriteProbe(ctx context.Context) ([]int64, error) {
	return l.client.Exchange.WriteProbe(ctx, l)
}

// within makes one call to Redis for a limiter. It returns the reply, or an error when ctx ends or
// the call timeout is over.
func within[T any](ctx context.Context, l *Limiter, call func(context.Context) (T, error)) (T, error) {
	return exchange.Within(ctx, l.client.Exchange, l, call)
}

// Reach tells, without a call, whether the node of l is away, and whether the process decides in
// its place. It does not block. While the node is away, a probe starts in the background now and
// then, as long as Reach is called.
func (l *Limiter) Reach() (away, decides bool) {
	if l.err != nil {
		return false, false
	}
	away, _ = l.client.Exchange.Breaker(l).Ask(l)
	return away, away && l.Settings.FallsBack && l.client.Local.Decides(&l.Local, l.Clock())
}
