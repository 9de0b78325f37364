// Package pipeline sends jobs to a node: those that are sent at the same time share a run, which
// is one Redis pipeline. A few runs are in flight at once. One that stalls delays only its own
// jobs. It does not know what a job is for, nor whether an attempt that failed is repeated.
//
// pipeline.go has the jobs that wait and the slots for runs, run.go what one run does, states.go
// the states of a run, inline.go which runs the sender executes itself.
package pipeline

import (
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
	MaxJobs    = 256 // jobs of a run

	// A run has stalled once it takes longer than ShortestStall and longer than stallFactor times
	// its usual time. That multiple counts as no more than a quarter of the call timeout, or twice
	// the usual time if that is more. A caller that arrives when a server begins to hang may wait
	// for the call timeout and this time.
	ShortestStall = 20 * time.Millisecond
	stallFactor   = 8
)

// A Job is one call of a script, on behalf of some callers. A pipeline calls Started, Cancelled,
// CanDecide, Sent and Breaker while it is locked, and the other methods while it is not.
type Job interface {
	Started() time.Time        // when it was sent; its timeout counts from here
	Cancelled() bool           // nobody waits for it any more
	CanDecide() bool           // the process can decide in the place of its node
	Sent() bool                // its command was written to a connection
	Breaker() *breaker.Breaker // of its node
	Prober() breaker.Prober

	// Begun is called when its run begins: its callers get an error at due at the latest, and
	// nothing waits for it from stallAt on.
	Begun(due, stallAt time.Time)
	// Command makes the command; with text it carries the script's text instead of its SHA-1. It
	// may serve some of the jobs behind, the first ones, whose Command is not called then: it
	// returns how many.
	Command(ctx context.Context, text bool, behind []Job) (cmd redis.Cmder, served int)
	Err() error        // of the last command
	Missing(err error) // the server lacks the script; the command is made again
	Script() *script.Script
	Load(ctx context.Context) error // loads the script into the server
	Done(regular bool)              // the last command has ended; regular: the run never stalled
	Late()                          // its time is over, or its node is away
	Stalled()                       // its run has stalled
	Unsent()                        // it is not sent, since it is cancelled
}

// A Pipeline sends the jobs for one node.
type Pipeline struct {
	Breaker breaker.Breaker // of the node

	node        script.Redis
	timeout     time.Duration // of a job, from when it is sent
	maxInFlight int           // runs that may hold a slot
	maxJobs     int           // jobs in a run
	patient     time.Duration // a run that takes no longer has not stalled

	mu       sync.Mutex    // guards the fields below, and the last fields of each run
	waiting  []Job         // for a slot
	inFlight int           // runs that hold a slot
	stalled  int           // runs in flight that released theirs
	usual    time.Duration // smoothed time of a run that had an answer
	spare    []*Run        // for reuse, at most MaxRuns
	inliner  inliner
}

// New returns a pipeline to a node, for jobs with a timeout. Runs that take no longer than
// patient have not stalled.
func New(node script.Redis, timeout, patient time.Duration, runs, jobs int) *Pipeline {
	return &Pipeline{node: node, timeout: timeout, maxInFlight: runs, maxJobs: jobs, patient: patient}
}

// Load returns how many runs hold a slot, how many released theirs, and how many jobs wait for
// one.
func (p *Pipeline) Load() (inFlight, stalled, queued int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.inFlight, p.stalled, len(p.waiting)
}

// Admit takes a job, and returns a run for the caller to execute if a slot is free; else nil. If
// the run may be inline, it is where possible.
func (p *Pipeline) Admit(j Job, inline bool) *Run {
	p.mu.Lock()
	defer p.mu.Unlock()
	inline = inline && p.lockedInline()
	p.waiting = append(p.waiting, j)
	t := p.lockedLoad()
	if t != nil {
		t.inline = inline
	}
	return t
}

// Methods whose names begin with locked are called with the mutex of the pipeline locked.

// lockedLoad puts waiting jobs into a run if a slot is free; else it returns nil.
func (p *Pipeline) lockedLoad() *Run {
	if len(p.waiting) == 0 || p.inFlight >= p.maxInFlight {
		return nil
	}
	if p.lockedDropCancelled(); len(p.waiting) == 0 {
		return nil
	}
	p.inFlight++
	var t *Run
	if last := len(p.spare) - 1; last >= 0 {
		t, p.spare = p.spare[last], p.spare[:last]
	} else {
		t = newRun(p)
	}
	n := min(len(p.waiting), p.maxJobs)
	t.lockedBegin(p.waiting[:n])
	p.waiting = slices.Delete(p.waiting, 0, n)
	return t
}

// lockedDropCancelled removes the waiting jobs whose callers are all cancelled, so that no
// permits are taken for them. It tells them so in the background.
func (p *Pipeline) lockedDropCancelled() {
	gone := func(j Job) bool { return j.Cancelled() }
	if !slices.ContainsFunc(p.waiting[:min(len(p.waiting), p.maxJobs)], gone) {
		return
	}
	var dropped []Job
	p.waiting = slices.DeleteFunc(p.waiting, func(j Job) bool {
		if !gone(j) {
			return false
		}
		dropped = append(dropped, j)
		return true
	})
	go func() {
		for _, j := range dropped {
			j.Unsent()
		}
	}()
}
