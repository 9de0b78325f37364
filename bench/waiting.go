package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// waiting.go measures callers that wait for one permit each: the total time, and the number of
// commands.

// idealTime returns the shortest time in which all callers can get a permit, if they arrive evenly
// over the duration arrive and each gets its permit as soon as the rate allows.
func idealTime(callers int, rate rratelimiter.Rate, arrive time.Duration) time.Duration {
	granted := make([]time.Duration, callers)
	for i := range granted {
		granted[i] = arrive * time.Duration(i) / time.Duration(callers)
		if before := i - int(rate.Permits); before >= 0 {
			granted[i] = max(granted[i], granted[before]+rate.Interval)
		}
	}
	return granted[callers-1]
}

// wait measures a contender whose callers wait.
func (b *lab) wait(ctx context.Context, c *contender, s scene, callers int, arrive time.Duration) (Sample, error) {
	if err := b.clear(ctx); err != nil {
		return Sample{}, err
	}
	if err := b.setScene(ctx, s); err != nil {
		return Sample{}, err
	}
	run := func() (counts, error) { return b.processRun(ctx, s, callers/b.processes) }
	if c.name != rowProcesses {
		r, err := c.open(ctx, b, s)
		if err != nil {
			return Sample{}, err
		}
		defer r.close()
		run = func() (counts, error) { return r.wait(ctx, callers, arrive) }
	}
	sample, err := b.spent(ctx, c, run)
	sample.Ideal = idealTime(callers, s.rate, arrive).Seconds()
	if c.name == rowProcesses {
		sample.Allocs = 0 // the workers' allocations are not measured
	}
	return sample, err
}

// workerEnv is the environment variable with the order of a worker, which is this program as one of
// several processes.
const workerEnv = "RRATELIMITER_BENCH_WORKER"

// An order is the input of a worker: a number of callers that wait for one permit each, from the
// same moment on; or, with a pace, requests for one permit that come at random (order.paced).
type order struct {
	Addr, Name string
	Callers    int
	Pace       float64       // requests a second; 0: callers that wait
	Lease      time.Duration // 0: none
	Time       time.Duration // after the warm-up
}

// A finding is the result of a worker.
type finding struct {
	Requests, Denied int64 // of an order with a pace
	Permits          int64
	// of an order with a pace: start and end of each request that was granted, ns
	Grants    [][2]int64
	End       time.Time
	Latencies *hdrhistogram.Snapshot
}

// workerMain runs a worker and returns its exit code. The worker prints "ready", reads the start
// time from its input, runs its callers from then on, and prints its finding.
func workerMain(text string) int {
	f, err := workerRun(text)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = json.NewEncoder(os.Stdout).Encode(f)
	return 0
}

func workerRun(text string) (finding, error) {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return finding{}, err
	}
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: o.Addr})
	defer rdb.Close()
	var opts []rratelimiter.LimiterOption
	if o.Lease > 0 {
		opts = append(opts, rratelimiter.WithLease(o.Lease))
	}
	limiter := rratelimiter.NewClient(rdb).RateLimiter(o.Name, opts...)
	if _, err := limiter.Config(ctx); err != nil { // connects
		return finding{}, err
	}
	fmt.Println("ready")
	var at time.Time
	if err := json.NewDecoder(os.Stdin).Decode(&at); err != nil {
		return finding{}, err
	}
	if o.Pace > 0 {
		return o.paced(ctx, limiter, at)
	}
	time.Sleep(time.Until(at))
	seen, err := new(crew).once(ctx, o.Callers, 0, func(ctx context.Context, _ int, n int64, _ bool) (bool, error) {
		return true, limiter.Acquire(ctx, n)
	})
	if err != nil {
		return finding{}, err
	}
	return finding{Permits: seen.permits, End: time.Now(), Latencies: seen.latencies.Export()}, nil
}

// processRun starts workers whose callers wait from the same moment on, and returns the sum of
// their findings.
func (b *lab) processRun(ctx context.Context, s scene, callers int) (counts, error) {
	_, all, err := runWorkers(
		ctx, order{Addr: s.addr, Name: s.names[0], Callers: callers}, b.processes, func(time.Time) error { return nil },
	)
	all.requests = all.permits
	return all, err
}

// runWorkers starts n workers with an order, which begin at the same moment, and returns their
// findings and the sum. prepare is called shortly before that moment.
func runWorkers(ctx context.Context, o order, n int, prepare func(at time.Time) error) ([]finding, counts, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, counts{}, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, counts{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var ready, over sync.WaitGroup
	ready.Add(n)
	start := make(chan time.Time)
	findings := make([]finding, n)
	errs := make([]error, n+1)
	for i := range n {
		over.Go(func() {
			errs[i] = worker(ctx, program, string(text), &ready, start, &findings[i])
		})
	}
	ready.Wait()
	at := time.Now().Add(100 * time.Millisecond)
	errs[n] = prepare(at)
	for range n {
		start <- at
	}
	over.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, counts{}, err
	}
	all := counts{}
	latencies := newHistogram(o.Callers <= fewCallers)
	for _, f := range findings {
		all.requests += f.Requests
		all.denied += f.Denied
		all.permits += f.Permits
		all.took = max(all.took, f.End.Sub(at))
		latencies.Merge(hdrhistogram.Import(f.Latencies))
	}
	all.summarise(latencies)
	return findings, all, nil
}

// worker runs one process. It calls ready.Done exactly once and receives exactly once from start,
// even if it fails.
func worker(
	ctx context.Context, program, text string, ready *sync.WaitGroup, start <-chan time.Time, f *finding,
) error {
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), workerEnv+"="+text)
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	err = errors.Join(err, err2)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		ready.Done()
		<-start
		return err
	}
	lines := bufio.NewReader(out)
	_, err = lines.ReadString('\n')
	ready.Done()
	at := <-start
	if err == nil {
		err = errors.Join(json.NewEncoder(in).Encode(at), json.NewDecoder(lines).Decode(f))
	}
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("worker: %s: %w", strings.TrimSpace(said.String()), err)
	}
	return nil
}
