// Package limittest lets tests use limiters without a Redis server and without sleeping. It
// provides a server that is embedded in the process, and a clock that the test controls.
//
//	func TestThirdRequestIsRefused(t *testing.T) {
//		server := limittest.New(t)
//		limiter := server.Client().RateLimiter("logins", rratelimiter.WithRate(rratelimiter.PerMinute(2)))
//		...
//		server.Advance(time.Minute)
//		...
//	}
//
// The clock stands still until the test moves it. It dates grants, is the server's TIME, and
// expires keys. To test blocking callers, wait until they block, then move the clock; when Advance
// returns, all callers that could be served have been served:
//
//	go func() { served <- limiter.Acquire(ctx, 1) }()
//	server.AwaitWaiting("logins", 1)
//	server.Advance(time.Minute)
//	err := <-served
//
// Contexts still follow the real clock. A TryAcquireTimeout ends when its timeout is over by the
// server's clock or by the real clock, whichever comes first. Where that matters, use
// testing/synctest and [NewRealTime]: in a bubble, time.Now is a clock that advances when all
// goroutines wait, and time.Sleep takes no real time. No connection leaves the process, so both
// kinds of server work in a bubble.
package limittest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

// Epoch is the start time of a new server's clock, unless it is the real clock.
var Epoch = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// patience is the real time for which the server waits for calls to complete and for callers to
// block.
const patience = 10 * time.Second

// A Server is an embedded Redis server with a clock. It is safe for concurrent use, but only one
// goroutine should move the clock. It has no port: connect only through Client and Redis.
type Server struct {
	server   *miniredis.Miniredis
	rdb      *redis.Client
	fail     func(format string, args ...any)
	realTime bool
	bubble   bool // created in a testing/synctest bubble

	dialing sync.Mutex // guards closed
	closed  bool
	moving  sync.Mutex // held while the clock moves
	mu      sync.Mutex // guards now and clients
	now     time.Time
	clients []*dispatch.Client
}

// New starts a server with a clock that the test controls. The server is closed when the test ends.
func New(t testing.TB) *Server {
	return started(t, false)
}

// NewRealTime starts a server whose clock is time.Now. It is meant for testing/synctest, where that
// clock advances when all goroutines of the bubble wait; outside a bubble the test really sleeps.
// The server is closed when the test ends, which in a bubble is before the bubble ends.
func NewRealTime(t testing.TB) *Server {
	return started(t, true)
}

func started(t testing.TB, realTime bool) *Server {
	s := start(realTime, func(format string, args ...any) {
		t.Helper()
		t.Fatalf("limittest: "+format, args...)
	})
	t.Cleanup(s.Close)
	return s
}

// Start starts a server like New, but without a test, for examples. The caller must Close it. Where
// a server made by New fails the test, this one panics.
func Start() *Server {
	return start(false, func(format string, args ...any) { panic(fmt.Sprintf("limittest: "+format, args...)) })
}

func start(realTime bool, fail func(string, ...any)) *Server {
	s := &Server{server: miniredis.NewMiniRedis(), fail: fail, realTime: realTime, bubble: settleBubble(), now: Epoch}
	if !realTime {
		s.server.SetTime(s.now)
	}
	s.server.ClockTTL(true)
	s.rdb = redis.NewClient(&redis.Options{
		// not used; a name would need a lookup, which fails in a bubble
		Addr:                     "127.0.0.1:6379",
		Dialer:                   s.dial,
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return s
}

// dial connects to the server, unless it is closed: the probe of a node can come later, and the
// server would start again.
func (s *Server) dial(context.Context, string, string) (net.Conn, error) {
	s.dialing.Lock()
	defer s.dialing.Unlock()
	if s.closed {
		return nil, redis.ErrClosed
	}
	pipe, err := s.server.Dial()
	if err != nil {
		return nil, err
	}
	return netpipe.Conn(pipe), nil
}

// settleBubble waits until all other goroutines of the bubble are blocked, and returns whether it
// runs in a bubble.
func settleBubble() (bubble bool) {
	defer func() {
		if r := recover(); r != nil {
			bubble = false
		}
	}()
	synctest.Wait()
	return true
}

// Close ends all waiting with redis.ErrClosed and stops the server. Servers made by New and
// NewRealTime are closed automatically. Closing a server twice is allowed.
func (s *Server) Close() {
	if s.bubble {
		settleBubble() // so that calls in the background end: the bubble's clock stops with the test
	}
	s.rdb.Close()
	s.wake()
	// A call that Close interrupts is retried after a pause, and only the retry ends it. In a
	// bubble the pause needs the bubble's clock to advance.
	for deadline := time.Now().Add(patience); s.bubble && !s.idle() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	s.settle()
	s.dialing.Lock()
	s.closed = true
	s.dialing.Unlock()
	s.server.Close()
}

// Client returns a new client of the server. Its clock is the server's, and its call timeout is 10
// s, so that a busy machine does not fail a test; opts can change both. To simulate a host whose
// clock is wrong, use WithClock with a clock that differs from Now by some seconds.
func (s *Server) Client(opts ...rratelimiter.Option) *rratelimiter.Client {
	rdb := dispatch.Extended{Redis: s.rdb, Alone: true, Made: func(made *dispatch.Client) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clients = append(s.clients, made)
	}}
	return rratelimiter.NewClient(rdb, append([]rratelimiter.Option{
		rratelimiter.WithClock(s.Now), rratelimiter.WithCallTimeout(patience),
	}, opts...)...)
}

// Redis returns the connection to the server that all clients use, to read keys or to change them
// directly.
func (s *Server) Redis() *redis.Client { return s.rdb }

// Fail makes the server reply to every command with an error, such as "OOM command not allowed",
// until Fail("") is called. If the error is temporary, like LOADING, calls are retried until their
// timeout ends: 10 s of real time, unless the client has another one (WithCallTimeout).
func (s *Server) Fail(message string) { s.server.SetError(message) }

// Now returns the time of the clock.
func (s *Server) Now() time.Time {
	if s.realTime {
		return time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Advance moves the clock forward. Callers that block in a client of this server are served at the
// times at which their permits become free. When Advance returns, all callers that could be served
// have been served, and Waiting returns how many could not. A caller that is served and then blocks
// again may have to wait for the next call of Advance, but in a bubble the same call serves it
// again. With the real clock, Advance sleeps.
func (s *Server) Advance(d time.Duration) {
	switch {
	case d < 0 && s.realTime:
		s.fail("the real clock cannot be moved back by %v", -d)
	case d < 0:
		s.fail("Advance by %v: use Set to move the clock back", d)
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	if s.realTime {
		time.Sleep(d)
		s.settle()
		return
	}
	s.settle()
	for end := s.Now().Add(d); ; {
		now := s.Now()
		to := end
		if next := s.look("").Next; next > 0 && now.Add(next).Before(end) {
			to = now.Add(next)
		}
		s.jump(to)
		if to.Equal(end) {
			return
		}
	}
}

// Set moves the clock to a time: forward like Advance, or back, like the correction of a wrong
// clock. The real clock cannot be moved back.
func (s *Server) Set(t time.Time) {
	d := t.Sub(s.Now())
	if d >= 0 || s.realTime {
		s.Advance(d)
		return
	}
	s.moving.Lock()
	defer s.moving.Unlock()
	s.jump(t)
}

// jump sets the clock and makes all waiting callers retry. s.moving is held.
func (s *Server) jump(to time.Time) {
	s.mu.Lock()
	s.now = to
	s.server.SetTime(to)
	s.mu.Unlock()
	s.wake()
	s.settle()
}

// Waiting returns the number of callers that wait for permits of the limiter with the given name,
// or of all limiters if it is "", in all clients of this server.
func (s *Server) Waiting(limiter string) int {
	return s.look(limiter).Waiting
}

// AwaitWaiting returns once exactly n callers wait for permits of the limiter with the given name,
// or of all limiters if it is "", and Redis has refused them. From then on nothing happens unless
// the clock moves or the test acts. If that state is not reached, it fails the test: in a bubble as
// soon as all goroutines wait, otherwise after 10 s of real time.
func (s *Server) AwaitWaiting(limiter string, n int) {
	if s.await(func() bool {
		calls := s.look(limiter)
		return calls.Waiting == n && !calls.InFlight
	}) {
		return
	}
	if calls := s.look(limiter); calls.Waiting == n {
		s.fail("%d callers wait for %q, but a call to Redis did not complete", n, limiter)
	} else {
		s.fail("%d callers wait for %q, not %d", calls.Waiting, limiter, n)
	}
}

// settle returns when no call is in flight.
func (s *Server) settle() {
	if !s.await(s.idle) {
		s.fail("a call to Redis did not complete")
	}
}

func (s *Server) idle() bool { return !s.look("").InFlight }

// await waits until happened returns true, at most for patience of real time; in a bubble, until
// all goroutines wait. It returns the last result of happened.
func (s *Server) await(happened func() bool) bool {
	if s.bubble {
		settleBubble()
		return happened()
	}
	for deadline := time.Now().Add(patience); !happened(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			return happened()
		}
	}
	return true
}

func (s *Server) wake() {
	for _, c := range s.all() {
		c.WakeAll()
	}
}

// look returns the sum of Look over all clients.
func (s *Server) look(limiter string) (sum dispatch.Activity) {
	for _, c := range s.all() {
		calls := c.Look(limiter)
		sum.Waiting += calls.Waiting
		sum.InFlight = sum.InFlight || calls.InFlight
		if calls.Next > 0 && (sum.Next == 0 || calls.Next < sum.Next) {
			sum.Next = calls.Next
		}
	}
	return sum
}

func (s *Server) all() []*dispatch.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[:len(s.clients):len(s.clients)]
}
