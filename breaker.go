package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Which breaker a call belongs to, and how a breaker's node is probed.

// A prober is a limiter on whose behalf a breaker probes its node.
type prober Limiter

// Timeout is how long one call may take.
func (p *prober) Timeout() time.Duration { return p.client.callTimeout }

// Back lets the waiting callers of all limiters with WithFallback ask again.
func (p *prober) Back() { p.client.wakeChosen(func(l *Limiter) bool { return l.settings.fallsBack }) }

// Probe makes one call that tells whether the node of b can be reached.
func (p *prober) Probe(b *breaker.Breaker) bool {
	l := (*Limiter)(p)
	check := l.writeProbe
	if b == &l.client.pipeline.breaker && l.client.topology.Clustered() {
		check = l.nodes
	}
	_, err := script.Await(context.Background(), l.client.callTimeout, l.client.callTimeout, nil, check)
	return script.IsThere(err)
}

// writeProbe makes one call that tells whether Redis could grant permits: it fails on a replica, too.
func (l *Limiter) writeProbe(ctx context.Context) ([]int64, error) {
	return l.client.topology.Try(ctx, new(script.Attempts), protocol.ProbeScript, l.keys())
}

// nodes is the topology probe of a cluster: it finds the node that serves l. It sends no command to that node, because
// another node may be the one that is away.
func (l *Limiter) nodes(ctx context.Context) ([]int64, error) {
	_, err := l.client.topology.Node(ctx, l.key())
	return nil, err
}

// breakerTo returns the breaker for calls of l, and does not block. Each node has one, or each limiter if the Redis
// client does not show its nodes. A cluster whose nodes were not found yet has a single one.
func (c *Client) breakerTo(l *Limiter) *breaker.Breaker {
	if !c.topology.Hidden() {
		if node := c.topology.KnownNode(l.key()); node != nil {
			return &c.pipelineTo(node).breaker
		}
		return &c.pipeline.breaker
	}
	q := c.enter(l)
	defer q.exit()
	return q.breakerOf()
}

// breakerOf returns the breaker of a queue whose batches have runs of their own: on a Ring that of the shard, else its
// own.
func (q *queue) breakerOf() *breaker.Breaker {
	if shard := q.client.topology.KnownNode(q.limiter.key()); shard != nil {
		return &q.client.pipelineTo(shard).breaker
	}
	return &q.breaker
}

// away reports whether the node that serves l is known to be away.
func (l *Limiter) away() bool {
	if l.err != nil {
		return false
	}
	broken, _ := l.client.breakerTo(l).Ask((*prober)(l))
	return broken
}
