package pipeline

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

const ms = time.Millisecond

// A node answers each command after a time, with an error if fail returns one.
type node struct {
	takes atomic.Int64 // ns
	fail  func(cmd redis.Cmder) error
	load  error // of SCRIPT LOAD

	mu     sync.Mutex
	single int   // commands by themselves
	runs   []int // numbers of commands in pipelines
}

func newNode(takes time.Duration) *node {
	n := &node{}
	n.takes.Store(int64(takes))
	return n
}

func (n *node) answer(cmd redis.Cmder) error {
	if n.fail != nil {
		cmd.SetErr(n.fail(cmd))
	}
	return cmd.Err()
}

func (n *node) Process(_ context.Context, cmd redis.Cmder) error {
	n.mu.Lock()
	n.single++
	n.mu.Unlock()
	time.Sleep(time.Duration(n.takes.Load()))
	return n.answer(cmd)
}

func (n *node) Pipeline() redis.Pipeliner { return &pile{node: n} }

type pile struct {
	redis.Pipeliner
	node *node
	cmds []redis.Cmder
}

func (p *pile) Process(_ context.Context, cmd redis.Cmder) error {
	p.cmds = append(p.cmds, cmd)
	return nil
}

func (p *pile) Exec(context.Context) ([]redis.Cmder, error) {
	p.node.mu.Lock()
	p.node.runs = append(p.node.runs, len(p.cmds))
	p.node.mu.Unlock()
	time.Sleep(time.Duration(p.node.takes.Load()))
	for _, cmd := range p.cmds {
		_ = p.node.answer(cmd)
	}
	return p.cmds, nil
}

// A call is a job that logs what happens to it.
type call struct {
	t        *testing.T
	started  time.Time
	gone     atomic.Bool
	pipeline *Pipeline
	cmd      redis.Cmder
	panics   bool // once it is done

	mu  sync.Mutex
	log []string
}

func (c *call) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, what)
}

func (c *call) expect(what string, log ...string) {
	c.t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.log) != len(log) {
		c.t.Fatalf("%s: %q, expected %q", what, c.log, log)
	}
	for i := range log {
		if c.log[i] != log[i] {
			c.t.Errorf("%s: %q, expected %q", what, c.log, log)
		}
	}
}

func (c *call) Started() time.Time         { return c.started }
func (c *call) Cancelled() bool            { return c.gone.Load() }
func (c *call) CanDecide() bool            { return false }
func (c *call) Sent() bool                 { return false }
func (c *call) Breaker() *breaker.Breaker  { return &c.pipeline.Breaker }
func (c *call) Prober() breaker.Prober     { return nil }
func (c *call) Begun(time.Time, time.Time) {}
func (c *call) Err() error                 { return c.cmd.Err() }
func (c *call) Missing(error)              { c.note("missing") }
func (c *call) Script() *script.Script     { return nil }
func (c *call) Load(context.Context) error { c.note("load"); return c.pipeline.node.(*node).load }
func (c *call) Late()                      { c.note("late") }
func (c *call) Stalled()                   { c.note("stalled") }
func (c *call) Unsent()                    { c.note("unsent") }

func (c *call) Command(ctx context.Context, text bool, _ []Job) (redis.Cmder, int) {
	name := "sha"
	if text {
		name = "text"
	}
	c.cmd = redis.NewStatusCmd(ctx, name)
	return c.cmd, 0
}

func (c *call) Done(regular bool) {
	switch {
	case c.panics:
		panic("done")
	case c.cmd.Err() != nil:
		c.note(c.cmd.Err().Error())
	case regular:
		c.note("done")
	default:
		c.note("done after a stall")
	}
}

// withPipeline runs a test with a pipeline to a node. The test sends jobs.
func withPipeline(t *testing.T, n *node, test func(send func() *call)) {
	synctest.Test(t, func(t *testing.T) {
		p := New(n, time.Second, ShortestStall, MaxRuns, MaxJobs)
		test(func() *call {
			c := &call{t: t, started: time.Now(), pipeline: p}
			if run := p.Admit(c, false); run != nil {
				go run.Start()
			}
			return c
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		if inFlight, stalled, queued := p.Load(); inFlight+stalled+queued != 0 {
			t.Errorf("%d runs in flight, %d stalled, %d jobs wait", inFlight, stalled, queued)
		}
	})
}

func TestJobsShareARunOnceTheSlotsAreTaken(t *testing.T) {
	n := newNode(10 * ms)
	withPipeline(t, n, func(send func() *call) {
		var calls []*call
		for range MaxRuns + 3 {
			calls = append(calls, send())
		}
		time.Sleep(20 * ms)
		for _, c := range calls {
			c.expect("a job", "done")
		}
	})
	if n.single != MaxRuns || len(n.runs) != 1 || n.runs[0] != 3 {
		t.Errorf("%d single commands, pipelines of %d", n.single, n.runs)
	}
}

// TestAReplyThatHasArrivedCounts has one processor, which reads the reply until just after the time
// of the call is over. The timer fires meanwhile.
func TestAReplyThatHasArrivedCounts(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const timeout = 50 * ms
	for range 30 { // the timer does not fire before the reply each time
		p := New(reading(timeout+5*ms), timeout, ShortestStall, MaxRuns, MaxJobs)
		c := &call{t: t, started: time.Now(), pipeline: p}
		p.Admit(c, false).Execute()
		c.mu.Lock()
		if len(c.log) == 0 || !strings.HasPrefix(c.log[len(c.log)-1], "done") || slices.Contains(c.log, "late") {
			t.Errorf("what happened to the job: %q", c.log)
		}
		c.mu.Unlock()
	}
}

// A reading is a node that keeps the processor busy for this time with each command.
type reading time.Duration

func (r reading) Process(context.Context, redis.Cmder) error {
	for began := time.Now(); time.Since(began) < time.Duration(r); {
	}
	return nil
}

func (r reading) Pipeline() redis.Pipeliner { return nil }

func TestStalledRunReleasesItsSlot(t *testing.T) {
	n := newNode(500 * ms)
	withPipeline(t, n, func(send func() *call) {
		var calls []*call
		for range MaxRuns {
			calls = append(calls, send())
		}
		synctest.Wait()
		n.takes.Store(0)
		behind := send()
		time.Sleep(ShortestStall)
		behind.expect("the job that waited for a slot", "done")
		for _, c := range calls {
			c.expect("a job in a stalled run", "stalled")
		}
		time.Sleep(480 * ms)
		for _, c := range calls {
			c.expect("a job in a stalled run", "stalled", "done after a stall")
		}
	})
}

func TestJobIsLateAfterItsTimeout(t *testing.T) {
	n := newNode(5 * time.Second)
	withPipeline(t, n, func(send func() *call) {
		c := send()
		time.Sleep(999 * ms)
		c.expect("before its timeout", "stalled")
		time.Sleep(ms)
		c.expect("after its timeout", "stalled", "late")
	})
}

func TestMissingScriptIsLoaded(t *testing.T) {
	n := newNode(ms)
	sent := 0
	n.fail = func(cmd redis.Cmder) error {
		if sent++; sent > 1 && cmd.Name() == "sha" {
			return nil
		}
		return redis.ErrNoScript
	}
	withPipeline(t, n, func(send func() *call) {
		c := send()
		time.Sleep(10 * ms)
		c.expect("a job", "missing", "load", "done")
	})
}

func TestScriptThatCannotBeLoadedIsSent(t *testing.T) {
	for load, log := range map[error][]string{
		errors.New("NOPERM"): {"missing", "load", "done"},
		nil:                  {"missing", "load", "missing", "done"}, // loaded elsewhere, or flushed since
	} {
		n := newNode(ms)
		n.fail = func(cmd redis.Cmder) error {
			if cmd.Name() == "text" {
				return nil
			}
			return redis.ErrNoScript
		}
		n.load = load
		withPipeline(t, n, func(send func() *call) {
			c := send()
			time.Sleep(10 * ms)
			c.expect("a job", log...)
		})
	}
}

func TestCancelledJobsAreNotSent(t *testing.T) {
	n := newNode(10 * ms)
	withPipeline(t, n, func(send func() *call) {
		for range MaxRuns {
			send()
		}
		gone, kept := send(), send()
		gone.gone.Store(true)
		time.Sleep(30 * ms)
		gone.expect("a cancelled job", "unsent")
		kept.expect("the other one", "done")
	})
}

func TestOtherErrorsAreTheJobs(t *testing.T) {
	n := newNode(ms)
	n.fail = func(redis.Cmder) error { return errors.New("broken") }
	withPipeline(t, n, func(send func() *call) {
		c := send()
		time.Sleep(10 * ms)
		c.expect("a job", "broken")
	})
}

// A breaker notifies calls in separate goroutines that their node is away. The notification may
// arrive after the run has ended and its memory is used for another run.
func TestEndedRunIgnoresItsNode(t *testing.T) {
	n := newNode(ms)
	withPipeline(t, n, func(send func() *call) {
		c := send()
		time.Sleep(10 * ms)
		c.expect("the call", "done")
		p := c.pipeline
		if len(p.spare) != 1 {
			t.Fatalf("%d runs are kept", len(p.spare))
		}
		ended := p.spare[0]
		if ended.bound.NodeAway(); ended.state != over {
			t.Errorf("an ended run that learns that its node is away is %v", ended.state)
		}
	})
}

// A panic, of a hook of the Redis client or of what a job calls, passes through the goroutine
// that executes a run. If that recovers, the slot is free, the node owes no reply, and no job
// waits for ever.
func TestAPanicLeaksNoSlot(t *testing.T) {
	for _, hook := range []bool{true, false} {
		t.Run(map[bool]string{true: "a hook", false: "the first job"}[hook], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(ms)
				p := New(n, time.Second, ShortestStall, 1, MaxJobs)
				p.inFlight = 1 // so that the jobs share a run
				calls := []*call{{panics: !hook}, {}}
				n.fail = func(cmd redis.Cmder) error {
					if hook && cmd == calls[0].cmd {
						panic("a hook")
					}
					return nil
				}
				for _, c := range calls {
					c.t, c.started, c.pipeline = t, time.Now(), p
					if p.Admit(c, false) != nil {
						t.Fatal("there is no slot")
					}
				}
				p.mu.Lock()
				p.inFlight = 0
				run := p.lockedLoad()
				p.mu.Unlock()
				behind := &call{t: t, started: time.Now(), pipeline: p}
				p.Admit(behind, false)
				if recovered(run.Execute) == nil {
					t.Error("the panic has ended")
				}
				calls[0].expect("the first job", "late")
				calls[1].expect("the other job", "late")
				time.Sleep(time.Minute)
				behind.expect("the job behind", "done")
				if inFlight, stalled, queued := p.Load(); inFlight+stalled+queued != 0 {
					t.Errorf("%d runs in flight, %d stalled, %d jobs wait", inFlight, stalled, queued)
				}
				if p.Breaker.Broken() {
					t.Error("the node is away")
				}
			})
		})
	}
}
