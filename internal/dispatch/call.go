package dispatch

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// One call to Redis within its time: which breaker it belongs to, and how a node is probed.

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
	b.Begin(w, l)
	if !c.topology.Found() {
		if _, err := c.topology.Node(ctx, l.Key()); err == nil {
			b.End(w, true)
			b.Answer(began, l)
			began, b = time.Now(), c.breakerTo(l)
			b.Begin(w, l)
		}
	}
	value, err := call(ctx)
	there := script.IsThere(err)
	b.End(w, there)
	switch {
	case there:
		b.Answer(began, l)
	case ctx.Err() == nil && script.IsOfNode(err):
		b.Fail(began)
	}
	return value, err
}

// Timeout is how long one call may take.
func (l *Limiter) Timeout() time.Duration { return l.client.callTimeout }

// Back lets the waiting callers of all limiters with WithFallback ask again.
func (l *Limiter) Back() { l.client.wakeChosen(func(l *Limiter) bool { return l.settings.FallsBack }) }

// Probe makes one call that tells whether the node of b can be reached.
func (l *Limiter) Probe(b *breaker.Breaker) bool {
	check := l.WriteProbe
	if b == &l.client.pipeline.Breaker && l.client.topology.Clustered() {
		check = l.nodes
	}
	_, err := script.Await(context.Background(), l.client.callTimeout, l.client.callTimeout, nil, check)
	return script.IsThere(err)
}

// Refused reports whether the node of l refuses connections. It dials as the Redis client does, but once.
func (l *Limiter) Refused() bool {
	ctx, cancel := context.WithTimeout(context.Background(), l.client.callTimeout)
	defer cancel()
	return l.client.topology.Refuses(ctx, l.Key())
}

// WriteProbe makes one call that tells whether Redis could grant permits: it fails on a replica, too.
func (l *Limiter) WriteProbe(ctx context.Context) ([]int64, error) {
	return l.client.topology.Try(ctx, new(script.Attempts), protocol.ProbeScript, l.Keys())
}

// nodes is the topology probe of a cluster: it finds the node that serves l. It sends no command to that node, because
// another node may be the one that is away.
func (l *Limiter) nodes(ctx context.Context) ([]int64, error) {
	_, err := l.client.topology.Node(ctx, l.Key())
	return nil, err
}

// nodeBreaker returns the breaker for a batch of a queue. On a cluster, its node is found later. q.mu is held.
func (q *queue) nodeBreaker() *breaker.Breaker {
	if q.client.topology.Hidden() {
		return q.breakerOf()
	}
	return &q.client.pipeline.Breaker
}

// breakerTo returns the breaker for calls of l, and does not block. Each node has one, or each limiter if the Redis
// client does not show its nodes. A cluster whose nodes were not found yet has a single one.
func (c *Client) breakerTo(l *Limiter) *breaker.Breaker {
	if !c.topology.Hidden() {
		if node := c.topology.KnownNode(l.Key()); node != nil {
			return &c.pipelineTo(node).Breaker
		}
		return &c.pipeline.Breaker
	}
	q := c.enter(l)
	defer q.exit()
	return q.breakerOf()
}

// breakerOf returns the breaker of a queue whose batches have runs of their own: on a Ring that of the shard, else its
// own.
func (q *queue) breakerOf() *breaker.Breaker {
	if shard := q.client.topology.KnownNode(q.limiter.Key()); shard != nil {
		return &q.client.pipelineTo(shard).Breaker
	}
	return &q.breaker
}

// A Health is what is known, without a call, about reaching the node of a limiter.
type Health struct {
	Away    bool          // the node cannot be reached, or cannot grant permits
	Decides bool          // the process decides in its place
	Silence time.Duration // see silence
}

// Health returns the health of the node that serves l. It does not block. While the node is away, a probe starts in the
// background now and then, as long as Health is called.
func (l *Limiter) Health() (h Health) {
	if l.err != nil {
		return h
	}
	if h.Away, _ = l.client.breakerTo(l).Ask(l); h.Away {
		h.Decides = l.settings.FallsBack && l.client.localLimiters.Decides(&l.local, l.client.clock())
	}
	h.Silence = l.silence()
	return h
}
