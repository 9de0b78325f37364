package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/roomy"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// A bubble is an embedded server in a synctest bubble, where time passes only while all goroutines wait.
type bubble struct {
	t      *testing.T
	server *miniredis.Miniredis
	start  time.Time
}

// inBubble runs a test in which times are exact.
func inBubble(t *testing.T, test func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		defer m.Close()
		test(t, &bubble{t: t, server: m, start: time.Now()})
	})
}

// A process is one client of a bubble's server; it represents a separate process.
type process struct {
	*Client
	t    *testing.T
	rdb  *redis.Client
	wire *wire
}

// process starts another process. It ends with the test.
func (b *bubble) process(opts ...Option) *process {
	rdb := redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:6379", // not used; a host name would need a lookup, which does not work in a bubble
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			pipe, err := b.server.Dial()
			if err != nil {
				return nil, err
			}
			return roomy.Conn(pipe), nil
		},
		// Otherwise go-redis looks up the server's name, which does not work in a bubble.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	b.t.Cleanup(func() { rdb.Close() })
	for _, s := range []*script.Script{protocol.AcquireScript, protocol.ReleaseScript} { // so that no call is two
		if err := rdb.ScriptLoad(b.t.Context(), s.Text).Err(); err != nil {
			b.t.Fatal(err)
		}
	}
	w := &wire{Client: rdb}
	p := &process{NewClient(w, opts...), b.t, rdb, w}
	p.core.Tune(dispatch.Tuning{Patience: time.Minute, Linger: time.Minute}) // nothing stalls or lingers, however slow the wire is
	return p
}

// stalls lets runs of the process stall, as usual.
func (p *process) stalls() { p.core.Tune(dispatch.Tuning{Linger: time.Minute}) }

// A wire is the connection of a process to its server: it counts scripts, delays commands, and can lose replies.
type wire struct {
	*redis.Client
	scripts atomic.Int64
	there   atomic.Int64          // ns from the process to the server
	back    atomic.Int64          // ns from the server to the process
	cut     atomic.Int64          // number of the script call whose reply is lost
	fault   atomic.Pointer[error] // error of each command, instead of a reply

	mu   sync.Mutex
	hung chan struct{}
}

func (w *wire) Process(ctx context.Context, cmd redis.Cmder) error {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		if w.scripts.Add(1) == w.cut.Load() {
			_ = w.Client.Process(ctx, cmd)
			return io.EOF
		}
	}
	if fault := w.fault.Load(); fault != nil {
		cmd.SetErr(*fault)
		return *fault
	}
	time.Sleep(time.Duration(w.there.Load()))
	w.mu.Lock()
	hung := w.hung
	w.mu.Unlock()
	if hung != nil {
		<-hung
	}
	err := w.Client.Process(ctx, cmd)
	time.Sleep(time.Duration(w.back.Load()))
	return err
}

// hang holds requests back until the returned function is called.
func (w *wire) hang() (resume func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hung := make(chan struct{})
	w.hung = hung
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.hung == hung {
			w.hung = nil
		}
		close(hung)
	}
}

// A call is one request of a test, in a goroutine of its own.
type call struct {
	ended atomic.Bool
	ok    bool
	err   error
	at    time.Duration // since the bubble began
	end   context.CancelFunc
}

// call makes a request, and returns once it has ended or waits.
func (b *bubble) call(ask func(ctx context.Context) (bool, error)) *call {
	ctx, cancel := context.WithCancel(context.Background())
	b.t.Cleanup(cancel)
	c := &call{end: cancel}
	go func() {
		c.ok, c.err = ask(ctx)
		c.at = time.Since(b.start)
		c.ended.Store(true)
	}()
	synctest.Wait()
	return c
}

func (b *bubble) acquire(l *Limiter, n int64) *call {
	return b.call(func(ctx context.Context) (bool, error) {
		err := l.Acquire(ctx, n)
		return err == nil, err
	})
}

func (b *bubble) try(l *Limiter, n int64) *call {
	return b.call(func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, n) })
}

func (b *bubble) tryFor(l *Limiter, n int64, timeout time.Duration) *call {
	return b.call(func(ctx context.Context) (bool, error) { return l.TryAcquireTimeout(ctx, n, timeout) })
}

// granted checks that a call was granted at the given time since the bubble began.
func (b *bubble) granted(what string, c *call, at time.Duration) {
	b.t.Helper()
	b.ended(what, c, true, at)
	if c.err != nil {
		b.t.Errorf("%s: %v", what, c.err)
	}
}

// ended checks the result of a call and the time when it ended.
func (b *bubble) ended(what string, c *call, ok bool, at time.Duration) {
	b.t.Helper()
	synctest.Wait()
	switch {
	case !c.ended.Load():
		b.t.Errorf("%s still waits at %v, expected its end at %v", what, time.Since(b.start), at)
	case c.ok != ok || c.at != at:
		b.t.Errorf("%s ended with %v, %v at %v, expected %v at %v", what, c.ok, c.err, c.at, ok, at)
	}
}

// waits checks that a call has not ended yet.
func (b *bubble) waits(what string, c *call) {
	b.t.Helper()
	synctest.Wait()
	if c.ended.Load() {
		b.t.Errorf("%s ended with %v, %v at %v, expected it to wait", what, c.ok, c.err, c.at)
	}
}

// sleepTo sleeps until the given time since the bubble began.
func (b *bubble) sleepTo(at time.Duration) {
	time.Sleep(at - time.Since(b.start))
	synctest.Wait()
}

const ms = time.Millisecond

// When the first waiting caller leaves, in whatever way, the callers that it held up are served at once.
func TestHeadThatLeavesLetsSmallerOnesGo(t *testing.T) {
	// In all cases 8 of 10 permits a second are used: a request for 5 must wait for a second, one for 1 need not.
	full := func(t *testing.T, b *bubble) (*process, *Limiter) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		b.granted("the first", b.acquire(l, 8), 0)
		b.sleepTo(100 * ms)
		return p, l
	}
	t.Run("its context ends in the queue", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			_, l := full(t, b)
			big, small := b.acquire(l, 5), b.acquire(l, 1)
			b.waits("the small one", small)
			b.sleepTo(250 * ms)
			big.end()
			b.granted("the small one", small, 250*ms)
		})
	})
	t.Run("its time is over", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			p, l := full(t, b)
			resume := p.wire.hang()
			first := b.acquire(l, 5)
			timed, small := b.tryFor(l, 5, 50*ms), b.acquire(l, 1)
			b.sleepTo(200 * ms)
			b.ended("the timed one", timed, false, 150*ms)
			first.end()
			resume()
			b.granted("the small one", small, 200*ms)
		})
	})
	t.Run("its context ends in flight", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			p, l := full(t, b)
			plug, next := p.wire.hang(), (func())(nil)
			b.try(l, 10)
			big, small := b.acquire(l, 5), b.acquire(l, 1)
			next = p.wire.hang()
			plug()
			b.sleepTo(200 * ms)
			big.end()
			b.waits("the small one", small)
			next()
			b.granted("the small one", small, 200*ms)
		})
	})
	t.Run("its context ends in flight, behind another", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			p, l := full(t, b)
			plug := p.wire.hang()
			b.try(l, 10)
			first, big, small := b.acquire(l, 1), b.acquire(l, 5), b.acquire(l, 1)
			next := p.wire.hang()
			plug()
			b.sleepTo(200 * ms)
			big.end()
			next()
			b.granted("the first in the queue", first, 200*ms)
			b.granted("the small one", small, 200*ms)
		})
	})
	t.Run("it can't be served in time", func(t *testing.T) {
		inBubble(t, func(t *testing.T, b *bubble) {
			p, l := full(t, b)
			plug := p.wire.hang()
			b.try(l, 10)
			timed, small, timedToo, try := b.tryFor(l, 5, 500*ms), b.acquire(l, 1), b.tryFor(l, 1, 500*ms), b.try(l, 1)
			plug()
			b.ended("the timed one", timed, false, 100*ms)
			b.granted("the small one", small, 100*ms)
			b.granted("the small timed one", timedToo, 100*ms)
			b.ended("the one that tries", try, false, 100*ms)
		})
	})
}

// Many callers that cannot be served in time get their results from one call, not from one each.
func TestRefusedCallersShareOneCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		b.granted("the first", b.acquire(l, 10), 0)
		before := p.wire.scripts.Load()
		var all []*call
		resume := p.wire.hang()
		b.try(l, 1)
		for range 100 {
			all = append(all, b.tryFor(l, 1, 500*ms))
		}
		resume()
		for _, c := range all {
			b.ended("a refused caller", c, false, 0)
		}
		if calls := p.wire.scripts.Load() - before; calls > 3 {
			t.Errorf("%d calls", calls)
		}
	})
}

// The only process that uses a limiter never yields, even if its first call both grants and refuses.
func TestAloneTheQueueWakesExactly(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(100)))
		plug := p.wire.hang()
		b.try(l, 101)
		var all []*call
		for range 4 {
			all = append(all, b.acquire(l, 50))
		}
		plug()
		b.sleepTo(3 * time.Second)
		for i, c := range all {
			b.granted("a caller", c, time.Duration(i/2)*time.Second)
		}
	})
}

// Without Redisson on the server, the queue always asks on time.
func TestQueueThatGetsAllIsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		var all []*call
		for range 300 {
			all = append(all, b.acquire(l, 1))
		}
		b.sleepTo(time.Minute)
		for i, c := range all {
			b.granted(fmt.Sprint("caller ", i), c, time.Duration(i/10)*time.Second)
		}
	})
}

// A queue with more sizes than a call carries neither delays tries nor floods Redis with calls.
func TestTriesBehindALongQueueOfSizes(t *testing.T) {
	for _, opts := range [][]LimiterOption{nil, {WithRecordPerRequest()}} {
		inBubble(t, func(t *testing.T, b *bubble) {
			p := b.process()
			l := p.RateLimiter("l", append(opts, WithRate(PerSecond(900)))...)
			b.granted("the first", b.acquire(l, 900), 0)
			b.sleepTo(100 * ms)
			var queued []*call
			for i := range 600 {
				queued = append(queued, b.acquire(l, int64(1+i%2)))
			}
			before := p.wire.scripts.Load()
			try, result := b.try(l, 1), Result{}
			allow := b.call(func(ctx context.Context) (ok bool, err error) {
				result, err = l.Allow(ctx, 3)
				return result.Allowed, err
			})
			b.ended("the one that tries", try, false, 100*ms)
			b.ended("the one that asks", allow, false, 100*ms)
			if result.RetryAfter != 900*ms || result.ResetAfter != 900*ms || result.Limit != 900 {
				t.Errorf("%+v", result)
			}
			b.sleepTo(999 * ms)
			if calls := p.wire.scripts.Load() - before; calls > 5 {
				t.Errorf("%d calls while nothing could be granted", calls)
			}
			resume := p.wire.hang()
			b.sleepTo(1001 * ms)
			behind := b.try(l, 1) // behind a queue that takes several calls: all of it is served first
			resume()
			b.sleepTo(1002 * ms)
			for _, c := range queued {
				b.granted("one in the queue", c, 1001*ms)
			}
			b.ended("the one behind", behind, false, 1001*ms)
		})
	}
}

// The wait in a reply counts from the time when the call was sent, not from the time when the reply arrived.
func TestTimeoutOnASlowWire(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		b.granted("the first", b.acquire(l, 10), 0)
		b.sleepTo(500 * ms)
		p.wire.back.Store(int64(300 * ms))
		timed := b.tryFor(l, 1, 550*ms) // refused at 800 ms; free at 1000 ms; timeout at 1050 ms
		b.sleepTo(2 * time.Second)
		b.granted("the timed one", timed, 1300*ms)
	})
}

func TestAcquireWaitsExactlyForTheOldestGrants(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		b.granted("6 of 10", b.acquire(l, 6), 0)
		b.sleepTo(300 * ms)
		b.granted("4 more", b.acquire(l, 4), 300*ms)
		first, second := b.acquire(l, 5), b.acquire(l, 5)
		b.sleepTo(1299 * ms)
		b.granted("the caller that needs the first grant back", first, 1000*ms)
		b.waits("the caller that needs the second one, too", second)
		b.sleepTo(1300 * ms)
		b.granted("the caller that needs the second one, too", second, 1300*ms)
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(5)))
		var all []*call
		for i := range 40 {
			all = append(all, b.acquire(l, int64(1+i*7%4)))
		}
		b.sleepTo(time.Minute)
		var used int64
		at := time.Duration(0)
		for i, c := range all {
			if n := int64(1 + i*7%4); used+n > 5 {
				at, used = at+time.Second, n
			} else {
				used += n
			}
			if i == 0 || c.at >= all[i-1].at {
				continue
			}
			t.Errorf("caller %d at %v, after caller %d at %v", i, c.at, i-1, all[i-1].at)
		}
		if last := all[len(all)-1]; !last.ok || last.at > at {
			t.Errorf("the last one was served at %v (%v), expected at most %v", last.at, last.ok, at)
		}
	})
}

// A thousand callers on 100 permits a second take the minimal time, and one call for each second.
func TestThousandCallersWait(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(100)))
		var all sync.WaitGroup
		plug := p.wire.hang()
		for range 1000 {
			all.Go(func() {
				if err := l.Acquire(t.Context(), 1); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		plug()
		all.Wait()
		if took := time.Since(b.start); took != 9*time.Second {
			t.Errorf("took %v, expected 9 s", took)
		}
		if n := p.wire.scripts.Load(); n != 2+9 { // the first caller's, the others', and one for each second
			t.Errorf("%d calls", n)
		}
	})
}

// A stream of small requests does not delay a big one forever.
func TestBigRequestUnderAStreamOfSmallOnes(t *testing.T) {
	long(t)
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(100)))
		stop := make(chan struct{})
		var passed int // small ones granted while the big one waited
		var big atomic.Pointer[call]
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * ms):
				}
				c := big.Load()
				r, err := l.Allow(t.Context(), 1)
				if err != nil {
					t.Error(err)
				}
				if r.Allowed && c != nil && !c.ended.Load() {
					passed++
				}
			}
		}()
		b.sleepTo(1500 * ms)
		big.Store(b.acquire(l, 50))
		b.sleepTo(2500 * ms)
		close(stop)
		synctest.Wait()
		if c := big.Load(); !c.ok || c.at > 2100*ms { // half of the permits granted in the second before have returned
			t.Errorf("granted: %v (%v) at %v", c.ok, c.err, c.at)
		}
		if passed > 0 {
			t.Errorf("%d small ones passed it", passed)
		}
	})
}

func TestNoCallerOvertakesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		b.granted("8 of 10", b.acquire(l, 8), 0)
		b.sleepTo(100 * ms)
		first := b.acquire(l, 5)

		b.ended("one that tries", b.try(l, 1), false, 100*ms)
		b.ended("one whose time is short", b.tryFor(l, 1, 500*ms), false, 100*ms)
		r, err := l.Allow(t.Context(), 2)
		if want := (Result{Limit: 10, RetryAfter: 900 * ms, ResetAfter: 900 * ms}); r != want || err != nil {
			t.Errorf("%+v, %v, expected %+v", r, err, want)
		}
		calls := p.wire.scripts.Load()
		if n, err := l.AcquireUpTo(t.Context(), 2); n != 0 || err != nil || p.wire.scripts.Load() != calls {
			t.Errorf("AcquireUpTo: %d, %v", n, err)
		}
		patient, behind := b.tryFor(l, 1, 2*time.Second), b.acquire(l, 4)
		b.sleepTo(999 * ms)
		b.waits("the first", first)
		b.waits("the patient one", patient)
		b.sleepTo(1000 * ms)
		for _, c := range []*call{first, patient, behind} {
			b.granted("one in the queue", c, 1000*ms)
		}
		if n, err := l.AcquireUpTo(t.Context(), 2); n != 0 || err != nil {
			t.Errorf("AcquireUpTo of an empty limiter: %d, %v", n, err)
		}
	})
}

func TestContextThatEndsBeforeTheCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("some cause"))
		for name, ask := range everyWay(l) {
			if err := ask(ctx, 1); !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := l.AcquireUpTo(ctx, 1); !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("AcquireUpTo: %v", err)
		}
		if _, err := l.Release(ctx, 1); !errors.Is(err, context.Canceled) || errors.Is(err, ErrOutcomeUnknown) {
			t.Errorf("Release: %v", err)
		}
		if n := p.wire.scripts.Load(); n != 0 {
			t.Errorf("%d calls were made", n)
		}
	})
}

// everyWay has all methods that acquire n permits, by name.
func everyWay(l *Limiter) map[string]func(ctx context.Context, n int64) error {
	return map[string]func(ctx context.Context, n int64) error{
		"Allow":      func(ctx context.Context, n int64) error { _, err := l.Allow(ctx, n); return err },
		"TryAcquire": func(ctx context.Context, n int64) error { _, err := l.TryAcquire(ctx, n); return err },
		"TryAcquireTimeout": func(ctx context.Context, n int64) error {
			_, err := l.TryAcquireTimeout(ctx, n, time.Minute)
			return err
		},
		"Acquire": l.Acquire,
	}
}

func TestContextThatEndsInTheQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		b.granted("the first", b.acquire(l, 10), 0)
		in, ended := b.acquire(l, 1), 0
		b.waits("the waiter", in)
		for name, ask := range everyWay(l) {
			if name != "Acquire" && name != "TryAcquireTimeout" {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
			before := time.Now()
			err := ask(ctx, 1)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(before); took != 100*ms {
				t.Errorf("%s returned after %v", name, took)
			}
			ended++
		}
		resume := p.wire.hang()
		b.try(l, 1)
		try := b.try(l, 1) // behind the call in flight
		try.end()
		b.ended("a try behind a call in flight", try, false, time.Duration(ended)*100*ms)
		if !errors.Is(try.err, context.Canceled) || errors.Is(try.err, ErrOutcomeUnknown) {
			t.Errorf("a try behind a call in flight: %v", try.err)
		}
		resume()
		b.sleepTo(time.Second)
		b.granted("the waiter", in, time.Second)
		if s := state(t, l); s.Used != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

func state(t *testing.T, l *Limiter) State {
	t.Helper()
	s, err := l.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// While Redis hangs, a caller returns exactly when its context ends.
func TestContextThatEndsInFlight(t *testing.T) {
	for name := range everyWay(nil) {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				l := p.RateLimiter("l", WithRate(PerSecond(10)))
				resume := p.wire.hang()
				ctx, cancel := context.WithTimeout(t.Context(), 70*ms)
				defer cancel()
				err := everyWay(l)[name](ctx, 3)
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("%v", err)
				}
				if at := time.Since(b.start); at != 70*ms {
					t.Errorf("returned at %v", at)
				}
				resume()
				synctest.Wait()
				if s := state(t, l); s.Used != 3 || !s.Consistent { // no other caller wanted them
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A context that ends once the reply has arrived changes nothing: the permits are the caller's.
func TestContextThatEndsAtTheGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(1)))
		granted := 0
		for i := range 50 {
			ctx, cancel := context.WithDeadline(t.Context(), b.start.Add(time.Duration(i)*time.Second))
			if i == 0 {
				ctx, cancel = context.WithCancel(t.Context())
			}
			switch err := l.Acquire(ctx, 1); { // free at the instant at which ctx ends
			case err == nil:
				granted++
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%v", err)
			case !errors.Is(err, ErrOutcomeUnknown):
				// It waited in the queue, so no permit may be taken for it.
				synctest.Wait()
				if s := state(t, l); s.Used != 0 {
					t.Errorf("%+v", s)
				}
				b.granted("the next one", b.acquire(l, 1), time.Since(b.start))
			}
			cancel()
			b.sleepTo(time.Duration(i)*time.Second + ms/2)
		}
		if granted == 0 {
			t.Error("nothing was granted")
		}
	})
}

func TestGrantOfACancelledCaller(t *testing.T) {
	for _, c := range []struct {
		name          string
		behind        int64
		granted, used int64
	}{
		{"goes to the next one", 6, 6, 6 + 1},
		{"goes to the next one, which needs less", 5, 5, 6 + 1},
		{"stays taken when no caller can use it", 7, 0, 6 + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				l := p.RateLimiter("l", WithRate(PerSecond(10)))
				plug := p.wire.hang()
				b.try(l, 1)
				gone, behind := b.acquire(l, 6), b.acquire(l, c.behind)
				next := p.wire.hang()
				plug()
				b.sleepTo(10 * ms)
				gone.end()
				b.ended("the cancelled one", gone, false, 10*ms)
				if !errors.Is(gone.err, context.Canceled) || !errors.Is(gone.err, ErrOutcomeUnknown) {
					t.Errorf("the cancelled one: %v", gone.err)
				}
				next()
				synctest.Wait()
				if c.granted > 0 {
					b.granted("the caller that is behind", behind, 10*ms)
				} else {
					b.waits("the caller that is behind", behind)
				}
				if s := state(t, l); s.Used != c.used || !s.Consistent {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A change by this process takes effect for waiting callers at once, also through a handle with other options.
func TestLocalChangesWakeWaiters(t *testing.T) {
	hour := Rate{Permits: 10, Interval: time.Hour}
	for name, change := range map[string]func(context.Context, *Limiter) error{
		"SetRate": func(ctx context.Context, l *Limiter) error {
			return l.SetRate(ctx, Rate{Permits: 11, Interval: time.Hour}, KeepState())
		},
		"SetRate without state": func(ctx context.Context, l *Limiter) error { return l.SetRate(ctx, hour) },
		"UpdateRate": func(ctx context.Context, l *Limiter) error {
			_, err := l.UpdateRate(ctx, Rate{Permits: 11, Interval: time.Hour}, KeepState())
			return err
		},
		"Release": func(ctx context.Context, l *Limiter) error { _, err := l.Release(ctx, 1); return err },
		"Delete":  func(ctx context.Context, l *Limiter) error { _, err := l.Delete(ctx); return err },
		"Rename":  func(ctx context.Context, l *Limiter) error { return l.Rename(ctx, "other") },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, b *bubble) {
				p := b.process()
				l := p.RateLimiter("l")
				if err := l.SetRate(t.Context(), hour); err != nil {
					t.Fatal(err)
				}
				b.granted("the first", b.acquire(l, 10), 0)
				waiter := b.acquire(l, 1)
				b.sleepTo(1234567 * time.Microsecond)
				b.waits("the waiter", waiter)
				if err := change(t.Context(), p.RateLimiter("l", WithServerTime())); err != nil {
					t.Fatal(err)
				}
				gone := name == "Delete" || name == "Rename"
				b.ended("the waiter", waiter, !gone, 1234567*time.Microsecond)
				if gone != errors.Is(waiter.err, ErrNotInitialized) {
					t.Errorf("%v", waiter.err)
				}
			})
		})
	}
}

// A release of which only the first part is known to have succeeded wakes waiting callers, too.
func TestReleaseThatFailsHalfwayWakesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(Rate{Permits: 3000, Interval: time.Hour}), WithRecordPerRequest())
		plug := p.wire.hang()
		b.try(l, 3001)
		for range 3000 {
			go l.Acquire(t.Context(), 1)
		}
		plug()
		synctest.Wait()
		waiter := b.acquire(l, 1)
		b.waits("the waiter", waiter)
		p.wire.cut.Store(p.wire.scripts.Load() + 2)
		n, err := l.Release(t.Context(), 2500)
		if n == 0 || n == 2500 || !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("%d, %v", n, err)
		}
		b.granted("the waiter", waiter, 0)
	})
}

// Changes by other processes are noticed at a poll: after 1 s at first, after 15 s at most.
func TestChangesElsewhereAreNoticed(t *testing.T) {
	hour := Rate{Permits: 10, Interval: time.Hour}
	for _, c := range []struct {
		tries         int // by other callers of the process while callers wait
		after, within time.Duration
	}{{0, 100 * ms, 900 * ms}, {5, 100 * ms, 900 * ms}, {0, 10 * time.Minute, 15 * time.Second}} {
		inBubble(t, func(t *testing.T, b *bubble) {
			p, elsewhere := b.process(), b.process()
			l, deleted := p.RateLimiter("l", WithRate(hour)), p.RateLimiter("deleted")
			if err := deleted.SetRate(t.Context(), hour); err != nil {
				t.Fatal(err)
			}
			b.granted("the first", b.acquire(l, 10), 0)
			b.granted("the first", b.acquire(deleted, 10), 0)
			waiter, other := b.acquire(l, 1), b.acquire(deleted, 1)
			for range c.tries {
				b.try(l, 1)
				b.try(deleted, 1)
			}
			b.sleepTo(c.after)
			if err := elsewhere.RateLimiter("l").SetRate(t.Context(), Rate{Permits: 11, Interval: time.Hour}, KeepState()); err != nil {
				t.Fatal(err)
			}
			if _, err := elsewhere.RateLimiter("deleted").Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.sleepTo(c.after + c.within)
			if !waiter.ok {
				t.Errorf("after %v: %v", c.after, waiter.err)
			}
			if !errors.Is(other.err, ErrNotInitialized) {
				t.Errorf("after %v: %v", c.after, other.err)
			}
			if n, most := p.wire.scripts.Load(), 2*(10+int64(c.tries)+int64(c.after/(13*time.Second))); n > most {
				t.Errorf("%d calls within %v, expected at most %d", n, c.after+c.within, most)
			}
		})
	}
}

// They are noticed as soon if the first waiting caller got its refusal from a call that stalled, before a later call
// for others.
func TestChangesElsewhereAreNoticedAfterAStall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p, elsewhere := b.process(), b.process()
		p.stalls()
		hour := Rate{Permits: 10, Interval: time.Hour}
		l := p.RateLimiter("l", WithRate(hour))
		b.granted("the first", b.acquire(l, 10), 0)
		stalled := p.wire.hang()
		waiter := b.acquire(l, 1)
		b.sleepTo(2 * pipeline.ShortestStall)
		next := p.wire.hang()
		other := b.acquire(l, 1)
		stalled()
		synctest.Wait()
		next()
		synctest.Wait()
		if err := elsewhere.RateLimiter("l").SetRate(t.Context(), Rate{Permits: 12, Interval: time.Hour}, KeepState()); err != nil {
			t.Fatal(err)
		}
		b.sleepTo(2*pipeline.ShortestStall + time.Second)
		if !waiter.ok || !other.ok {
			t.Errorf("%v, %v", waiter.err, other.err)
		}
	})
}

// Closing the redis client ends all waiting when the queue wakes next.
func TestClosedRedisClientEndsWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", WithRate(Rate{Permits: 1, Interval: time.Hour}))
		b.granted("the first", b.acquire(l, 1), 0)
		var all []*call
		for range 20 {
			all = append(all, b.acquire(l, 1))
		}
		b.sleepTo(5 * time.Minute)
		p.rdb.Close()
		b.sleepTo(5*time.Minute + 15*time.Second)
		for _, c := range all {
			if !errors.Is(c.err, redis.ErrClosed) || errors.Is(c.err, ErrOutcomeUnknown) {
				t.Errorf("%v, %v at %v", c.ok, c.err, c.at)
			}
		}
		if err := l.Acquire(t.Context(), 1); !errors.Is(err, redis.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestClosedRedisClientEndsWaitingSoon(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		l := NewClient(rdb).RateLimiter("l", WithRate(Rate{Permits: 1, Interval: time.Hour}))
		if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
		ended := make(chan error)
		for range 20 {
			go func() { ended <- l.Acquire(context.Background(), 1) }()
		}
		time.Sleep(200 * time.Millisecond)
		closed := time.Now()
		rdb.Close()
		for range 20 {
			if err := <-ended; !errors.Is(err, redis.ErrClosed) {
				t.Error(err)
			}
		}
		// Without the check of the client, the first sleep alone would last most of a second, and the next ones longer.
		if took := time.Since(closed); took > 600*time.Millisecond {
			t.Errorf("callers knew it after %v", took)
		}
	})
}

// A call that times out fails its own requests, and no others.
func TestCallThatTakesTooLong(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &log{}
		p := b.process(WithCallTimeout(250*ms), WithObserver(log))
		p.stalls()
		l := p.RateLimiter("l", WithRate(PerSecond(10)))
		p.wire.back.Store(int64(400 * ms))
		in := b.acquire(l, 1)
		b.sleepTo(100 * ms)
		p.wire.back.Store(0)
		b.granted("the caller that comes once the call has stalled", b.acquire(l, 2), 100*ms)
		b.granted("the caller that tries then", b.try(l, 3), 100*ms)
		b.sleepTo(249 * ms)
		b.waits("the caller that is in the call", in)
		b.sleepTo(250 * ms)
		b.ended("the caller that is in the call", in, false, 250*ms)
		if !errors.Is(in.err, ErrOutcomeUnknown) || !errors.Is(in.err, os.ErrDeadlineExceeded) || errors.Is(in.err, context.DeadlineExceeded) {
			t.Errorf("the caller that is in the call: %v", in.err)
		}
		b.sleepTo(500 * ms) // the late reply is dropped
		if s := state(t, l); s.Used != 6 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if f := log.all()[2]; f.Err == nil || f.Attempts != 1 || f.Callers != 1 || f.Denied != 1 || f.Latency != 250*ms {
			t.Errorf("%+v", f)
		}
	})
}

// If Redis is far away, callers that retry as soon as they are answered do not just miss the next call.
func TestDistantCallsLingerForRetries(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		const takes, rounds = 20 * ms, 10
		p := b.process()
		p.core.Tune(dispatch.Tuning{Patience: time.Minute})
		l := p.RateLimiter("l", WithRate(PerSecond(10000)))
		p.wire.back.Store(int64(takes))
		b.try(l, 1) // the following ones wait behind it
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				for range rounds {
					if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
						t.Error(ok, err)
					}
				}
			})
		}
		p.asks("a call a round", rounds, all.Wait)
		if took := time.Since(b.start); took > (rounds+2)*(takes+takes/10) {
			t.Errorf("it took %v", took)
		}
		waiting := b.acquire(l, 10000)
		b.sleepTo(time.Since(b.start) + 2*time.Second)
		if !waiting.ended.Load() {
			t.Error("the queue of a waiting caller was dropped")
		}
	})
}

// Almost no memory remains of unused limiters, and a queue in use is never dropped.
func TestQueuesAreDropped(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		limiter := func(i int) *Limiter { return p.RateLimiter(fmt.Sprint(i), WithRate(PerSecond(1))) }
		long := limiter(0)
		b.granted("the first one", b.acquire(long, 1), 0)
		waiting := b.acquire(long, 1)
		for i := range 2 * dispatch.SpareQueues {
			for name, ask := range everyWay(limiter(1 + i)) {
				if name == "Allow" || name == "TryAcquire" {
					if err := ask(t.Context(), 1); err != nil {
						t.Error(err)
					}
				}
			}
			if i%2 == 0 {
				b.acquire(limiter(1+i), 1).end()
			}
		}
		synctest.Wait()
		if all := p.core.Inspect(); all.Queues != 1+dispatch.SpareQueues || all.StrayTimers != 0 {
			t.Errorf("%+v, not one queue in use and %d spare ones, without timers", all, dispatch.SpareQueues)
		}
		behind := b.acquire(limiter(0), 1)
		synctest.Wait()
		if all := p.core.Inspect(); all.Waiting != 2 || all.Busy != 1 {
			t.Error("another handle has another queue")
		} else {
			b.sleepTo(2 * time.Second)
			b.granted("the caller that waited", waiting, time.Second)
			b.granted("the caller that came behind", behind, 2*time.Second)
		}
		old := limiter(3 * dispatch.SpareQueues)
		b.granted("a handle whose queue is parked", b.try(old, 1), 2*time.Second)
		for i := range dispatch.SpareQueues {
			b.granted("others", b.try(limiter(1+i), 1), 2*time.Second)
		}
		if old.core.HasQueue() {
			t.Error("a dropped queue is held by its handle")
		}
		b.sleepTo(3 * time.Second)
		b.granted("a handle whose queue was dropped", b.try(old, 1), 3*time.Second)
	})
}

// After many callers whose requests end in all possible ways, no goroutine, timer or blocked connection remains.
func TestCrowdLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	inBubble(t, func(t *testing.T, b *bubble) { // a bubble fails by itself if one of its goroutines remains
		p := b.process()
		l := p.RateLimiter("l", WithRate(PerSecond(100)))
		p.wire.there.Store(int64(3 * ms))
		p.wire.back.Store(int64(2 * ms))
		var all sync.WaitGroup
		var mu sync.Mutex
		var granted int64
		var log []window.Grant
		for i := range 600 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(4*time.Second))))
				defer cancel()
				n, start := 1+r.Int64N(5), time.Now()
				var err error
				ok := false
				switch i % 4 {
				case 0:
					err = l.Acquire(ctx, n)
					ok = err == nil
				case 1:
					ok, err = l.TryAcquire(ctx, n)
				case 2:
					ok, err = l.TryAcquireTimeout(ctx, n, time.Duration(r.Int64N(int64(3*time.Second))))
				case 3:
					var result Result
					result, err = l.Allow(ctx, n)
					ok = result.Allowed
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if ok {
					mu.Lock()
					defer mu.Unlock()
					granted += n
					log = append(log, window.Grant{Permits: n, Start: start, End: time.Now()})
				}
			})
		}
		all.Wait()
		if most, at := window.Largest(log, time.Second); most > 100 {
			t.Errorf("%d permits in the second from %v", most, at.Sub(b.start))
		}
		if granted < 300 {
			t.Errorf("only %d permits were granted in %v", granted, time.Since(b.start))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s := state(t, l); s.Used != 0 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if i := p.core.Inspect(); i.Waiting+i.Busy+i.StrayTimers+i.InFlight+i.Stalled+i.Queued != 0 {
			t.Errorf("%+v", i)
		}
	})
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * ms)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// A log is an Observer that records calls.
type log struct {
	mu    sync.Mutex
	calls []CallInfo
}

func (l *log) Call(f CallInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, f)
}

func (l *log) all() []CallInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]CallInfo(nil), l.calls...)
}

func TestObserverSeesEachCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &log{}
		p := b.process(WithObserver(log))
		l := p.RateLimiter("orders", WithRate(PerSecond(10)))
		if err := l.SetRate(t.Context(), PerSecond(11)); err != nil { // another rate than the handle's
			t.Fatal(err)
		}
		p.wire.there.Store(int64(2 * ms))
		p.wire.back.Store(int64(3 * ms))
		resume := p.wire.hang()
		plug := b.acquire(l, 1)
		var all []*call
		for range 3 {
			all = append(all, b.acquire(l, 4))
		}
		all = append(all, b.try(l, 1), b.acquire(l, 12))
		resume()
		b.sleepTo(100 * ms)
		_ = plug
		all[2].end()
		synctest.Wait()
		b.sleepTo(200 * ms)
		b.server.Set("{orders}:value", "12")
		if n, err := l.AcquireUpTo(t.Context(), 5); n != 2 || err != nil {
			t.Errorf("AcquireUpTo: %d, %v", n, err)
		}
		b.server.Del("orders")
		bare := p.RateLimiter("orders")
		if err := bare.Acquire(t.Context(), 1); !errors.Is(err, ErrNotInitialized) {
			t.Error(err)
		}
		want := []CallInfo{
			{Callers: 1, Granted: 1, Permits: 1, Waiting: 4, RateMismatch: true},
			{Callers: 5, Granted: 2, Denied: 2, Permits: 8, Waiting: 1, RateMismatch: true},
			{Callers: 1, Granted: 1, Permits: 2, Repaired: "free permits were above the rate", RateMismatch: true},
			{Callers: 1, Denied: 1, Err: ErrNotInitialized},
		}
		got := log.all()
		if len(got) != len(want) {
			t.Fatalf("%+v", got)
		}
		for i, f := range got {
			if f.Latency != 5*ms {
				t.Errorf("call %d took %v", i, f.Latency)
			}
			if !errors.Is(f.Err, want[i].Err) || (f.Err != nil) != (want[i].Err != nil) {
				t.Errorf("call %d: %v", i, f.Err)
			}
			f.Latency, f.Err, want[i].Err = 0, nil, nil
			want[i].Limiter, want[i].Attempts = "orders", 1
			if f != want[i] {
				t.Errorf("call %d: %+v, expected %+v", i, f, want[i])
			}
		}
	})
}

// Enforcing a rate over another one takes a second attempt.
func TestObserverCountsAttempts(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		log := &log{}
		p := b.process(WithObserver(log))
		if err := p.RateLimiter("l").SetRate(t.Context(), PerSecond(5)); err != nil {
			t.Fatal(err)
		}
		b.granted("the caller that enforces", b.acquire(p.RateLimiter("l", WithEnforcedRate(PerSecond(10))), 10), 0)
		if f := log.all()[0]; f.Attempts != 2 || f.RateMismatch || f.Permits != 10 {
			t.Errorf("%+v", f)
		}
	})
}
