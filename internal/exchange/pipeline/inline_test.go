package pipeline

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A bounded node ends a command with its context.
type bounded struct{ *node }

func (b bounded) Process(ctx context.Context, cmd redis.Cmder) error {
	select {
	case <-time.After(time.Duration(b.takes.Load())):
		return b.answer(cmd)
	case <-ctx.Done():
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}

// withSender runs a test with a pipeline to a node that has some slots. The test sends jobs, and
// learns whether their runs are inline.
func withSender(t *testing.T, slots int, takes time.Duration, test func(n *node, send func() (c *call, inline bool))) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(takes)
		p := New(bounded{n}, time.Second, ShortestStall, slots, MaxJobs)
		p.inliner.copy = &redis.Client{} // not used: the node has no detour
		send := func() (c *call, inline bool) {
			c = &call{t: t, started: time.Now(), pipeline: p}
			if run := p.Admit(c, true); run != nil {
				inline = run.inline
				run.Go()
			}
			return c, inline
		}
		for range timedRuns {
			if _, inline := send(); inline {
				t.Error("a run is inline though the usual time is not known")
			}
			time.Sleep(2 * takes)
		}
		synctest.Wait()
		test(n, send)
		time.Sleep(time.Minute)
		synctest.Wait()
		if inFlight, stalled, queued := p.Load(); inFlight+stalled+queued != 0 {
			t.Errorf("%d runs in flight, %d stalled, %d jobs wait", inFlight, stalled, queued)
		}
	})
}

func TestTheOnlyJobForANearNodeIsInline(t *testing.T) {
	withSender(t, MaxRuns, ms, func(n *node, send func() (*call, bool)) {
		began := time.Now()
		c, inline := send()
		if took := time.Since(began); !inline || took != ms {
			t.Errorf("inline: %v, it took %v", inline, took)
		}
		c.expect("the job", "done")

		go send()
		synctest.Wait()
		if _, inline := send(); inline {
			t.Error("a run is inline beside another one")
		}
	})
}

// The goroutine of an inline run leaves the jobs that have waited for its slot to another one.
func TestAnInlineRunExecutesNoOther(t *testing.T) {
	withSender(t, 1, ms, func(n *node, send func() (*call, bool)) {
		began := time.Now()
		ended := make(chan time.Duration)
		go func() {
			_, inline := send()
			if !inline {
				t.Error("the run is not inline")
			}
			ended <- time.Since(began)
		}()
		synctest.Wait()
		n.takes.Store(int64(100 * ms))
		behind, _ := send()
		if took := <-ended; took != ms {
			t.Errorf("it took %v", took)
		}
		time.Sleep(100 * ms)
		behind.expect("the job behind, whose run is not inline", "stalled", "done after a stall")
	})
}

func TestNoRunToAFarNodeIsInline(t *testing.T) {
	withSender(t, MaxRuns, 2*near, func(_ *node, send func() (*call, bool)) {
		if _, inline := send(); inline {
			t.Error("it is")
		}
	})
}

// An inline run ends when it stalls. For some seconds there is no other one.
func TestAnInlineRunThatStallsEnds(t *testing.T) {
	withSender(t, MaxRuns, ms, func(n *node, send func() (*call, bool)) {
		n.takes.Store(int64(time.Hour))
		began := time.Now()
		c, inline := send()
		ended := time.Now()
		if took := ended.Sub(began); !inline || took != ShortestStall {
			t.Errorf("inline: %v, it took %v", inline, took)
		}
		c.expect("the job", "stalled", context.DeadlineExceeded.Error())

		n.takes.Store(int64(ms))
		for time.Since(ended) < inlinePause {
			if _, inline := send(); inline {
				t.Fatalf("a run is inline %v after one that stalled", time.Since(ended))
			}
			time.Sleep(100 * ms)
		}
		if _, inline := send(); !inline {
			t.Error("no run is inline any more")
		}
	})
}

// An inline run loads no script, which would take a call that does not end in time. The job goes
// on elsewhere.
func TestAnInlineRunLoadsNoScript(t *testing.T) {
	withSender(t, MaxRuns, ms, func(n *node, send func() (*call, bool)) {
		n.fail = func(redis.Cmder) error { return redis.ErrNoScript }
		c, inline := send()
		if c.expect("the job", redis.ErrNoScript.Error()); !inline {
			t.Error("it is not inline")
		}
	})
}

// While a node is away, calls end late and without an answer. They do not make later ones stall
// later.
func TestARunWithoutAnAnswerIsNotTimed(t *testing.T) {
	withSender(t, MaxRuns, ms, func(n *node, send func() (*call, bool)) {
		n.fail = func(redis.Cmder) error { return io.EOF }
		n.takes.Store(int64(100 * ms))
		for range timedRuns {
			send()
			time.Sleep(200 * ms)
		}
		synctest.Wait()
		n.fail = nil
		n.takes.Store(int64(2 * ShortestStall))
		c, inline := send()
		if inline {
			t.Error("the run is inline, soon after one that stalled")
		}
		time.Sleep(2 * ShortestStall)
		c.expect("the job", "stalled", "done after a stall")
	})
}
