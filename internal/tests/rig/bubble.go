package rig

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
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Bubble is an embedded server in a synctest bubble, where time passes only while all goroutines
// wait.
type Bubble struct {
	T      *testing.T
	Server *miniredis.Miniredis
	Start  time.Time // the times of its methods count from here
}

// End resumes the server, so that the calls in flight complete before the test ends.
func (b *Bubble) End(resume func()) {
	resume()
	b.SleepTo(time.Since(b.Start) + 10*time.Second)
}

// Refused calls Allow and checks that it refuses, with the given RetryAfter.
func (b *Bubble) Refused(l *rratelimiter.Limiter, n int64, wait time.Duration) {
	b.T.Helper()
	result, err := l.Allow(b.T.Context(), n)
	if err != nil || result.Allowed || result.RetryAfter != wait {
		b.T.Errorf("%+v, %v, expected a refusal for %v", result, err, wait)
	}
}

// MustAllow calls Allow and checks its result.
func (b *Bubble) MustAllow(what string, l *rratelimiter.Limiter, n int64, want rratelimiter.Result) {
	b.T.Helper()
	if got, err := l.Allow(b.T.Context(), n); err != nil || got != want {
		b.T.Errorf("%s: %+v, %v, expected %+v", what, got, err, want)
	}
}

// Dial makes a connection to the server.
func (b *Bubble) Dial(context.Context, string, string) (net.Conn, error) {
	pipe, err := b.Server.Dial()
	if err != nil {
		return nil, err
	}
	return netpipe.Conn(pipe), nil
}

// Options returns the options of a redis client in the bubble.
func (b *Bubble) Options(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *redis.Options {
	return &redis.Options{
		// not used; a host name would need a lookup, which does not work in a bubble
		Addr:   "127.0.0.1:6379",
		Dialer: dial,
		// Otherwise go-redis looks up the server's name, which does not work in a bubble.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// scripts has those that embedded servers know, by their names.
var scripts sync.Map

// ShareScripts gives the server the scripts that servers of earlier bubbles were given. To load
// them takes longer than all else in a test of one call.
func (b *Bubble) ShareScripts() {
	known := *field[map[string]string](b.Server, "scripts")
	scripts.Range(func(name, text any) bool {
		known[name.(string)] = text.(string)
		return true
	})
	b.T.Cleanup(func() {
		for name, text := range known {
			scripts.Store(name, text)
		}
	})
}

// Process starts another process. It ends with the test.
func (b *Bubble) Process(opts ...rratelimiter.Option) *Process {
	rdb := redis.NewClient(b.Options(b.Dial))
	b.T.Cleanup(func() {
		// for calls in flight, which a closed client would repeat later: but time has stopped
		synctest.Wait()
		rdb.Close()
	})
	if err := rdb.Ping(b.T.Context()).Err(); err != nil { // it makes a connection
		b.T.Fatal(err)
	}
	b.Server.Lock()
	known := *field[map[string]string](b.Server, "scripts")
	// so that no call is three
	for _, s := range []*script.Script{
		protocol.AcquireScript, protocol.AcquireManyScript, protocol.AllowAllScript, protocol.ReleaseScript,
		protocol.ProbeScript,
	} {
		known[s.SHA] = s.Text
	}
	b.Server.Unlock()
	w := &Wire{Client: rdb}
	p := &Process{Client: rratelimiter.NewClient(w, opts...), Redis: rdb, Wire: w, t: b.T}
	// Nothing stalls or lingers, however slow the wire is.
	Core(p.Client).Tune(limiter.Tuning{Patience: time.Minute, Linger: time.Minute})
	return p
}

// Call makes a request, and returns once it has ended or waits.
func (b *Bubble) Call(ask func(ctx context.Context) (bool, error)) *Call {
	ctx, cancel := context.WithCancel(context.Background())
	b.T.Cleanup(cancel)
	c := &Call{Cancel: cancel}
	go func() {
		c.OK, c.Err = ask(ctx)
		c.At = time.Since(b.Start)
		c.Ended.Store(true)
	}()
	synctest.Wait()
	return c
}

// Acquire makes a Call of Limiter.Acquire.
func (b *Bubble) Acquire(l *rratelimiter.Limiter, n int64) *Call {
	return b.Call(func(ctx context.Context) (bool, error) {
		err := l.Acquire(ctx, n)
		return err == nil, err
	})
}

// Try makes a Call of Limiter.TryAcquire.
func (b *Bubble) Try(l *rratelimiter.Limiter, n int64) *Call {
	return b.Call(func(ctx context.Context) (bool, error) { return l.TryAcquire(ctx, n) })
}

// TryFor makes a Call of Limiter.TryAcquireTimeout.
func (b *Bubble) TryFor(l *rratelimiter.Limiter, n int64, timeout time.Duration) *Call {
	return b.Call(func(ctx context.Context) (bool, error) { return l.TryAcquireTimeout(ctx, n, timeout) })
}

// Granted checks that a call was granted at the given time since the bubble began.
func (b *Bubble) Granted(what string, c *Call, at time.Duration) {
	b.T.Helper()
	b.Ended(what, c, true, at)
	if c.Err != nil {
		b.T.Errorf("%s: %v", what, c.Err)
	}
}

// Ended checks the result of a call and the time when it ended.
func (b *Bubble) Ended(what string, c *Call, ok bool, at time.Duration) {
	b.T.Helper()
	synctest.Wait()
	switch {
	case !c.Ended.Load():
		b.T.Errorf("%s still waits at %v, expected its end at %v", what, time.Since(b.Start), at)
	case c.OK != ok || c.At != at:
		b.T.Errorf("%s ended with %v, %v at %v, expected %v at %v", what, c.OK, c.Err, c.At, ok, at)
	}
}

// Waits checks that a call has not ended yet.
func (b *Bubble) Waits(what string, c *Call) {
	b.T.Helper()
	synctest.Wait()
	if c.Ended.Load() {
		b.T.Errorf("%s ended with %v, %v at %v, expected it to wait", what, c.OK, c.Err, c.At)
	}
}

// SleepTo sleeps until the given time since the bubble began.
func (b *Bubble) SleepTo(at time.Duration) {
	time.Sleep(at - time.Since(b.Start))
	synctest.Wait()
}

// InBubble runs a test in a Bubble.
func InBubble(t *testing.T, test func(t *testing.T, b *Bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		t.Cleanup(m.Close) // after those of the processes, whose waiting callers give up
		test(t, &Bubble{T: t, Server: m, Start: time.Now()})
	})
}

// A Process is one client of a bubble's server; it represents a separate process.
type Process struct {
	*rratelimiter.Client
	Redis *redis.Client // to read and write the keys, past the Wire
	Wire  *Wire

	t *testing.T
}

// CheckCalls checks how many calls to Redis do makes.
func (p *Process) CheckCalls(what string, want int64, do func()) {
	p.t.Helper()
	before := p.Wire.Calls()
	do()
	if got := p.Wire.Calls() - before; got != want {
		p.t.Errorf("%s: %d calls, expected %d", what, got, want)
	}
}

// MayStall lets runs of the process stall, as usual.
func (p *Process) MayStall() {
	Core(p.Client).Tune(limiter.Tuning{Linger: time.Minute})
}

// A Wire is the connection of a process to its server: it counts scripts, delays commands, and can
// lose replies.
type Wire struct {
	*redis.Client
	scripts atomic.Int64          // calls of scripts so far
	There   atomic.Int64          // ns from the process to the server
	Back    atomic.Int64          // ns from the server to the process
	Cut     atomic.Int64          // number of the script call whose reply is lost
	Lost    atomic.Bool           // the next script call is written and does not arrive
	Fault   atomic.Pointer[error] // error of each command, instead of a reply

	mu   sync.Mutex
	hung chan struct{}
}

// Calls returns how many scripts were called so far, once all goroutines of the bubble wait: so a
// call in the background is never counted by chance. Only one goroutine of the bubble may call it
// at a time.
func (w *Wire) Calls() int64 {
	synctest.Wait()
	return w.scripts.Load()
}

// Fail makes all commands fail from now on, until the returned function is called.
func (w *Wire) Fail(err error) (mend func()) {
	w.Fault.Store(&err)
	return func() { w.Fault.Store(nil) }
}

// Process sends a command.
func (w *Wire) Process(ctx context.Context, cmd redis.Cmder) error {
	if name := cmd.Name(); name == "evalsha" || name == "eval" {
		if w.scripts.Add(1) == w.Cut.Load() {
			_ = w.Client.Process(ctx, cmd)
			return io.EOF
		}
		if w.Lost.Swap(false) {
			for _, arg := range cmd.Args() {
				if arg, ok := arg.(encoding.BinaryMarshaler); ok {
					_, _ = arg.MarshalBinary()
				}
			}
			cmd.SetErr(io.EOF)
			return io.EOF
		}
	}
	if fault := w.Fault.Load(); fault != nil {
		cmd.SetErr(*fault)
		return *fault
	}
	time.Sleep(time.Duration(w.There.Load()))
	w.mu.Lock()
	hung := w.hung
	w.mu.Unlock()
	if hung != nil {
		<-hung
	}
	err := w.Client.Process(ctx, cmd)
	time.Sleep(time.Duration(w.Back.Load()))
	return err
}

// Hang holds requests back until the returned function is called.
func (w *Wire) Hang() (resume func()) {
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

// PassNew lets new requests pass. Hang still holds back the earlier ones.
func (w *Wire) PassNew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hung = nil
}

// A Call is one request of a test, in a goroutine of its own. Its results are valid once it has
// Ended.
type Call struct {
	Ended  atomic.Bool
	OK     bool
	Err    error
	At     time.Duration      // of its end, since the bubble began
	Cancel context.CancelFunc // ends its context
}
