package rig

import (
	"context"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A HandClock moves only when the test advances it.
type HandClock struct{ ns atomic.Int64 }

// NewHandClock returns a HandClock that stands at the same time in every test.
func NewHandClock() *HandClock {
	c := &HandClock{}
	c.ns.Store(time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return c
}

// Now returns the time.
func (c *HandClock) Now() time.Time { return time.Unix(0, c.ns.Load()) }

// Advance moves the clock forward.
func (c *HandClock) Advance(d time.Duration) { c.ns.Add(int64(d)) }

// AutoPipelined returns an AutoPipeliner over a client.
func AutoPipelined(t *testing.T, rdb interface {
	AutoPipeline() (*redis.AutoPipeliner, error)
}) redis.UniversalClient {
	t.Helper()
	pipelined, err := rdb.AutoPipeline()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipelined.Close() })
	return pipelined
}

// Patient is a call timeout that outlasts pauses of a busy machine, which can last seconds.
var Patient = rratelimiter.WithCallTimeout(time.Minute)

// Standstills measures how long this process did not run although it should have, until the
// returned function is called. Durations measured on a real server must allow for that.
func Standstills(t *testing.T) (stood func() time.Duration) {
	const tick, usual = 2 * time.Millisecond, 6 * time.Millisecond
	stop, sum := make(chan struct{}), make(chan time.Duration, 1)
	stood = sync.OnceValue(func() time.Duration {
		time.Sleep(2 * usual) // the goroutine that measures may resume before this one
		close(stop)
		return <-sum
	})
	go func() {
		var total time.Duration
		for last := time.Now(); ; {
			select {
			case <-stop:
				sum <- total
				return
			case <-time.After(tick):
			}
			if gap := time.Since(last); gap > usual {
				total += gap - tick
			}
			last = time.Now()
		}
	}()
	t.Cleanup(func() { stood() })
	return stood
}

// HeapAlloc returns how many bytes of the heap are in use.
func HeapAlloc() int64 {
	var m runtime.MemStats
	for range 3 { // the second one also empties the pools
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Soon waits until is returns true, at most about 10 s; then the test fails.
func Soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s did not happen", what)
}

// MustTry calls TryAcquire and checks its result.
func MustTry(t *testing.T, l *rratelimiter.Limiter, n int64, want bool) {
	t.Helper()
	if got, err := l.TryAcquire(t.Context(), n); err != nil || got != want {
		t.Fatalf("TryAcquire(%d): %v, %v, expected %v", n, got, err, want)
	}
}

// MustSet is SetRate; an error fails the test.
func MustSet(t *testing.T, l *rratelimiter.Limiter, r rratelimiter.Rate) {
	t.Helper()
	if err := l.SetRate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// MustTrySet calls TrySetRate and checks its result.
func MustTrySet(t *testing.T, l *rratelimiter.Limiter, r rratelimiter.Rate, want bool) {
	t.Helper()
	if got, err := l.TrySetRate(t.Context(), r); err != nil || got != want {
		t.Fatalf("TrySetRate(%v): %v, %v, expected %v", r, got, err, want)
	}
}

// MustAllow calls Allow and checks whether it allows.
func MustAllow(t *testing.T, l *rratelimiter.Limiter, n int64, want bool) {
	t.Helper()
	if r, err := l.Allow(t.Context(), n); err != nil || r.Allowed != want {
		t.Fatalf("Allow(%d): %+v, %v, expected %v", n, r, err, want)
	}
}

// MustBeFree checks the number of free permits.
func MustBeFree(t *testing.T, l *rratelimiter.Limiter, want int64) {
	t.Helper()
	if got, err := l.AvailablePermits(t.Context()); err != nil || got != want {
		t.Fatalf("AvailablePermits: %v, %v, expected %v", got, err, want)
	}
}

// State is Limiter.State; an error fails the test.
func State(t *testing.T, l *rratelimiter.Limiter) rratelimiter.State {
	t.Helper()
	s, err := l.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Keys returns the names of a limiter's keys, if its client has no name mapper.
func Keys(l *rratelimiter.Limiter) []string {
	names := keys.Names(l.Name(), l.Client().ID())
	return names[:]
}

// OneCall requests permits for several groups of callers in a call of its own.
func OneCall(ctx context.Context, l *rratelimiter.Limiter, ask protocol.BatchAsk) (protocol.Reply, error) {
	return LimiterCore(l).DoWithRetry(ctx, new(script.Attempts), ask)
}

// LongestInterval is the longest interval that a rate may have.
const LongestInterval = math.MaxInt64 / time.Millisecond * time.Millisecond

// EndLeases ends the leases of a limiter, by a TrySetRate that changes nothing.
func EndLeases(t *testing.T, l *rratelimiter.Limiter) {
	t.Helper()
	if set, err := l.TrySetRate(t.Context(), rratelimiter.PerHour(1)); set || err != nil {
		t.Fatal(set, err)
	}
}

// ErrRefused is the error of a server that is not running.
var ErrRefused = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}

// NewRing returns a client of three embedded servers.
func NewRing(t *testing.T) *redis.Ring {
	addrs := map[string]string{}
	for _, shard := range []string{"one", "two", "three"} {
		addrs[shard] = redistest.Embedded(t).Addr
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs})
	t.Cleanup(func() { ring.Close() })
	return ring
}

// Groups returns groups of callers, given pairs of size and number.
func Groups(sizes ...int64) (groups []protocol.Group) {
	for i := 0; i < len(sizes); i += 2 {
		groups = append(groups, protocol.Group{Permits: protocol.Permits{First: sizes[i]}, Count: sizes[i+1]})
	}
	return groups
}
