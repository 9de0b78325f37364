package compat

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

// worker_test.go is the Go counterpart of the harness's run: a separate process (this test binary again) whose
// goroutines acquire for a while and log their grants.

// workerEnv is the environment variable with the order of a worker. A test binary that finds it set runs as one.
const workerEnv = "RRATELIMITER_COMPAT_WORKER"

type order struct {
	Addr, Name  string
	Granularity time.Duration // 0: none
	Lease       time.Duration // 0: none
	Work        redisson.Work
}

// workerMain executes the order of a worker, and prints a line of JSON for each grant.
func workerMain(words string) int {
	var o order
	if err := json.Unmarshal([]byte(words), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	rdb := redis.NewClient(&redis.Options{Addr: o.Addr})
	defer rdb.Close()
	var options []rratelimiter.LimiterOption
	if o.Granularity > 0 {
		options = append(options, rratelimiter.WithGranularity(o.Granularity))
	}
	if o.Lease > 0 {
		options = append(options, rratelimiter.WithLease(o.Lease))
	}
	limiter := rratelimiter.NewClient(rdb).RateLimiter(o.Name, options...)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var mu sync.Mutex
	failed := 0
	report := func(g redisson.Grant, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = 1
			fmt.Fprintln(os.Stderr, err)
			return
		}
		line, _ := json.Marshal(g)
		out.Write(append(line, '\n'))
	}
	acquireWhile(limiter, o.Work, report)
	return failed
}

// acquireWhile makes goroutines acquire from a limiter for a while, as the threads of a harness do, and reports each
// grant and each error.
func acquireWhile(limiter *rratelimiter.Limiter, work redisson.Work, report func(redisson.Grant, error)) {
	time.Sleep(time.Until(work.At))
	end := time.Now().Add(work.For)
	// The end cancels callers that still wait. A grant at that very moment is missing from the log and known to Redis
	// only.
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	var wg sync.WaitGroup
	for thread := range work.Threads {
		wg.Go(func() {
			for time.Now().Before(end) {
				n := work.Min + rand.Int64N(work.Max-work.Min+1)
				start := time.Now()
				granted, err := true, error(nil)
				if work.Blocked {
					err = limiter.Acquire(ctx, n)
				} else {
					granted, err = limiter.TryAcquire(context.Background(), n)
				}
				switch {
				case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
				case err != nil || granted:
					report(redisson.Grant{Thread: thread, Permits: n, Start: start, End: time.Now()}, err)
				}
				if err != nil || !granted {
					time.Sleep(work.Pause)
				}
			}
		})
	}
	wg.Wait()
}

// runGo runs a worker and parses its log.
func runGo(t *testing.T, o order) []redisson.Grant {
	words, err := json.Marshal(o)
	if err != nil {
		t.Error(err)
		return nil
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(words))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("a Go worker: %v", err)
	}
	var grants []redisson.Grant
	for line := range bytes.Lines(out) {
		var g redisson.Grant
		if err := json.Unmarshal(line, &g); err != nil {
			t.Errorf("a Go worker's line %q: %v", line, err)
			break
		}
		grants = append(grants, g)
	}
	return grants
}
