package rratelimiter

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/breaker"
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
	if b == &l.client.pipeline.breaker && l.client.clustered() {
		check = l.nodes
	}
	_, err := await(context.Background(), l.client.callTimeout, l.client.callTimeout, nil, check)
	return isThere(err)
}

// isThere reports whether the end of a call shows that its node can be reached.
func isThere(err error) bool { return !unreachable(err) || isOfSlot(err) }

// writeProbe makes one call that tells whether Redis could grant permits: it fails on a replica, too.
func (l *Limiter) writeProbe(ctx context.Context) ([]int64, error) {
	return l.client.try(ctx, new(attempts), probeScript, l.keys())
}

// nodes is the topology probe of a cluster: it finds the node that serves l. It sends no command to that node, because
// another node may be the one that is away.
func (l *Limiter) nodes(ctx context.Context) ([]int64, error) {
	_, err := l.client.nodeOf(ctx, l.client.rdb.(*redis.ClusterClient), l)
	return nil, err
}

// breakerTo returns the breaker for calls of l, and does not block. Each node has one, or each limiter if the Redis
// client does not show its nodes. A cluster whose nodes were not found yet has a single one.
func (c *Client) breakerTo(l *Limiter) *breaker.Breaker {
	if cluster, ok := c.rdb.(*redis.ClusterClient); ok {
		if c.found.Load() { // from then on MasterForKey does not block
			if node, err := cluster.MasterForKey(context.Background(), l.key()); err == nil {
				return &c.pipelineTo(node).breaker
			}
		}
		return &c.pipeline.breaker
	}
	if c.pipeline.maxBatch > 1 {
		return &c.pipeline.breaker
	}
	q := c.enter(l)
	defer q.exit()
	return q.breakerOf()
}

// nodeOf returns the node of a cluster that serves l. It may make a call until nodes were found once.
func (c *Client) nodeOf(ctx context.Context, cluster *redis.ClusterClient, l *Limiter) (*redis.Client, error) {
	node, err := cluster.MasterForKey(ctx, l.key())
	if err == nil && !c.found.Load() {
		c.found.Store(true)
	}
	return node, err
}

// breakerOf returns the breaker of a queue whose batches have runs of their own: on a Ring that of the shard, else its
// own.
func (q *queue) breakerOf() *breaker.Breaker {
	if ring, ok := q.client.rdb.(*redis.Ring); ok {
		if shard, err := ring.GetShardClientForKey(q.limiter.key()); err == nil {
			return &q.client.pipelineTo(shard).breaker
		}
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
