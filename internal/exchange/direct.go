package exchange

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Calls that no pipeline carries: each has a timeout, and is registered with the breaker of its
// node.

// Within makes one call to Redis for a target. It returns the reply, or an error when ctx ends or
// the call timeout is over. The Redis client cannot be made to stop waiting for a reply, so a late
// call goes on in its goroutine until its connection gives up. The end of the call is reported to
// the breaker of the target's node.
func Within[T any](ctx context.Context, x *Exchange, t Target, call func(context.Context) (T, error)) (T, error) {
	return withinRest(ctx, x, t, x.timeout, false, call)
}

// withinRest is Within for a call that has begun before, with the time that is left. With orAway it
// also returns as soon as the node is found to be away.
func withinRest[T any](
	ctx context.Context, x *Exchange, t Target, rest time.Duration, orAway bool, call func(context.Context) (T, error),
) (T, error) {
	w := make(watched, 1)
	var away <-chan struct{}
	if orAway {
		away = w
	}
	return script.Await(ctx, x.timeout, rest, away, func(ctx context.Context) (T, error) {
		return watch(ctx, x, t, w, call)
	})
}

// A watched is a pending call. It gets a value when its node is found to be away.
type watched chan struct{}

func (w watched) NodeAway() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Sent returns false, since it is not known whether the call was written.
func (watched) Sent() bool { return false }

// watch makes a call and registers it with the breaker of the target's node. Until the nodes of a
// cluster are found, finding them is registered as a call of its own.
func watch[T any](
	ctx context.Context, x *Exchange, t Target, w watched, call func(context.Context) (T, error),
) (T, error) {
	began, b := time.Now(), x.Breaker(t)
	b.Begin(w, t)
	if !x.topology.Found() {
		if _, err := x.topology.Node(ctx, t.Key()); err == nil {
			b.End(w, true)
			b.Answer(began, t)
			began, b = time.Now(), x.Breaker(t)
			b.Begin(w, t)
		}
	}
	value, err := call(ctx)
	there := script.IsThere(err)
	b.End(w, there)
	switch {
	case there:
		b.Answer(began, t)
	case ctx.Err() == nil && script.IsOfNode(err):
		b.Fail(began)
	}
	return value, err
}
