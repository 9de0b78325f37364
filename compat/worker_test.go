package compat

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// worker_test.go is the Go counterpart of the harness's run: a separate process (this test binary
// again) whose goroutines acquire for a while and log their grants.

// workerEnv is the environment variable with the order of a worker. A test binary that finds it set
// runs as one.
const workerEnv = "RRATELIMITER_COMPAT_WORKER"

type order struct {
	Addr, Name  string
	Granularity time.Duration // 0: none
	Lease       time.Duration // 0: none
}

// workerMain prints a line when it is ready, reads its work, and prints a line of JSON for each
// grant.
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
	limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(patience)).RateLimiter(o.Name, options...)
	var work redisson.Work
	err := rdb.Ping(context.Background()).Err()
	if err == nil {
		fmt.Println("ready")
		err = json.NewDecoder(os.Stdin).Decode(&work)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
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
	acquireWhile(limiter, work, report)
	return failed
}

// acquireWhile makes goroutines acquire from a limiter for a while, as the threads of a harness do,
// and reports each grant and each error.
func acquireWhile(limiter *rratelimiter.Limiter, work redisson.Work, report func(redisson.Grant, error)) {
	time.Sleep(time.Until(work.At))
	end := time.Now().Add(work.For)
	// The end cancels callers that still wait. A grant at that very moment is missing from the log
	// and known to Redis only.
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

// A worker is a Go process on one limiter.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startGo starts a worker, and returns when it is ready.
func startGo(t *testing.T, o order) *worker {
	t.Helper()
	words, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{cmd: exec.Command(os.Args[0])}
	w.cmd.Env = append(os.Environ(), workerEnv+"="+string(words))
	w.cmd.Stderr = os.Stderr
	w.in, err = w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.out.ReadString('\n'); err != nil {
		t.Fatalf("a Go worker: %v", err)
	}
	return w
}

// run lets the worker work once. It returns its log when the process has ended.
func (w *worker) run(t *testing.T, work redisson.Work) (grants []redisson.Grant) {
	err := json.NewEncoder(w.in).Encode(work)
	for lines := json.NewDecoder(w.out); err == nil; {
		var g redisson.Grant
		if err = lines.Decode(&g); err == nil {
			grants = append(grants, g)
		}
	}
	if err != io.EOF {
		t.Errorf("the log of a Go worker: %v", err)
	}
	if err := w.cmd.Wait(); err != nil {
		t.Errorf("a Go worker: %v", err)
	}
	return grants
}
