package pipeline

import (
	"context"
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

// withSender runs a test with a pipeline of a single slot to a node. The test sends batches, and learns whether their runs are inline.
func withSender(t *testing.T, takes time.Duration, test func(n *node, send func() (c *call, inline bool))) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(takes)
		p := New(bounded{n}, time.Second, ShortestStall, 1, MaxBatch)
		p.inliner.detour = &detour{}
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
			t.Errorf("%d runs in flight, %d stalled, %d batches wait", inFlight, stalled, queued)
		}
	})
}

func TestTheOnlyBatchForANearNodeIsInline(t *testing.T) {
	withSender(t, ms, func(n *node, send func() (*call, bool)) {
		began := time.Now()
		c, inline := send()
		if took := time.Since(began); !inline || took != ms {
			t.Errorf("inline: %v, it took %v", inline, took)
		}
		c.expect("the batch", "done")

		n.takes.Store(int64(10 * ms))
		first := make(chan bool)
		began = time.Now()
		go func() {
			_, inline := send()
			first <- inline && time.Since(began) == 10*ms
		}()
		synctest.Wait()
		behind, _ := send()
		if !<-first {
			t.Error("the first run is not inline, or its goroutine executes the second one, too")
		}
		behind.expect("the batch behind, before it has a reply")
		time.Sleep(10 * ms)
		behind.expect("the batch behind", "done")
	})
}

func TestNoRunToAFarNodeIsInline(t *testing.T) {
	withSender(t, 2*near, func(_ *node, send func() (*call, bool)) {
		if _, inline := send(); inline {
			t.Error("it is")
		}
	})
}

// An inline run ends when it stalls. For some seconds there is no other one.
func TestAnInlineRunThatStallsEnds(t *testing.T) {
	withSender(t, ms, func(n *node, send func() (*call, bool)) {
		n.takes.Store(int64(time.Hour))
		began := time.Now()
		c, inline := send()
		ended := time.Now()
		if took := ended.Sub(began); !inline || took != ShortestStall {
			t.Errorf("inline: %v, it took %v", inline, took)
		}
		c.expect("the batch", "stalled", context.DeadlineExceeded.Error())

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

// An inline run loads no script, which would take a call that does not end in time: its next command carries the text.
func TestAnInlineRunSendsAMissingScript(t *testing.T) {
	withSender(t, ms, func(n *node, send func() (*call, bool)) {
		n.fail = func(cmd redis.Cmder) error {
			if cmd.Name() == "text" {
				return nil
			}
			return redis.ErrNoScript
		}
		c, inline := send()
		if c.expect("the batch", "missing", "done"); !inline {
			t.Error("it is not inline")
		}
	})
}
