package dispatch

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A call is what all batches have in common, whatever they ask: its time, its attempts, and the pipeline that it is sent by.
type call struct {
	client   *Client
	limiters []*Limiter     // that it asks: the node of the first one gets the call
	script   *script.Script // of the last command
	present  atomic.Int32   // callers that are not cancelled
	started  time.Time      // when it was sent; the call timeout counts from here
	due      time.Time      // when its callers get an error at the latest
	stallAt  time.Time      // when its queue stops waiting for it
	attempts script.Attempts
	args     []any // memory for the arguments of cmd
	cmd      script.Command
	shared   *script.Command  // its command if it shares that, else nil
	place    int              // of its first limiter in the shared command
	alone    bool             // it must not share its command
	state    batchState       // guarded by the mutex of its queue or set
	breaker  *breaker.Breaker // of the node or the limiter that it is sent to
}

// A sender is a batch of any kind.
type sender interface {
	pipeline.Batch
	common() *call
	decideAway() bool                     // completes it in the process if its node is away
	retryDirect(last error)               // repeats its call outside the pipeline
	fail(err error)                       // completes it with an error
	plain() bool                          // it is likely to need plain grants only
	manyArgs(args []any, now int64) []any // appends its arguments in a shared command
}

func (b *call) common() *call { return b }

// begin starts the time of a call that asks some limiters. The breaker is that of their node.
func (b *call) begin(limiters []*Limiter, breaker *breaker.Breaker) {
	b.client, b.limiters, b.breaker, b.started = limiters[0].client, limiters, breaker, time.Now()
}

// limiter returns the only limiter, or the first one, whose node gets the call.
func (b *call) limiter() *Limiter { return b.limiters[0] }

// CanDecide reports whether the process can decide on the call.
func (b *call) CanDecide() bool { return canDecide(b.limiters...) }

// send sends a batch to the node of its limiter. It does not block: a reply or an error completes the batch.
func (c *Client) send(s sender) {
	b := s.common()
	if s.decideAway() {
		return
	}
	if !c.topology.Clustered() {
		if t := c.pipeline.Admit(s); t != nil {
			go t.Start()
		}
		return
	}
	go func() { // Node may make a call
		ctx, cancel := context.WithTimeout(context.Background(), c.callTimeout)
		defer cancel()
		late := time.AfterFunc(c.callTimeout, func() { s.fail(b.late()) })
		var pending *search
		if !c.topology.Found() {
			pending = newSearch(b, late)
			b.breaker.Begin(pending, b.limiter())
		}
		node, err := c.topology.Node(ctx, b.limiter().Key())
		if pending != nil {
			b.breaker.End(pending, err == nil)
		}
		if !late.Stop() {
			return
		}
		if err != nil {
			b.Begin(b.started.Add(c.callTimeout), time.Now().Add(pipeline.ShortestStall))
			if b.attempts.Again(err, false) {
				s.retryDirect(err)
			} else {
				s.fail(err)
			}
			return
		}
		p := c.pipelineTo(node)
		if b.breaker = &p.Breaker; s.decideAway() {
			return
		}
		if t := p.Admit(s); t != nil {
			t.Execute()
		}
	}()
}

// A search is a pending call that finds the node of a batch. It does not refer to the batch: NodeAway may come so late that
// the batch is complete and back in its pool.
type search struct {
	limiters []*Limiter  // that the batch asks
	late     *time.Timer // completes the batch with a timeout
}

func newSearch(b *call, late *time.Timer) *search { return &search{slices.Clone(b.limiters), late} }

// NodeAway completes the batch at once if the process can decide on its limiters.
func (s *search) NodeAway() {
	if canDecide(s.limiters...) && s.late.Stop() {
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

// The methods of pipeline.Batch that do not depend on what a batch asks.

// Started returns when the batch was sent.
func (b *call) Started() time.Time { return b.started }

// Cancelled reports whether all callers are cancelled, so that no permits are to be taken for them.
func (b *call) Cancelled() bool { return b.present.Load() == 0 }

// Breaker returns the breaker of the node.
func (b *call) Breaker() *breaker.Breaker { return b.breaker }

// Prober returns the limiter on whose behalf the node is probed.
func (b *call) Prober() breaker.Prober { return b.limiter() }

// Begin notes until when the batch may take.
func (b *call) Begin(due, stallAt time.Time) { b.due, b.stallAt = due, stallAt }

// sent returns the command.
func (b *call) sent() *script.Command {
	if b.shared != nil {
		return b.shared
	}
	return &b.cmd
}

// Err returns the error of the command.
func (b *call) Err() error { return b.sent().Err() }

// Missing notes that the server lacks the script.
func (b *call) Missing(err error) { b.attempts.End(err) }

// Script returns the script.
func (b *call) Script() *script.Script { return b.script }

// Load loads the script into the server.
func (b *call) Load(ctx context.Context) error {
	return b.client.topology.Load(ctx, b.script, b.limiter().Key())
}

// late returns the timeout error as of now.
func (b *call) late() error {
	return script.Late(min(time.Since(b.started).Round(time.Millisecond), b.client.callTimeout))
}

// head begins the arguments of another attempt, with the script's text instead of its SHA-1 if text is set.
func (b *call) head(text bool) []any {
	b.attempts.Begin(keys.Count * len(b.limiters))
	args := append(append(b.args[:0], b.script.Head(text)...), &b.attempts)
	for _, l := range b.limiters {
		args = append(args, l.arguments()...)
	}
	return args
}

// command makes the command of an attempt, with all its arguments.
func (b *call) command(ctx context.Context, args []any) redis.Cmder {
	b.args = args
	b.cmd = script.NewCommand(ctx, args)
	return &b.cmd
}

// reached tells the breaker how the call ended, and reports whether Redis was reached.
func (b *call) reached(err error) bool {
	if !script.Unreachable(err) {
		b.breaker.Answer(b.started, b.limiter())
		return true
	}
	if script.IsOfNode(err) {
		b.breaker.Fail(b.started)
	}
	return false
}

// maxDetached is how many batches of one queue or set may be detached at once.
const maxDetached = 3

// mayDetach reports whether a queue or set, which has detached so many batches, may go on without this one. It may not once
// the call timeout is over. The mutex of the queue or set is held.
func (b *call) mayDetach(detached int) bool {
	return b.state == batchSent && time.Since(b.started) < b.client.callTimeout && detached < maxDetached
}

// stall calls detach once the call has stalled (stallAt), unless the function that it returns was called before.
func (b *call) stall(detach func()) (stop func() bool) {
	if rest := time.Until(b.stallAt); rest > 0 {
		return time.AfterFunc(rest, detach).Stop
	}
	detach()
	return func() bool { return false }
}
