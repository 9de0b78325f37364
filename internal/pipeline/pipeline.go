// Package pipeline sends batches to a node: those that are sent at the same time share a run, which is one Redis
// pipeline. A few runs are in flight at once. One that stalls delays only its own batches. It does not know what a batch
// is for.
package pipeline

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

const (
	MaxRuns    = 4   // runs of a pipeline that are in flight at once, each in a slot
	MaxStalled = 4   // stalled runs of a pipeline that released their slot; more of them keep it
	MaxBatch   = 256 // batches of a run

	// A run has stalled once it takes longer than ShortestStall and longer than stallFactor times its usual time. That
	// multiple counts as no more than a quarter of the call timeout, or twice the usual time if that is more. A caller
	// that arrives when a server begins to hang may wait for the call timeout and this time.
	ShortestStall = 20 * time.Millisecond
	stallFactor   = 8
)

// A Batch is one call of a script, on behalf of some callers. A pipeline calls Started, Cancelled, CanDecide and Breaker
// with its own mutex held, and the other methods without it.
type Batch interface {
	Started() time.Time        // when it was sent; its timeout counts from here
	Cancelled() bool           // nobody waits for it any more
	CanDecide() bool           // the process can decide in the place of its node
	Breaker() *breaker.Breaker // of its node
	Prober() breaker.Prober

	// Begin is called when its run begins: its callers get an error at due at the latest, and nothing waits for it from
	// stallAt on.
	Begin(due, stallAt time.Time)
	// Command makes the command; with text it carries the script's text instead of its SHA-1. It may serve some of the
	// batches behind, the first ones, whose Command is not called then: it returns how many.
	Command(ctx context.Context, text bool, behind []Batch) (cmd redis.Cmder, served int)
	Err() error        // of the last command
	Missing(err error) // the server lacks the script; the command is made again
	Script() *script.Script
	Load(ctx context.Context) error // loads the script into the server
	Done(regular bool)              // the last command has ended; regular: the run never stalled
	Late()                          // its time is over, or its node is away
	Stalled()                       // its run has stalled
	Unsent()                        // it is not sent, since it is cancelled
}

// A Pipeline sends the batches for one node.
type Pipeline struct {
	Breaker breaker.Breaker // of the node

	node        script.Redis
	timeout     time.Duration // of a batch, from when it is sent
	maxInFlight int           // runs that may hold a slot
	maxBatch    int           // batches in a run
	patient     time.Duration // a run that takes no longer has not stalled

	mu       sync.Mutex    // guards the fields below, and the last fields of each run
	waiting  []Batch       // for a slot
	inFlight int           // runs that hold a slot
	stalled  int           // runs in flight that released theirs
	usual    time.Duration // smoothed time of a run
	spare    []*Run        // for reuse, at most MaxRuns
}

// New returns a pipeline to a node, for batches with a timeout. Runs that take no longer than patient have not stalled.
func New(node script.Redis, timeout, patient time.Duration, runs, batches int) *Pipeline {
	return &Pipeline{node: node, timeout: timeout, maxInFlight: runs, maxBatch: batches, patient: patient}
}

// Load returns how many runs hold a slot, how many released theirs, and how many batches wait for one.
func (p *Pipeline) Load() (inFlight, stalled, queued int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight, p.stalled, len(p.waiting)
}

// Admit takes a batch, and returns a run for the caller to execute if a slot is free; else nil.
func (p *Pipeline) Admit(b Batch) *Run {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, b)
	return p.load()
}

// load puts waiting batches into a run if a slot is free; else it returns nil. p.mu is held.
func (p *Pipeline) load() *Run {
	if len(p.waiting) == 0 || p.inFlight >= p.maxInFlight {
		return nil
	}
	if p.dropCancelled(); len(p.waiting) == 0 {
		return nil
	}
	p.inFlight++
	var t *Run
	if last := len(p.spare) - 1; last >= 0 {
		t, p.spare = p.spare[last], p.spare[:last]
	} else {
		t = &Run{pipeline: p, expired: make(chan struct{})}
		t.Start = t.Execute
	}
	n := min(len(p.waiting), p.maxBatch)
	t.batches = append(t.batches[:0], p.waiting[:n]...)
	p.waiting = slices.Delete(p.waiting, 0, n)
	t.breaker = t.batches[0].Breaker()
	t.started = time.Now()
	t.over, t.away = false, false
	t.bound = &bound{context.Background(), t, t.started.Add(p.timeout), t.expired}
	t.stall = min(max(p.patient, min(stallFactor*p.usual, max(2*p.usual, p.timeout/4))), t.left(t.batches))
	if t.timer == nil {
		t.timer = time.AfterFunc(t.stall, t.overdue)
	} else {
		t.timer.Reset(t.stall)
	}
	return t
}

// dropCancelled removes the waiting batches whose callers are all cancelled, so that no permits are taken for them. It
// tells them so in the background. p.mu is held.
func (p *Pipeline) dropCancelled() {
	gone := func(b Batch) bool { return b.Cancelled() }
	if !slices.ContainsFunc(p.waiting[:min(len(p.waiting), p.maxBatch)], gone) {
		return
	}
	var dropped []Batch
	p.waiting = slices.DeleteFunc(p.waiting, func(b Batch) bool {
		if !gone(b) {
			return false
		}
		dropped = append(dropped, b)
		return true
	})
	go func() {
		for _, b := range dropped {
			b.Unsent()
		}
	}()
}

// A Run is one Redis pipeline: commands of batches, and their replies.
type Run struct {
	pipeline   *Pipeline
	Start      func() // the method Execute: go Start() does not allocate
	batches    []Batch
	unanswered []Batch       // batches without a reply
	cmds       []redis.Cmder // their commands
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
	run      *Run
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

// Execute executes t, and then further runs while batches wait for its slot.
func (t *Run) Execute() {
	for t != nil {
		t = t.execute()
	}
}

// execute executes t once. It returns the run to execute next in the same slot; nil if there is none.
func (t *Run) execute() (next *Run) {
	p := t.pipeline
	t.breaker.Begin(t.bound, t.batches[0].Prober())
	t.carry()
	t.breaker.End(t.bound, slices.ContainsFunc(t.batches, func(b Batch) bool { return script.IsThere(b.Err()) }))

	p.mu.Lock()
	t.over = true
	regular := !t.stalled
	early := regular && len(t.batches) == 1
	switch {
	case t.released:
		p.stalled--
	case early: // a batch that is sent while this one completes needs the slot
		p.inFlight--
	}
	p.usual += (time.Since(t.started) - p.usual) / 8
	p.mu.Unlock()
	for i, b := range t.batches {
		b.Done(regular)
		t.batches[i] = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !early && !t.released {
		p.inFlight--
	}
	if regular && t.timer.Stop() && len(p.spare) < MaxRuns { // else the timer may still fire, or enough are kept
		p.spare = append(p.spare, t)
	}
	return p.load()
}

// carry sends commands until each batch has a reply. If the server lacks the script even after it was loaded, the first
// command of each further round carries the script's text; those behind it find the script then, unless it is removed
// meanwhile.
func (t *Run) carry() {
	t.unanswered = append(t.unanswered[:0], t.batches...)
	for _, b := range t.batches {
		b.Begin(b.Started().Add(t.pipeline.timeout), t.started.Add(t.stall))
	}
	script.Supply(t.loadScripts, func(text bool) bool {
		t.cmds = t.cmds[:0]
		for i := 0; i < len(t.unanswered); i++ {
			cmd, served := t.unanswered[i].Command(t.bound, text && i == 0, t.unanswered[i+1:])
			t.cmds = append(t.cmds, cmd)
			i += served
		}
		if len(t.cmds) == 1 {
			// Called here, and not a frame deeper: else the stack of each run's goroutine must grow for it, which takes a
			// tenth of the time of a process with one hot limiter.
			_ = t.pipeline.node.Process(t.bound, t.cmds[0])
		} else {
			t.exchange()
		}
		t.unanswered = slices.DeleteFunc(t.unanswered, func(b Batch) bool {
			err := b.Err()
			if !script.Lacking(err) {
				return true
			}
			b.Missing(err)
			return false
		})
		return len(t.unanswered) > 0
	})
	clear(t.cmds)
}

// loadScripts loads the scripts of the batches without a reply.
func (t *Run) loadScripts() (err error) {
	var loaded []*script.Script
	for _, b := range t.unanswered {
		if s := b.Script(); !slices.Contains(loaded, s) {
			loaded = append(loaded, s)
			err = cmp.Or(err, b.Load(t.bound))
		}
	}
	return err
}

// exchange sends the commands in a pipeline, and reads the replies. Errors are stored in each command.
func (t *Run) exchange() {
	pipe := t.pipeline.node.Pipeline()
	for _, cmd := range t.cmds {
		_ = pipe.Process(t.bound, cmd)
	}
	_, _ = pipe.Exec(t.bound)
}

// left returns the time until the first of some batches is late. The timeout of a batch counts from when it is sent,
// not from when it gets a slot.
func (t *Run) left(batches []Batch) time.Duration {
	first := batches[0].Started()
	for _, b := range batches[1:] {
		if b.Started().Before(first) {
			first = b.Started()
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
// late. The first call tells the breaker of the stall, releases the slot, unless MaxStalled runs have done so and this one
// is not late yet, and lets the limiters send their next batches. Each call completes the batches that are late or, if the
// node is away, that the process can decide on. If the node is away, this also holds for the batches that wait for a slot.
// If the run is late and still has its slot, and no later call was answered, all waiting batches are completed. A reply that
// has arrived counts: see script.Grace.
func (t *Run) overdue() {
	p := t.pipeline
	p.mu.Lock()
	if t.over || t.abandoned {
		p.mu.Unlock()
		return
	}
	first, late, node := !t.stalled, t.left(t.batches) == 0, t.breaker
	t.stalled = true
	if late {
		p.mu.Unlock()
		script.Grace(t.isOver)
		p.mu.Lock()
		if t.over || t.abandoned {
			p.mu.Unlock()
			return
		}
	}
	ends := func(b Batch) bool {
		return time.Since(b.Started()) >= p.timeout ||
			t.away && b.CanDecide()
	}
	var prober breaker.Prober // once it has stalled
	if first && !late && !t.away {
		prober = t.batches[0].Prober()
	}
	var next *Run
	var behind []Batch
	if late && !t.released && p.Breaker.Silent(t.batches[0].Started()) {
		behind, p.waiting = p.waiting, nil
	} else if t.away {
		p.waiting = slices.DeleteFunc(p.waiting, func(b Batch) bool {
			ends := ends(b)
			if ends {
				behind = append(behind, b)
			}
			return ends
		})
	}
	if !t.released && (late || p.stalled < MaxStalled) {
		t.released = true
		p.stalled++
		p.inFlight--
		next = p.load()
	}
	var ended, rest []Batch
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
	p.mu.Unlock()
	if next != nil {
		go next.Start()
	}
	if prober != nil {
		go node.Stalled(prober)
	}
	for _, b := range append(ended, behind...) {
		b.Late()
	}
	if len(rest) == 0 {
		close(t.expired) // after complete: the end of this context must not be taken for the end of a caller's
	}
	for _, b := range rest {
		b.Stalled()
	}
}

// isOver reports whether the commands of the run have ended.
func (t *Run) isOver() bool {
	t.pipeline.mu.Lock()
	defer t.pipeline.mu.Unlock()
	return t.over
}
