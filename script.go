package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Running Lua scripts, and turning server errors into Go errors. This file does not know what the scripts do.

// within makes one call to Redis for a limiter. It returns the reply, or an error when ctx ends or the call timeout is
// over. The Redis client cannot be made to stop waiting for a reply, so a late call goes on in its goroutine until its
// connection gives up. The end of the call is reported to the breaker of the limiter's node.
func within[T any](ctx context.Context, l *Limiter, call func(context.Context) (T, error)) (T, error) {
	return withinRest(ctx, l, l.client.callTimeout, false, call)
}

// withinRest is within for a call that has begun before, with the time that is left. With orAway it also returns as
// soon as the node is found to be away.
func withinRest[T any](
	ctx context.Context, l *Limiter, rest time.Duration, orAway bool, call func(context.Context) (T, error),
) (T, error) {
	w := make(watched, 1)
	var away <-chan struct{}
	if orAway {
		away = w
	}
	return script.Await(ctx, l.client.callTimeout, rest, away, func(ctx context.Context) (T, error) {
		return watch(ctx, l, w, call)
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

// watch makes a call and registers it with the breaker of the limiter's node. Until the nodes of a cluster are found,
// finding them is registered as a call of its own.
func watch[T any](ctx context.Context, l *Limiter, w watched, call func(context.Context) (T, error)) (T, error) {
	c := l.client
	began, b := time.Now(), c.breakerTo(l)
	b.Begin(w, (*prober)(l))
	if !c.topology.Found() {
		if _, err := c.topology.Node(ctx, l.key()); err == nil {
			b.End(w, true)
			b.Answer(began, (*prober)(l))
			began, b = time.Now(), c.breakerTo(l)
			b.Begin(w, (*prober)(l))
		}
	}
	value, err := call(ctx)
	there := script.IsThere(err)
	b.End(w, there)
	switch {
	case there:
		b.Answer(began, (*prober)(l))
	case ctx.Err() == nil && !script.IsOfSlot(err):
		b.Fail(began)
	}
	return value, err
}
