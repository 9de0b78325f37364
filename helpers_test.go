package rratelimiter_test

import (
	"context"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// helpers_test.go has what tests of any kind use; rig_test.go, bubble_test.go and tap_test.go have the harnesses.

// A handClock moves only when the test advances it.
type handClock struct{ ns atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.ns.Store(time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *handClock) now() time.Time { return time.Unix(0, c.ns.Load()) }

func (c *handClock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// autoPipelined returns an AutoPipeliner over a client. With a go-redis before 9.22, which has none, it returns the client
// itself. By reflection, because the oldest go-redis must compile it, too.
func autoPipelined(t *testing.T, rdb redis.UniversalClient) redis.UniversalClient {
	t.Helper()
	method := reflect.ValueOf(rdb).MethodByName("AutoPipeline")
	if !method.IsValid() {
		return rdb
	}
	made := method.Call(nil)
	if err, failed := made[1].Interface().(error); failed {
		t.Fatal(err)
	}
	pipelined := made[0].Interface().(redis.UniversalClient)
	t.Cleanup(func() { _ = pipelined.Close() })
	return pipelined
}

// patient is a call timeout that outlasts pauses of a busy machine, which can last seconds.
var patient = rratelimiter.WithCallTimeout(time.Minute)

// standstills measures how long this process did not run although it should have, until the returned function is
// called. Durations measured on a real server must allow for that.
func standstills(t *testing.T) (stood func() time.Duration) {
	const tick, usual = 2 * ms, 6 * ms
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

// soon waits until is returns true.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1000 {
		if is() {
			return
		}
		time.Sleep(10 * ms)
	}
	t.Fatalf("%s did not happen", what)
}

func mustTry(t *testing.T, l *rratelimiter.Limiter, n int64, want bool) {
	t.Helper()
	if got, err := l.TryAcquire(t.Context(), n); err != nil || got != want {
		t.Fatalf("TryAcquire(%d): %v, %v, expected %v", n, got, err, want)
	}
}

func mustSet(t *testing.T, l *rratelimiter.Limiter, r rratelimiter.Rate) {
	t.Helper()
	if err := l.SetRate(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func mustAllow(t *testing.T, l *rratelimiter.Limiter, n int64, want bool) {
	t.Helper()
	if r, err := l.Allow(t.Context(), n); err != nil || r.Allowed != want {
		t.Fatalf("Allow(%d): %+v, %v, expected %v", n, r, err, want)
	}
}

func state(t *testing.T, l *rratelimiter.Limiter) rratelimiter.State {
	t.Helper()
	s, err := l.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// keysOf returns the names of a limiter's keys, if its client has no name mapper.
func keysOf(l *rratelimiter.Limiter) []string {
	names := keys.Names(l.Name(), l.Client().ID())
	return names[:]
}

// oneCall requests permits for several groups of callers in a call of its own.
func oneCall(ctx context.Context, l *rratelimiter.Limiter, ask protocol.Ask) (protocol.AcquireReply, error) {
	return rratelimiter.LimiterCore(l).DoWithRetry(ctx, new(script.Attempts), ask)
}

// longestInterval is that of a rate.
const longestInterval = math.MaxInt64 / time.Millisecond * time.Millisecond

// endLeases ends the leases of a limiter, by a change that changes nothing.
func endLeases(t *testing.T, l *rratelimiter.Limiter) {
	t.Helper()
	if set, err := l.TrySetRate(t.Context(), rratelimiter.PerHour(1)); set || err != nil {
		t.Fatal(set, err)
	}
}
