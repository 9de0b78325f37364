package exchange

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Nodes: which pipeline and which breaker a call belongs to, and how a node is probed.

// longestRest is how long an unused pipeline of a cluster or Ring is kept, so that its breaker and
// its usual time last between calls.
const longestRest = time.Minute

// nodes holds the pipelines to the nodes of a cluster or the shards of a Ring.
type nodes struct {
	mu  sync.Mutex // guards the field below; locked before the mutex of a pipeline
	all map[*redis.Client]*node
}

// A node is a node of a cluster, or a shard of a Ring, of whose pipeline only the breaker is used.
type node struct {
	*pipeline.Pipeline
	used time.Time // last use; guarded by nodes.mu
}

// pipelineTo returns the pipeline to a node. Pipelines that were not used for longestRest are
// removed when a new one is made: their nodes may have left.
func (x *Exchange) pipelineTo(to *redis.Client) *pipeline.Pipeline {
	x.nodes.mu.Lock()
	defer x.nodes.mu.Unlock()
	now := time.Now()
	n := x.nodes.all[to]
	if n == nil {
		for other, n := range x.nodes.all {
			inFlight, stalled, queued := n.Load()
			if inFlight+stalled+queued == 0 && now.Sub(n.used) > longestRest {
				delete(x.nodes.all, other)
			}
		}
		n = &node{Pipeline: x.newPipeline(to)}
		if x.nodes.all == nil {
			x.nodes.all = map[*redis.Client]*node{}
		}
		x.nodes.all[to] = n
	}
	n.used = now
	return n.Pipeline
}

// newPipeline returns a pipeline to a node.
func (x *Exchange) newPipeline(to script.Redis) *pipeline.Pipeline {
	runs, jobs := x.tuning.RunsInFlight, x.tuning.JobsInOne
	if x.topology.Hidden() { // each call has a run of its own, and the number of runs is not limited
		runs, jobs = math.MaxInt, 1
	}
	return pipeline.New(to, x.timeout, x.tuning.Patience, runs, jobs)
}

// Load returns how many runs of the pipeline to the server have a slot, how many released theirs,
// and how many calls wait for one, for tests.
func (x *Exchange) Load() (inFlight, stalled, queued int) { return x.server.Load() }

// ServerBreaker returns the breaker of the pipeline to the server, for tests.
func (x *Exchange) ServerBreaker() *breaker.Breaker { return &x.server.Breaker }

// Breaker returns the breaker for calls to a target, and does not block. Each node has one, or each
// target if the Redis client does not show its nodes. A cluster whose nodes were not found yet has
// a single one.
func (x *Exchange) Breaker(t Target) *breaker.Breaker {
	if n := x.topology.KnownNode(t.Key()); n != nil {
		return &x.pipelineTo(n).Breaker
	}
	if x.topology.Hidden() {
		return t.Breaker()
	}
	return &x.server.Breaker
}

// firstBreaker is Breaker for a call that is about to be sent. On a cluster, find looks for its
// node.
func (x *Exchange) firstBreaker(t Target) *breaker.Breaker {
	if x.topology.Hidden() {
		return x.Breaker(t)
	}
	return &x.server.Breaker
}

// find finds the node of a call on a cluster, and executes a run of its pipeline if there is one.
func (x *Exchange) find(c *Call) {
	ctx, cancel := context.WithTimeout(context.Background(), x.timeout)
	defer cancel()
	late := time.AfterFunc(x.timeout, c.Late)
	var pending *search
	if !x.topology.Found() {
		pending = newSearch(c, late)
		c.breaker.Begin(pending, c.targets[0])
	}
	to, err := x.topology.Node(ctx, c.targets[0].Key())
	if pending != nil {
		c.breaker.End(pending, err == nil)
	}
	if !late.Stop() {
		return
	}
	if err != nil {
		c.Begun(c.started.Add(x.timeout), time.Now().Add(pipeline.ShortestStall))
		c.proceed(err, false)
		return
	}
	p := x.pipelineTo(to)
	if c.breaker = &p.Breaker; c.decided() {
		return
	}
	if t := p.Admit(c, false); t != nil {
		t.Execute()
	}
}

// A search is a pending call that finds the node of another call. It does not refer to that:
// NodeAway may come so late that its memory is used again.
type search struct {
	targets []Target
	late    *time.Timer // ends the call with a timeout
}

func newSearch(c *Call, late *time.Timer) *search { return &search{slices.Clone(c.targets), late} }

// NodeAway ends the call at once if the process can decide on its targets.
func (s *search) NodeAway() {
	if canDecide(s.targets) && s.late.Stop() {
		s.late.Reset(0)
	}
}

// Sent returns false: the call has no node yet.
func (*search) Sent() bool { return false }

// Probe makes one call that tells whether the node of b, which is the breaker of calls to t, can be
// reached.
func (x *Exchange) Probe(t Target, b *breaker.Breaker) bool {
	check := func(ctx context.Context) ([]int64, error) { return x.WriteProbe(ctx, t) }
	if b == &x.server.Breaker && x.topology.Clustered() {
		// It finds the node of t, and sends no command to it, because another node may be the one
		// that is away.
		check = func(ctx context.Context) ([]int64, error) {
			_, err := x.topology.Node(ctx, t.Key())
			return nil, err
		}
	}
	_, err := script.Await(context.Background(), x.timeout, x.timeout, nil, check)
	return script.IsThere(err)
}

// WriteProbe makes one call that tells whether Redis could grant permits: it fails on a replica,
// too.
func (x *Exchange) WriteProbe(ctx context.Context, t Target) ([]int64, error) {
	return x.topology.Try(ctx, new(script.Attempts), protocol.ProbeScript, t.Keys())
}

// Refused reports whether the node of a target refuses a connection, and the Redis client has no
// idle one.
func (x *Exchange) Refused(t Target) bool {
	ctx, cancel := context.WithTimeout(context.Background(), x.timeout)
	defer cancel()
	return x.topology.Refuses(ctx, protocol.ProbeScript, t.Keys())
}
