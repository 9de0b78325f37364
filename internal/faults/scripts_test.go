package faults

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// scripts_test.go flushes the server's scripts, again and again, while pipelines of many limiters
// are in flight: so some commands of a pipeline are executed, and others are not.

func TestScriptsFlushedUnderLoad(t *testing.T) {
	const (
		callers  = 64
		limiters = 500
		often    = 200 // calls of each caller
		few      = 5   // permits of every second limiter; the others have more than enough
		pause    = 2 * time.Millisecond
	)
	server := redistest.Real(t)
	var repeated repetitions
	client := rratelimiter.NewClient(server.Client(), rratelimiter.WithObserver(&repeated),
		rratelimiter.WithCallTimeout(time.Minute)) // the machine may pause for a second
	all := make([]*rratelimiter.Limiter, limiters)
	for i := range all {
		rate := ample
		if i%2 == 1 {
			rate = rratelimiter.PerHour(few)
		}
		all[i] = client.RateLimiter(fmt.Sprint("scripts:", i), rratelimiter.WithRate(rate))
	}

	admin := server.Client()
	loaded := make(chan struct{})
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for {
			select {
			case <-loaded:
				return
			case <-time.After(3 * time.Millisecond):
				if err := admin.ScriptFlush(t.Context()).Err(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	next := make([]int, callers)
	asked, given := make([]atomic.Int64, limiters), make([]atomic.Int64, limiters)
	got := load(callers, often, pause, lasting(0), func(caller int) call {
		next[caller]++
		i := (caller*limiters/callers + next[caller]) % limiters
		asked[i].Add(1)
		c := ask(1, func() (bool, error) { return all[i].TryAcquire(t.Context(), 1) })
		if c.Granted {
			given[i].Add(1)
		}
		return c
	})
	close(loaded)
	flushing.Wait()

	t.Logf("%d calls, p99 %v; %d calls to Redis, %d of them repeated",
		len(got), got.percentile(99), repeated.calls.Load(), repeated.again.Load())
	if repeated.again.Load() == 0 {
		t.Error("no call met a server without the script")
	}
	for _, c := range got.where(failed) {
		t.Error(c.err)
	}
	for i, l := range all {
		want := asked[i].Load()
		if i%2 == 1 {
			want = min(want, few)
		}
		if recorded := used(t, l); given[i].Load() != want || recorded != want {
			t.Errorf("limiter %d: %d granted, %d recorded, not %d", i, given[i].Load(), recorded, want)
		}
	}
	row{
		section: lost, fault: "`SCRIPT FLUSH`, again and again, while pipelines of many limiters are under way",
		sees:   "nothing",
		within: "99 of 100 calls within", limit: callTimeout + slack, after: "exact",
	}.proves(t, got.percentile(99))
}

// repetitions counts calls to Redis, and those with more than one command.
type repetitions struct{ calls, again atomic.Int64 }

func (r *repetitions) Call(f rratelimiter.CallInfo) {
	r.calls.Add(1)
	if f.Attempts > 1 {
		r.again.Add(1)
	}
}
