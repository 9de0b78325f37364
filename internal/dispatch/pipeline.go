package dispatch

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Pipelines to nodes: batches of all limiters on one node that are sent at the same time share a run, which is one
// Redis pipeline. A few runs are in flight at once. One that stalls delays only its own callers.

const (
	MaxRuns    = 4   // runs of a pipeline that are in flight at once, each in a slot
	MaxStalled = 4   // stalled runs of a pipeline that released their slot; more of them keep it
	MaxBatch   = 256 // batches of a run

	// A run has stalled once it takes longer than ShortestStall and longer than stallFactor times its usual time. That
	// multiple counts as no more than a quarter of the call timeout, or twice the usual time if that is more. A caller
	// that arrives when a server begins to hang may wait for so much longer than the call timeout.
	ShortestStall = 20 * time.Millisecond
	stallFactor   = 8
)

// A pipeline sends the batches for one node.
type pipeline struct {
	node        script.Redis
	timeout     time.Duration // of a batch, from when it is sent
	maxInFlight int           // runs that may hold a slot
	maxBatch    int           // batches in a run
	patient     time.Duration // a run that takes no longer has not stalled
	used        time.Time     // last use; guarded by Client.pipelinesMu

	mu       sync.Mutex    // guards the fields below, but breaker; and the last fields of each run
	waiting  []*batch      // for a slot
	inFlight int           // runs that hold a slot
	stalled  int           // runs in flight that released theirs
	usual    time.Duration // smoothed time of a run
	spare    []*run        // for reuse, at most MaxRuns

	breaker breaker.Breaker // in the own pipeline of a cluster client: the breaker of finding nodes
}

// newPipeline returns a pipeline to a node.
func (c *Client) newPipeline(node script.Redis) *pipeline {
	return &pipeline{
		node: node, timeout: c.callTimeout,
		maxInFlight: c.tuning.RunsInFlight, maxBatch: c.tuning.BatchesInOne, patient: c.tuning.Patience,
	}
}

// send sends f to the node of its limiter. It does not block: a reply or an error arrives by f.complete.
func (c *Client) send(b *batch) {
	if b.breaker = &c.pipeline.breaker; c.topology.Hidden() {
		b.breaker = b.queue.breakerOf()
	}
	if b.bypass() {
		return
	}
	if !c.topology.Clustered() {
		if t := c.pipeline.admit(b); t != nil {
			go t.start()
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
			b.due, b.stallAt = b.started.Add(c.callTimeout), time.Now().Add(ShortestStall)
			if b.attempts.Again(err, false) {
				b.retryDirect(err)
			} else {
				b.complete(protocol.AcquireReply{Attempts: 1}, err)
			}
			return
		}
		p := c.pipelineTo(node)
		if b.breaker = &p.breaker; b.bypass() {
			return
		}
		if t := p.admit(b); t != nil {
			t.run()
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
func (c *Client) pipelineTo(node *redis.Client) *pipeline {
	c.pipelinesMu.Lock()
	defer c.pipelinesMu.Unlock()
	now := time.Now()
	l := c.pipelines[node]
	if l == nil {
		for other, l := range c.pipelines {
			l.mu.Lock()
			if l.inFlight+l.stalled+len(l.waiting) == 0 && now.Sub(l.used) > longestRest {
				delete(c.pipelines, other)
			}
			l.mu.Unlock()
		}
		l = c.newPipeline(node)
		c.pipelines[node] = l
	}
	l.used = now
	return l
}

// admit takes f, and returns a run for the caller to execute if a slot is free; else nil.
func (l *pipeline) admit(b *batch) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, b)
	return l.load()
}

// load puts waiting batches into a run if a slot is free; else it returns nil. l.mu is held.
func (l *pipeline) load() *run {
	if len(l.waiting) == 0 || l.inFlight >= l.maxInFlight {
		return nil
	}
	if l.dropCancelled(); len(l.waiting) == 0 {
		return nil
	}
	l.inFlight++
	var t *run
	if last := len(l.spare) - 1; last >= 0 {
		t, l.spare = l.spare[last], l.spare[:last]
	} else {
		t = &run{pipeline: l, expired: make(chan struct{})}
		t.start = t.run
	}
	n := min(len(l.waiting), l.maxBatch)
	t.batches = append(t.batches[:0], l.waiting[:n]...)
	l.waiting = slices.Delete(l.waiting, 0, n)
	t.breaker = t.batches[0].breaker
	t.started = time.Now()
	t.over, t.away = false, false
	t.bound = &bound{context.Background(), t, t.started.Add(l.timeout), t.expired}
	t.stall = min(max(l.patient, min(stallFactor*l.usual, max(2*l.usual, l.timeout/4))), t.left(t.batches))
	if t.timer == nil {
		t.timer = time.AfterFunc(t.stall, t.overdue)
	} else {
		t.timer.Reset(t.stall)
	}
	return t
}

// dropCancelled removes the waiting batches whose callers are all cancelled, so that no permits are taken for them. It
// completes them with script.ErrUnsent in the background. l.mu is held.
func (l *pipeline) dropCancelled() {
	gone := func(b *batch) bool { return b.present.Load() == 0 }
	if !slices.ContainsFunc(l.waiting[:min(len(l.waiting), l.maxBatch)], gone) {
		return
	}
	var dropped []*batch
	l.waiting = slices.DeleteFunc(l.waiting, func(b *batch) bool {
		if !gone(b) {
			return false
		}
		dropped = append(dropped, b)
		return true
	})
	go func() {
		for _, b := range dropped {
			b.complete(protocol.AcquireReply{}, script.ErrUnsent)
		}
	}()
}

// A run is one Redis pipeline: commands of batches, and their replies.
type run struct {
	pipeline   *pipeline
	start      func() // the method run: go start() does not allocate
	batches    []*batch
	unanswered []*batch      // batches without a reply
	timer      *time.Timer   // calls overdue
	expired    chan struct{} // closed once all batches are complete though the commands are not
	bound      *bound
	breaker    *breaker.Breaker // of its batches
	started    time.Time
	stall      time.Duration // the run has stalled if it takes longer

	// The fields below are guarded by pipeline.mu.
	stalled   bool // it takes too long, or its node is away
	released  bool // it released its slot
	over      bool // its commands have ended; true until the run is used again
	away      bool // its node is away
	abandoned bool // all batches are complete though the commands are not
}

// A bound is the context of a run's commands. It ends with run.expired. A run that is used again gets a new one, so
// that a late call of NodeAway can be told from one for the current use.
type bound struct {
	context.Context
	run      *run
	deadline time.Time
	expired  <-chan struct{}
}

func (b *bound) Deadline() (time.Time, bool) { return b.deadline, true }
func (b *bound) Done() <-chan struct{}       { return b.expired }

func (b *bound) Err() error {
	select {
	case <-b.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// run executes t, and then further runs while batches wait for its slot.
func (t *run) run() {
	for t != nil {
		t = t.execute()
	}
}

// execute executes t once. It returns the run to execute next in the same slot; nil if there is none.
func (t *run) execute() (next *run) {
	l := t.pipeline
	t.breaker.Begin(t.bound, t.batches[0].queue.limiter)
	t.carry()
	t.breaker.End(t.bound, slices.ContainsFunc(t.batches, func(b *batch) bool { return script.IsThere(b.cmd.Err()) }))

	l.mu.Lock()
	t.over = true
	regular := !t.stalled
	early := regular && len(t.batches) == 1
	switch {
	case t.released:
		l.stalled--
	case early: // a batch that is sent while this one completes needs the slot
		l.inFlight--
	}
	l.usual += (time.Since(t.started) - l.usual) / 8
	l.mu.Unlock()
	for i, b := range t.batches {
		b.handleReply(regular)
		t.batches[i] = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !early && !t.released {
		l.inFlight--
	}
	if regular && t.timer.Stop() && len(l.spare) < MaxRuns { // else the timer may still fire, or enough are kept
		l.spare = append(l.spare, t)
	}
	return l.load()
}

// carry sends commands until each batch has a reply. If the server lacks the script, the first command of the next
// round carries the script's text; those behind it find the script then, unless it is removed meanwhile.
func (t *run) carry() {
	t.unanswered = append(t.unanswered[:0], t.batches...)
	for _, b := range t.batches {
		b.due, b.stallAt = b.started.Add(t.pipeline.timeout), t.started.Add(t.stall)
	}
	for text := false; len(t.unanswered) > 0; text = true {
		for i, b := range t.unanswered {
			b.command(t.bound, text && i == 0)
		}
		t.exchange()
		t.unanswered = slices.DeleteFunc(t.unanswered, func(b *batch) bool {
			err := b.cmd.Err()
			if err == nil || !redis.HasErrorPrefix(err, "NOSCRIPT") {
				return true
			}
			b.attempts.End(err)
			return false
		})
	}
}

// exchange sends the commands of the batches without a reply, and reads the replies. Errors are stored in each command.
func (t *run) exchange() {
	if len(t.unanswered) == 1 {
		_ = t.pipeline.node.Process(t.bound, &t.unanswered[0].cmd)
		return
	}
	pipe := t.pipeline.node.Pipeline()
	for _, b := range t.unanswered {
		_ = pipe.Process(t.bound, &b.cmd)
	}
	_, _ = pipe.Exec(t.bound)
}

// left returns the time until the first of some batches is late. The timeout of a batch counts from when it is sent,
// not from when it gets a slot.
func (t *run) left(batches []*batch) time.Duration {
	first := batches[0].started
	for _, b := range batches[1:] {
		if b.started.Before(first) {
			first = b.started
		}
	}
	return max(t.pipeline.timeout-time.Since(first), 0)
}

// NodeAway completes at once the batches on which the process can decide, without waiting for the commands.
func (b *bound) NodeAway() {
	t := b.run
	t.pipeline.mu.Lock()
	defer t.pipeline.mu.Unlock()
	if t.bound == b && !t.over && !t.abandoned {
		t.away = true
		t.timer.Reset(0)
	}
}

// overdue is called by the timer when the run stalls, when its node is found to be away, and when batches of it are
// late. The first call releases the slot, unless MaxStalled runs have done so and this one is not late yet, and lets
// the limiters send their next batches. Each call completes the batches that are late or, if the node is away, that the
// process can decide on. The same holds for the batches that wait for a slot if the node is away; if the run is late
// and no later call was answered, all of these are completed.
func (t *run) overdue() {
	l := t.pipeline
	l.mu.Lock()
	if t.over || t.abandoned {
		l.mu.Unlock()
		return
	}
	late := t.left(t.batches) == 0
	ends := func(b *batch) bool {
		return time.Since(b.started) >= l.timeout ||
			t.away && canDecide(b.queue.limiter)
	}
	t.stalled = true
	var next *run
	var behind []*batch
	if late && !t.released && l.breaker.Silent(t.batches[0].started) {
		behind, l.waiting = l.waiting, nil
	} else if t.away {
		l.waiting = slices.DeleteFunc(l.waiting, func(b *batch) bool {
			ends := ends(b)
			if ends {
				behind = append(behind, b)
			}
			return ends
		})
	}
	if !t.released && (late || l.stalled < MaxStalled) {
		t.released = true
		l.stalled++
		l.inFlight--
		next = l.load()
	}
	var ended, rest []*batch
	for _, b := range t.batches {
		if ends(b) {
			ended = append(ended, b)
		} else {
			rest = append(rest, b)
		}
	}
	if t.abandoned = len(rest) == 0; !t.abandoned {
		t.timer.Reset(t.left(rest))
	}
	l.mu.Unlock()
	if next != nil {
		go next.start()
	}
	for _, b := range append(ended, behind...) {
		b.complete(protocol.AcquireReply{Attempts: b.attempts.Count()}, b.late())
	}
	if len(rest) == 0 {
		close(t.expired) // after complete: the end of this context must not be taken for the end of a caller's
	}
	for _, b := range rest {
		b.queue.detach(b)
	}
}
