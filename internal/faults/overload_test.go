package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// overload_test.go lets ten thousand callers use one limiter whose Redis is dead.

const callersOfADeadRedis = 10_000

// TestManyCallersOfADeadRedis: all get an error soon after their own deadline, and no goroutine or
// memory of them is left.
func TestManyCallersOfADeadRedis(t *testing.T) {
	var w worst
	call := func(addr func(*testing.T) string, opts ...rratelimiter.LimiterOption) func(t *testing.T) {
		return func(t *testing.T) {
			inRounds(t, func(t *testing.T, r *round) {
				took, own := overload(t, r, addr(t), opts...)
				r.atMost("99 of 100 callers, after their deadline", took, tolerance+machine*own)
				w.note(r, took, own)
			})
		}
	}
	t.Run("connection refused", call(func(t *testing.T) string { return redistest.Nowhere(t) }))
	t.Run("black hole", call(blackHole))
	t.Run("black hole, with a fallback", call(blackHole, rratelimiter.WithFallback(1)))
	row{
		section: gone, fault: "dead, it refuses connections or answers nothing, and 10,000 callers ask one limiter",
		sees: "the error of its context, or the connection's error when the call's time is over; without a " +
			"deadline, after up to twice this time",
		within: "99 of 100 return after their deadline within", limit: tolerance, late: &lateness{w.late},
		after: "unchanged; no goroutine and no memory of these calls remains in the process",
	}.proves(t, w.took)
}

// tolerance is the bound of the time by which 99 of 100 callers return after their deadline.
const tolerance = 500 * time.Millisecond

// blackHole returns an address that accepts connections, and never replies.
func blackHole(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		accepting.Wait()
	})
	return listener.Addr().String()
}

// overload calls a dead Redis, with a deadline for most callers. Callers without one return once a
// call's time is over, or twice that: some arrive while the maximum of calls is in flight, and wait
// for the end of one. It returns how late 99 of 100 callers noticed their deadline, and how late
// goroutines did that only waited.
func overload(t *testing.T, r *round, addr string, opts ...rratelimiter.LimiterOption) (took, late time.Duration) {
	const (
		// bytes, with its own stack, and what is not collected yet: on a busy machine as much again
		perCaller = 40 << 10
		callers   = callersOfADeadRedis * 11 / 10
		rest      = 16 << 20 // bytes; the runtime keeps what it knew of goroutines
		timeout   = time.Second
	)
	rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(timeout)).
		RateLimiter("overload", append(opts, rratelimiter.WithRate(ample))...)
	runtime.GC()
	goroutines, before := runtime.NumGoroutine(), memory()

	var most uint64
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(50 * time.Millisecond):
				most = max(most, memory())
			}
		}
	})
	got, idle := overdue(t, func(ctx context.Context, caller int) (bool, error) {
		switch caller % 4 {
		case 0:
			return true, limiter.Acquire(ctx, 1)
		case 1:
			result, err := limiter.Allow(ctx, 1)
			return result.Allowed, err
		}
		return limiter.TryAcquire(ctx, 1)
	})
	unbounded := load(callersOfADeadRedis/10, 1, 0, lasting(0), func(int) call {
		return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
	})
	close(done)
	watching.Wait()
	took, late = got.percentile(99), idle.percentile(99)
	last := got.percentile(100)

	t.Logf(
		"%d calls: median %v after their deadline, p99 %v, the last %v; callers who only wait: %v, %v, %v; %d MB in use, %d before",
		len(got), got.percentile(50), took, last, idle.percentile(50), late, idle.percentile(100), most>>20, before>>20,
	)
	// the machine can stop any goroutine for seconds
	r.atMost("the last caller, after its deadline", last, 2*slack+idle.percentile(100))
	for _, c := range got {
		if len(opts) > 0 && c.Granted && c.err == nil {
			continue
		}
		if !errors.Is(c.err, syscall.ECONNREFUSED) && !errors.Is(c.err, os.ErrDeadlineExceeded) &&
			!errors.Is(c.err, context.DeadlineExceeded) {
			t.Fatalf("a caller's error is %v", c.err)
		}
	}
	t.Logf("without a deadline: median %v, the last %v", unbounded.percentile(50), unbounded.percentile(100))
	r.atMost("a caller without a deadline", unbounded.percentile(100), 2*timeout+2*slack)
	if answers := unbounded.where(answered); len(opts) > 0 && len(answers) < len(unbounded) ||
		len(opts) == 0 && len(answers) > 0 {
		t.Errorf("%d of %d callers without a deadline had an answer", len(answers), len(unbounded))
	}
	if most > before+callers*perCaller {
		t.Errorf("%d bytes in use for %d callers", most-before, callers)
	}
	atRest(t)
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	eventually(t, "all memory is free", func() bool {
		runtime.GC()
		return memory() < before+rest
	})
	return took, late
}

// overdue makes calls with random deadlines, and returns them as though they had begun at their
// deadlines. A tenth as many goroutines only wait for a deadline: they measure the machine's own
// lateness.
func overdue(t *testing.T, acquire func(ctx context.Context, caller int) (bool, error)) (got, idle calls) {
	const (
		often    = 2 // calls of each
		shortest = 200 * time.Millisecond
		longest  = 1200 * time.Millisecond
	)
	all := load(callersOfADeadRedis*11/10, often, 0, lasting(0), func(caller int) call {
		deadline := time.Now().Add(shortest + rand.N(longest-shortest))
		ctx, cancel := context.WithDeadline(t.Context(), deadline)
		defer cancel()
		c := ask(1, func() (bool, error) {
			if caller%11 == 10 {
				<-ctx.Done()
				return false, errIdle
			}
			return acquire(ctx, caller)
		})
		c.Start = deadline
		return c
	})
	isIdle := func(c call) bool { return c.err == errIdle }
	return all.where(func(c call) bool { return !isIdle(c) }), all.where(isIdle)
}

var errIdle = errors.New("nothing was asked")

// memory returns the heap and stacks that the process has in use, or has not yet returned.
func memory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}
