package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// worker_test.go is for tests with several processes: each runs this test binary, executes an order
// and prints its calls, one line of JSON each.

// workerEnv holds the order of a worker; a test binary that finds it set is one.
const workerEnv = "RRATELIMITER_FAULTS_WORKER"

// An order is the task of all workers of a test.
type order struct {
	Kind       string // a key of works
	Addr, Name string
	Goroutines int
	For        time.Duration
	Pause      time.Duration // mean, between the calls of a goroutine
	Away       time.Duration // the same, of the one caller in a stream who asks for many permits
}

// works are the tasks of workers. Each returns its calls once its context has ended.
var works = map[string]func(ctx context.Context, l *rratelimiter.Limiter, o order) calls{
	"crowd":  crowd,
	"stream": stream,
}

func workerMain(words string) int {
	if err := worker(words); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func worker(words string) error {
	var o order
	if err := json.Unmarshal([]byte(words), &o); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: o.Addr, ReadTimeout: time.Minute})
	defer rdb.Close()
	// A busy machine may pause for a second.
	limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(30*time.Second)).RateLimiter(o.Name)
	if _, err := limiter.State(context.Background()); err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	lines := json.NewEncoder(out)
	if err := errors.Join(lines.Encode("ready"), out.Flush()); err != nil {
		return err
	}
	var start time.Time
	if err := json.NewDecoder(os.Stdin).Decode(&start); err != nil {
		return err
	}
	time.Sleep(time.Until(start))
	ctx, cancel := context.WithDeadline(context.Background(), start.Add(o.For))
	defer cancel()
	for _, c := range works[o.Kind](ctx, limiter, o) {
		if c.err != nil && !errors.Is(c.err, context.DeadlineExceeded) && !errors.Is(c.err, context.Canceled) {
			return c.err
		}
		if !c.Granted && !c.Unknown {
			continue
		}
		if err := lines.Encode(c); err != nil {
			return err
		}
	}
	return out.Flush()
}

// runWorkers starts processes, lets them work at the same time once all are ready, and returns the
// calls of each and the start time of their work.
func runWorkers(t *testing.T, orders ...order) (got []calls, start time.Time) {
	t.Helper()
	got = make([]calls, len(orders))
	starts := make([]chan time.Time, len(orders))
	var ready, done sync.WaitGroup
	for i, o := range orders {
		starts[i] = make(chan time.Time, 1)
		ready.Add(1)
		done.Go(func() {
			var err error
			if got[i], err = runWorker(t.Context(), o, sync.OnceFunc(ready.Done), starts[i]); err != nil {
				t.Errorf("worker %d: %v", i, err)
			}
		})
	}
	ready.Wait()
	start = time.Now().Add(100 * time.Millisecond)
	for _, s := range starts {
		s <- start
	}
	done.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return got, start
}

// runWorker runs one process. It calls ready when the process is ready or has failed, and starts
// the work after start.
func runWorker(ctx context.Context, o order, ready func(), start <-chan time.Time) (got calls, err error) {
	defer ready()
	words, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(words))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	lines := json.NewDecoder(bufio.NewReader(out))
	var word string
	if err := lines.Decode(&word); err != nil {
		return nil, err
	}
	ready()
	if err := json.NewEncoder(in).Encode(<-start); err != nil {
		return nil, err
	}
	for lines.More() {
		var c call
		if err := lines.Decode(&c); err != nil {
			return got, err
		}
		got = append(got, c)
	}
	return got, nil
}

// crowd is a worker whose goroutines use every method, for 1 to 10 permits, with contexts and
// timeouts that end at random.
func crowd(ctx context.Context, l *rratelimiter.Limiter, o order) calls {
	logs := make([]calls, o.Goroutines)
	var wg sync.WaitGroup
	for i := range logs {
		wg.Go(func() {
			rest(ctx, rand.N(o.Pause))
			for ctx.Err() == nil {
				n := 1 + rand.Int64N(10)
				c := ask(n, func() (bool, error) { return anyWay(ctx, l, n, 2*o.Pause) })
				logs[i] = append(logs[i], c)
				if !c.Granted {
					rest(ctx, rand.N(2*o.Pause))
				}
			}
		})
	}
	wg.Wait()
	return slices.Concat(logs...)
}

// anyWay acquires permits with a random method, and waits no longer than a given time.
func anyWay(ctx context.Context, l *rratelimiter.Limiter, n int64, longest time.Duration) (bool, error) {
	switch rand.IntN(6) {
	case 0:
		ctx, cancel := context.WithTimeout(ctx, rand.N(longest))
		defer cancel()
		err := l.Acquire(ctx, n)
		return err == nil, err
	case 1:
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer time.AfterFunc(rand.N(longest), cancel).Stop()
		err := l.Acquire(ctx, n)
		return err == nil, err
	case 2:
		return l.TryAcquireTimeout(ctx, n, rand.N(longest))
	case 3:
		result, err := l.Allow(ctx, n)
		return result.Allowed, err
	case 4:
		// mostly ends while the call is in flight
		ctx, cancel := context.WithTimeout(ctx, rand.N(10*time.Millisecond))
		defer cancel()
		return l.TryAcquire(ctx, n)
	default:
		return l.TryAcquire(ctx, n)
	}
}

// big is the number of permits that the one caller of a stream requests.
const big = 50

// stream is a worker in which one caller acquires many permits, again and again, and all others one
// at a time. It returns the calls of the one. Its last call continues until it is served, so that
// starvation shows.
func stream(ctx context.Context, l *rratelimiter.Limiter, o order) (got calls) {
	var wg sync.WaitGroup
	for range o.Goroutines {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := l.Allow(ctx, 1); err != nil && ctx.Err() == nil {
					panic(err)
				}
				rest(ctx, rand.N(2*o.Pause))
			}
		})
	}
	for ctx.Err() == nil {
		got = append(got, ask(big, func() (bool, error) { return true, l.Acquire(context.WithoutCancel(ctx), big) }))
		rest(ctx, rand.N(2*o.Away))
	}
	wg.Wait()
	return got
}

// rest sleeps for a time, or until a context ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
