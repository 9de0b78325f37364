package classic_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// main_test.go has the helpers of all tests: a bench, which is a server whose time the test
// controls.

func TestMain(m *testing.M) { redistest.Main(m) }

const ms = time.Millisecond

// epoch begins a minute, and so every shorter window. It lies ahead, so that a real server expires
// nothing dated by it.
var epoch = time.Date(2036, time.January, 1, 12, 0, 0, 0, time.UTC)

// An asker is any of the limiters.
type asker interface {
	Allow(ctx context.Context, n int64) (rratelimiter.Result, error)
	Charge(ctx context.Context, n int64) (rratelimiter.Result, error)
	Peek(ctx context.Context, n int64) (rratelimiter.Result, error)
	Acquire(ctx context.Context, n int64) error
}

// A bench is a server, embedded or real, and a clock that stands still until the test moves it. It
// is also the server's clock: the embedded server follows it, and on a real one, TTLs are shortened
// by the same time.
type bench struct {
	testing.TB
	rdb  *redis.Client
	mini interface{ SetTime(time.Time) } // nil on a real server
	now  time.Time
}

func onServers(t *testing.T, body func(b *bench)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { onServer(t, s, body) })
}

// onServer runs the body with a new bench. TTLs of a real server run on while the bench's clock
// stands still, so that a machine that is held up can lose a key too early: there, a body that
// fails is run again on the emptied server, and the third run counts.
func onServer(t *testing.T, s *redistest.Server, body func(b *bench)) {
	t.Helper()
	if s.IsReal() {
		for range 2 {
			if tr := (&trial{TB: t}); tr.passes(func() { body(newBench(tr, s)) }) {
				return
			}
			newBench(t, s).do("flushdb")
		}
	}
	body(newBench(t, s))
}

// A trial logs the errors of a run that may fail.
type trial struct {
	testing.TB
	failed atomic.Bool
}

func (tr *trial) passes(body func()) bool {
	var run sync.WaitGroup
	run.Go(body) // which Fatalf ends
	run.Wait()
	return !tr.failed.Load()
}

func (tr *trial) Error(args ...any) { tr.Helper(); tr.Errorf("%s", fmt.Sprintln(args...)) }
func (tr *trial) Fatal(args ...any) { tr.Helper(); tr.Fatalf("%s", fmt.Sprintln(args...)) }
func (tr *trial) Errorf(format string, args ...any) {
	tr.Helper()
	tr.failed.Store(true)
	tr.Logf(format, args...)
}
func (tr *trial) Fatalf(format string, args ...any) {
	tr.Helper()
	tr.Errorf(format, args...)
	runtime.Goexit()
}

func newBench(tb testing.TB, s *redistest.Server) *bench {
	b := &bench{TB: tb, rdb: s.Client(), now: epoch}
	if !s.IsReal() {
		b.mini = s.Mini()
		b.mini.SetTime(b.now)
	}
	return b
}

func (b *bench) clock() classic.Option {
	return classic.WithClock(func() time.Time { return b.now })
}

// pass advances the clock.
func (b *bench) pass(d time.Duration) {
	b.Helper()
	b.now = b.now.Add(d)
	if b.mini != nil {
		b.mini.SetTime(b.now)
		return
	}
	for _, key := range b.rdb.Keys(b.Context(), "*").Val() {
		left := time.Duration(b.rdb.Do(b.Context(), "pttl", key).Val().(int64)) * ms
		if left > 0 {
			b.do("pexpire", key, (left - d).Milliseconds())
		}
	}
}

// at sets the clock to a time after the epoch.
func (b *bench) at(d time.Duration) {
	b.Helper()
	b.pass(epoch.Add(d).Sub(b.now))
}

// do runs a plain command, as other services and redis-cli do.
func (b *bench) do(args ...any) any {
	b.Helper()
	reply, err := b.rdb.Do(b.Context(), args...).Result()
	if err != nil && err != redis.Nil {
		b.Fatalf("%v: %v", args, err)
	}
	return reply
}

// holds fails the test unless a plain command has this reply.
func (b *bench) holds(want any, args ...any) {
	b.Helper()
	got := b.do(args...)
	if n, ok := want.(int); ok {
		want = int64(n)
	}
	if got != want {
		b.Errorf("%v: got %v, want %v", args, got, want)
	}
}

// lives fails the test unless a key has a TTL, up to the time that the machine takes for a few
// commands.
func (b *bench) lives(key string, want time.Duration) {
	b.Helper()
	got := time.Duration(b.do("pttl", key).(int64)) * ms
	if got > want || got < want-want/2-200*ms {
		b.Errorf("%s lives for %v, not %v", key, got, want)
	}
}

// granted requests n permits and fails the test unless they are granted.
func (b *bench) granted(l asker, n int64) rratelimiter.Result {
	b.Helper()
	return b.asked(l, n, true)
}

func (b *bench) refused(l asker, n int64) rratelimiter.Result {
	b.Helper()
	return b.asked(l, n, false)
}

func (b *bench) asked(l asker, n int64, allowed bool) rratelimiter.Result {
	b.Helper()
	r, err := l.Allow(b.Context(), n)
	if err != nil {
		b.Fatal(err)
	}
	if r.Allowed != allowed {
		b.Fatalf("Allow(%d) after %v: %+v", n, b.now.Sub(epoch), r)
	}
	return r
}

// takes returns how many of count requests for one permit are granted.
func (b *bench) takes(l asker, count int) (granted int) { b.Helper(); return b.takesOf(l, count, 1) }

// takesOf is takes for requests for n permits.
func (b *bench) takesOf(l asker, count int, n int64) (granted int) {
	b.Helper()
	for range count {
		r, err := l.Allow(b.Context(), n)
		if err != nil {
			b.Fatal(err)
		}
		if r.Allowed {
			granted++
		}
	}
	return granted
}

// equal fails the test unless a figure has the wanted value.
func equal[T comparable](b *bench, what string, got, want T) {
	b.Helper()
	if got != want {
		b.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// near is equal for times that a real server measures.
func (b *bench) near(what string, got, want time.Duration) {
	b.Helper()
	if got > want || got < want-want/2-200*ms {
		b.Errorf("%s: got %v, want %v", what, got, want)
	}
}
