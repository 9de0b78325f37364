package dispatch

import (
	"context"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Which pipeline a batch is sent by, and what it tells a batch.

// send sends b to the node of its limiter. It does not block: a reply or an error arrives by b.complete.
func (c *Client) send(b *batch) {
	if b.breaker = &c.pipeline.Breaker; c.topology.Hidden() {
		b.breaker = b.queue.breakerOf()
	}
	if b.bypass() {
		return
	}
	if !c.topology.Clustered() {
		if t := c.pipeline.Admit(b); t != nil {
			go t.Start()
		}
		return
	}
	go func() { // Node may make a call
		ctx, cancel := context.WithTimeout(context.Background(), c.callTimeout)
		defer cancel()
		late := time.AfterFunc(c.callTimeout, func() { b.complete(protocol.AcquireReply{Attempts: 1}, b.late()) })
		searching := !c.topology.Found()
		if searching {
			b.breaker.Begin(search{b, late}, b.queue.limiter)
		}
		node, err := c.topology.Node(ctx, b.queue.limiter.Key())
		if searching {
			b.breaker.End(search{b, late}, err == nil)
		}
		if !late.Stop() {
			return
		}
		if err != nil {
			b.due, b.stallAt = b.started.Add(c.callTimeout), time.Now().Add(pipeline.ShortestStall)
			if b.attempts.Again(err, false) {
				b.retryDirect(err)
			} else {
				b.complete(protocol.AcquireReply{Attempts: 1}, err)
			}
			return
		}
		p := c.pipelineTo(node)
		if b.breaker = &p.Breaker; b.bypass() {
			return
		}
		if t := p.Admit(b); t != nil {
			t.Execute()
		}
	}()
}

// A search is a pending call that finds the node of a batch.
type search struct {
	batch *batch
	late  *time.Timer // completes the batch with a timeout
}

// NodeAway completes the batch at once if the process can decide on its limiter.
func (s search) NodeAway() {
	if l := s.batch.queue.limiter; canDecide(l) && s.late.Stop() {
		s.late.Reset(0)
	}
}

// longestRest is how long an unused pipeline of a cluster or Ring is kept, so that its breaker and its usual time last
// between calls.
const longestRest = time.Minute

// pipelineTo returns the pipeline to a node of a cluster, or that of a Ring's shard, of which only the breaker is used.
// Pipelines that were not used for longestRest are removed when a new one is made: their nodes may have left.
func (c *Client) pipelineTo(node *redis.Client) *pipeline.Pipeline {
	c.pipelinesMu.Lock()
	defer c.pipelinesMu.Unlock()
	now := time.Now()
	to := c.pipelines[node]
	if to == nil {
		for other, to := range c.pipelines {
			inFlight, stalled, queued := to.Load()
			if inFlight+stalled+queued == 0 && now.Sub(to.used) > longestRest {
				delete(c.pipelines, other)
			}
		}
		to = &nodePipeline{Pipeline: c.newPipeline(node)}
		c.pipelines[node] = to
	}
	to.used = now
	return to.Pipeline
}

// A nodePipeline is the pipeline to a node of a cluster or a shard of a Ring.
type nodePipeline struct {
	*pipeline.Pipeline
	used time.Time // last use; guarded by Client.pipelinesMu
}

// newPipeline returns a pipeline to a node.
func (c *Client) newPipeline(node script.Redis) *pipeline.Pipeline {
	runs, batches := c.tuning.RunsInFlight, c.tuning.BatchesInOne
	if c.topology.Hidden() { // each batch has a run of its own, and the number of runs is not limited
		runs, batches = math.MaxInt, 1
	}
	return pipeline.New(node, c.callTimeout, c.tuning.Patience, runs, batches)
}

// The methods of pipeline.Batch.

// Started returns when b was sent.
func (b *batch) Started() time.Time { return b.started }

// Cancelled reports whether all callers of b are cancelled, so that no permits are to be taken for them.
func (b *batch) Cancelled() bool { return b.present.Load() == 0 }

// CanDecide reports whether the process can decide on b.
func (b *batch) CanDecide() bool { return canDecide(b.queue.limiter) }

// Breaker returns the breaker of the node.
func (b *batch) Breaker() *breaker.Breaker { return b.breaker }

// Prober returns the limiter on whose behalf the node is probed.
func (b *batch) Prober() breaker.Prober { return b.queue.limiter }

// Begin notes until when b may take.
func (b *batch) Begin(due, stallAt time.Time) { b.due, b.stallAt = due, stallAt }

// Err returns the error of the command.
func (b *batch) Err() error { return b.cmd.Err() }

// Missing notes that the server lacks the script.
func (b *batch) Missing(err error) { b.attempts.End(err) }

// Load loads the script into the server.
func (b *batch) Load(ctx context.Context) error {
	return b.queue.client.topology.Load(ctx, protocol.AcquireScript, b.queue.limiter.Key())
}

// Late completes b with a timeout.
func (b *batch) Late() { b.complete(protocol.AcquireReply{Attempts: b.attempts.Count()}, b.late()) }

// Stalled lets the queue send its next batch.
func (b *batch) Stalled() { b.queue.detach(b) }

// Unsent completes b, which nobody waits for.
func (b *batch) Unsent() { b.complete(protocol.AcquireReply{}, script.ErrUnsent) }
