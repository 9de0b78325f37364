package rratelimiter_test

import (
	"context"
	"encoding"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/roomy"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

const ms = time.Millisecond

// A bubble is an embedded server in a synctest bubble, where time passes only while all goroutines wait.
type bubble struct {
	t      *testing.T
	server *miniredis.Miniredis
	start  time.Time
}

// end resumes the server, so that the calls in flight complete before the test ends.
func (b *bubble) end(resume func()) {
	resume()
	b.sleepTo(time.Since(b.start) + 10*time.Second)
}

// refused calls Allow and checks that it refuses, with the given RetryAfter.
func (b *bubble) refused(l *rratelimiter.Limiter, n int64, wait time.Duration) {
	b.t.Helper()
	result, err := l.Allow(b.t.Context(), n)
	if err != nil || result.Allowed || result.RetryAfter != wait {
		b.t.Errorf("%+v, %v, expected a refusal for %v", result, err, wait)
	}
}

// mustAllow calls Allow and checks its result.
func (b *bubble) mustAllow(what string, l *rratelimiter.Limiter, n int64, want rratelimiter.Result) {
	b.t.Helper()
	if got, err := l.Allow(b.t.Context(), n); err != nil || got != want {
		b.t.Errorf("%s: %+v, %v, expected %+v", what, got, err, want)
	}
}

// process starts another process. It ends with the test.
func (b *bubble) process(opts ...rratelimiter.Option) *process {
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
	b.t.Cleanup(func() {
		synctest.Wait() // for calls in flight, which a closed client would repeat later: but time has stopped
		rdb.Close()
	})
	for _, s := range []*script.Script{protocol.AcquireScript, protocol.ReleaseScript, protocol.ProbeScript} { // so that no call is three
		if err := rdb.ScriptLoad(b.t.Context(), s.Text).Err(); err != nil {
			b.t.Fatal(err)
		}
	}
	w := &wire{Client: rdb}
	p := &process{rratelimiter.NewClient(w, opts...), b.t, rdb, w}
	// Nothing stalls or lingers, however slow the wire is.
	rratelimiter.ClientCore(p.Client).Tune(dispatch.Tuning{Patience: time.Minute, Linger: time.Minute})
	return p
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

func (b *bubble) acquire(l *rratelimiter.Limiter, n int64) *call {
	return b.call(func(ctx context.Context) (bool, error) {
		err := l.Acquire(ctx, n)
		return err == nil, err
	})
}

func (b *bubble) try(l *rratelimiter.Limiter, n int64) *call {
	return b.call(func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, n) })
}

func (b *bubble) tryFor(l *rratelimiter.Limiter, n int64, timeout time.Duration) *call {
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

// inBubble runs a test in which times are exact.
func inBubble(t *testing.T, test func(t *testing.T, b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		t.Cleanup(m.Close) // after those of the processes, whose waiting callers give up
		test(t, &bubble{t: t, server: m, start: time.Now()})
	})
}

// A process is one client of a bubble's server; it represents a separate process.
type process struct {
	*rratelimiter.Client
	t    *testing.T
	rdb  *redis.Client
	wire *wire
}

// asks checks how many calls to Redis do makes.
func (p *process) asks(what string, want int64, do func()) {
	p.t.Helper()
	before := p.wire.scripts.Load()
	do()
	if got := p.wire.scripts.Load() - before; got != want {
		p.t.Errorf("%s: %d calls, expected %d", what, got, want)
	}
}

// stalls lets runs of the process stall, as usual.
func (p *process) stalls() {
	rratelimiter.ClientCore(p.Client).Tune(dispatch.Tuning{Linger: time.Minute})
}

// A wire is the connection of a process to its server: it counts scripts, delays commands, and can lose replies.
type wire struct {
	*redis.Client
	scripts atomic.Int64
	there   atomic.Int64          // ns from the process to the server
	back    atomic.Int64          // ns from the server to the process
	cut     atomic.Int64          // number of the script call whose reply is lost
	lost    atomic.Bool           // the next script call is written and does not arrive
	fault   atomic.Pointer[error] // error of each command, instead of a reply

	mu   sync.Mutex
	hung chan struct{}
}

// fail makes all commands fail from now on, until the returned function is called.
func (w *wire) fail(err error) (mend func()) {
	w.fault.Store(&err)
	return func() { w.fault.Store(nil) }
}

func (w *wire) Process(ctx context.Context, cmd redis.Cmder) error {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		if w.scripts.Add(1) == w.cut.Load() {
			_ = w.Client.Process(ctx, cmd)
			return io.EOF
		}
		if w.lost.Swap(false) {
			for _, arg := range cmd.Args() {
				if arg, ok := arg.(encoding.BinaryMarshaler); ok {
					_, _ = arg.MarshalBinary()
				}
			}
			cmd.SetErr(io.EOF)
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

// passNew lets new requests pass. Those that are held back stay so.
func (w *wire) passNew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = nil
}

// A call is one request of a test, in a goroutine of its own.
type call struct {
	ended atomic.Bool
	ok    bool
	err   error
	at    time.Duration // since the bubble began
	end   context.CancelFunc
}
