package pipeline

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Run is one Redis pipeline: commands of jobs, and their replies.
type Run struct {
	pipeline   *Pipeline
	Start      func() // the method Execute: go Start() does not allocate
	jobs       []Job
	unanswered []Job           // jobs without a reply
	cmds       []redis.Cmder   // their commands
	timer      *time.Timer     // calls onTimer
	ctx        context.Context // ends by expire
	expire     context.CancelFunc
	bound      *bound
	inline     bool
	breaker    *breaker.Breaker // of its jobs
	started    time.Time
	stall      time.Duration // the run has stalled if it takes longer
	state      runState      // guarded by the mutex of the pipeline
}

func newRun(p *Pipeline) *Run {
	t := &Run{pipeline: p, state: over}
	t.Start = t.Execute
	t.ctx, t.expire = context.WithCancel(context.Background())
	return t
}

// lockedBegin fills t with jobs, and starts its time.
func (t *Run) lockedBegin(jobs []Job) {
	p := t.pipeline
	t.state.to(running)
	t.inline = false
	t.jobs = append(t.jobs[:0], jobs...)
	t.breaker = t.jobs[0].Breaker()
	t.started = time.Now()
	t.bound = &bound{t.ctx, t, t.started.Add(p.timeout)}
	t.stall = min(max(p.patient, min(stallFactor*p.usual, max(2*p.usual, p.timeout/4))), t.left(t.jobs))
	if t.timer == nil {
		t.timer = time.AfterFunc(t.stall, t.onTimer)
	} else {
		t.timer.Reset(t.stall)
	}
}

// A bound is the context of a run's commands. It ends once all jobs are complete though the
// commands are not, and when an inline run stalls. A run that is used again gets a new one, so that
// a late call of NodeAway can be told from one for the current use.
type bound struct {
	context.Context
	run      *Run
	deadline time.Time
}

func (b *bound) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bound) Err() error {
	if b.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// Go executes t: in the calling goroutine if t is inline, else in a new one.
func (t *Run) Go() {
	if t.inline {
		t.Execute()
	} else {
		go t.Start()
	}
}

// Execute executes t, and then further runs while jobs wait for its slot. After an inline run
// these get a new goroutine.
func (t *Run) Execute() {
	if t.inline {
		if next := t.execute(); next != nil {
			go next.Start()
		}
		return
	}
	for t != nil {
		t = t.execute()
	}
}

// execute executes t once. It returns the run to execute next in the same slot; nil if there is
// none.
func (t *Run) execute() (next *Run) {
	var slot, regular, whole bool // t has a slot; it never stalled; nothing has panicked
	t.breaker.Begin(t.bound, t.jobs[0].Prober())
	defer func() {
		if whole {
			next = t.leave(slot, regular)
		} else {
			t.breakOff(slot)
		}
	}()
	t.carry()
	answered := slices.ContainsFunc(t.jobs, func(j Job) bool { return script.IsThere(j.Err()) })
	t.breaker.End(t.bound, answered)
	slot, regular = t.end(answered)
	for i, j := range t.jobs {
		j.Done(regular)
		t.jobs[i] = nil
	}
	whole = true
	return nil
}

// end notes that the commands have ended, and whether the node answered. It reports whether t has a
// slot, and whether it never stalled. A run of one job that never stalled gives its slot back
// here: a job that is sent while this one completes needs it.
func (t *Run) end(answered bool) (slot, regular bool) {
	p := t.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	slot, regular = t.state.hasSlot(), t.state == running
	t.state.to(over)
	switch {
	case !slot:
		p.stalled--
	case regular && len(t.jobs) == 1:
		p.inFlight--
		slot = false
	}
	p.lockedTimed(t, answered)
	return slot, regular
}

// leave gives back the slot of t, if it has one, and returns a run for the caller to execute; nil
// if there is none. If nothing uses t any more, it may be used again.
func (t *Run) leave(slot, unused bool) *Run {
	p := t.pipeline
	p.mu.Lock()
	defer p.mu.Unlock()
	if slot {
		p.inFlight--
	}
	if unused && t.timer.Stop() && len(p.spare) < MaxRuns { // else the timer may still fire, or enough are kept
		p.spare = append(p.spare, t)
	}
	return p.lockedLoad()
}

// breakOff ends t after a panic, of a hook of the Redis client or of what a job calls. Its slot
// is free again, and the jobs that are not complete are late.
func (t *Run) breakOff(slot bool) {
	if !t.isOver() {
		t.breaker.End(t.bound, false)
		slot, _ = t.end(false)
	}
	if next := t.leave(slot, false); next != nil {
		go next.Start()
	}
	for _, j := range t.jobs {
		if j != nil {
			j.Late()
		}
	}
}

// carry sends commands until each job has a reply. If the server lacks the script even after it
// was loaded, the first command of each further round carries the script's text; those behind it
// find the script then, unless it is removed meanwhile.
func (t *Run) carry() {
	t.unanswered = append(t.unanswered[:0], t.jobs...)
	for _, j := range t.jobs {
		j.Begun(j.Started().Add(t.pipeline.timeout), t.started.Add(t.stall))
	}
	script.Supply(t.loadScripts, func(text bool) bool {
		t.cmds = t.cmds[:0]
		for i := 0; i < len(t.unanswered); i++ {
			cmd, served := t.unanswered[i].Command(t.bound, text && i == 0, t.unanswered[i+1:])
			t.cmds = append(t.cmds, cmd)
			i += served
		}
		if len(t.cmds) == 1 {
			// Called here, and not a frame deeper: else the stack of each run's goroutine must grow
			// for it, which takes a tenth of the time of a process with one hot limiter.
			_ = t.pipeline.node.Process(t.context(), t.cmds[0])
		} else {
			t.exchange()
		}
		t.unanswered = slices.DeleteFunc(t.unanswered, func(j Job) bool {
			err := j.Err()
			if !script.Lacking(err) || t.inline { // to load a script may take longer than an inline run
				return true
			}
			j.Missing(err)
			return false
		})
		return len(t.unanswered) > 0
	})
	clear(t.cmds)
}

// loadScripts loads the scripts of the jobs without a reply.
func (t *Run) loadScripts() (err error) {
	var loaded []*script.Script
	for _, j := range t.unanswered {
		if s := j.Script(); !slices.Contains(loaded, s) {
			loaded = append(loaded, s)
			err = cmp.Or(err, j.Load(t.bound))
		}
	}
	return err
}

// exchange sends the commands in a pipeline, and reads the replies. Errors are stored in each
// command.
func (t *Run) exchange() {
	pipe := t.pipeline.node.Pipeline()
	for _, cmd := range t.cmds {
		_ = pipe.Process(t.bound, cmd)
	}
	_, _ = pipe.Exec(t.bound)
}

// left returns the time until the first of some jobs is late. The timeout of a job counts from
// when it is sent, not from when it gets a slot.
func (t *Run) left(jobs []Job) time.Duration {
	first := jobs[0].Started()
	for _, j := range jobs[1:] {
		if j.Started().Before(first) {
			first = j.Started()
		}
	}
	return max(t.pipeline.timeout-time.Since(first), 0)
}

// onTimer is called when the run stalls, and when jobs of it are late.
func (t *Run) onTimer() { t.overdue(nil) }

// NodeAway completes at once the jobs on which the process can decide, without waiting for the
// commands.
func (b *bound) NodeAway() { b.run.overdue(b) }

// Sent reports whether a command of the run was written to a connection.
func (b *bound) Sent() bool {
	t := b.run
	t.pipeline.mu.Lock()
	defer t.pipeline.mu.Unlock()
	return t.bound == b && t.state != over && slices.ContainsFunc(t.jobs, Job.Sent)
}

// overdue is called when the run stalls, when jobs of it are late, and when its node is found to
// be away, with the bound of the use that this is about. The first call tells the breaker of the
// stall, releases the slot, unless MaxStalled runs have done so and this one is not late yet, and
// lets the limiters send their next jobs. Each call completes the jobs that are late or, if
// the node is away, that the process can decide on. If the node is away, this also holds for the
// jobs that wait for a slot. If the run is late and still has its slot, and no later call was
// answered, all waiting jobs are completed. A reply that has arrived counts: see script.Grace.
func (t *Run) overdue(away *bound) {
	p := t.pipeline
	p.mu.Lock()
	if !t.state.waits() || away != nil && away != t.bound {
		p.mu.Unlock()
		return
	}
	late, node := t.left(t.jobs) == 0, t.breaker
	var prober breaker.Prober // once it has stalled
	if t.state == running {
		t.state.to(stalled)
		if !late && away == nil {
			prober = t.jobs[0].Prober()
		}
	}
	if late && t.lockedGrace() {
		p.mu.Unlock()
		return
	}
	ends := func(j Job) bool { return time.Since(j.Started()) >= p.timeout || away != nil && j.CanDecide() }
	var behind []Job
	switch {
	case late && t.state == stalled && p.Breaker.Silent(t.jobs[0].Started()):
		behind, p.waiting = p.waiting, nil
	case away != nil:
		behind, p.waiting = split(p.waiting, ends)
	}
	next := t.lockedRelease(late)
	ended, rest := split(t.jobs, ends)
	t.lockedWait(rest)
	p.mu.Unlock()
	if next != nil {
		go next.Start()
	}
	if prober != nil {
		go node.Stalled(prober)
	}
	for _, j := range append(ended, behind...) {
		j.Late()
	}
	for _, j := range rest {
		j.Stalled()
	}
	if len(rest) == 0 || t.inline {
		t.expire() // after complete: the end of this context must not be taken for the end of a caller's
	}
}

// lockedGrace lets the goroutine that reads a reply run before its jobs are late, with the
// pipeline unlocked meanwhile. It reports whether nothing waits for the commands any more.
func (t *Run) lockedGrace() bool {
	t.pipeline.mu.Unlock()
	script.Grace(t.isOver)
	t.pipeline.mu.Lock()
	return !t.state.waits()
}

// lockedRelease releases the slot of a run that has stalled, and returns a run to start in it; nil
// if there is none.
func (t *Run) lockedRelease(late bool) *Run {
	p := t.pipeline
	if t.state != stalled || !late && p.stalled >= MaxStalled {
		return nil
	}
	t.state.to(released)
	p.stalled++
	p.inFlight--
	return p.lockedLoad()
}

// lockedWait lets the run that has stalled wait until the first of the rest of its jobs is late,
// if there is one.
func (t *Run) lockedWait(rest []Job) {
	switch {
	case len(rest) > 0:
		t.timer.Reset(t.left(rest))
	case t.state == released:
		t.state.to(abandoned)
	default:
		t.state.to(emptied)
	}
}

// split returns the jobs that end, and the rest.
func split(jobs []Job, ends func(Job) bool) (ended, rest []Job) {
	for _, j := range jobs {
		if ends(j) {
			ended = append(ended, j)
		} else {
			rest = append(rest, j)
		}
	}
	return ended, rest
}

// isOver reports whether the commands of the run have ended.
func (t *Run) isOver() bool {
	t.pipeline.mu.Lock()
	defer t.pipeline.mu.Unlock()
	return t.state == over
}
