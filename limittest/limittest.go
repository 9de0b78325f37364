// Package limittest lets tests use limiters without a Redis server and without sleeping: a server that is embedded in the
// process, and a clock that the test drives.
//
//	func TestThirdRequestIsRefused(t *testing.T) {
//		server := limittest.New(t)
//		limiter := server.Client().RateLimiter("logins", rratelimiter.WithRate(rratelimiter.PerMinute(2)))
//		...
//		server.Advance(time.Minute)
//		...
//	}
//
// The clock stands still until the test moves it. It dates grants, is the server's TIME, and lets keys expire. A test of
// callers who block waits until they do, moves the clock, and knows from then on who was served:
//
//	go func() { served <- limiter.Acquire(ctx, 1) }()
//	server.AwaitWaiting("logins", 1)
//	server.Advance(time.Minute)
//	err := <-served
//
// Contexts follow the real clock all the same, and a TryAcquireTimeout is over when either clock has passed it. Where that
// matters, use testing/synctest and [NewRealTime]: in a bubble time.Now is a clock that moves by itself when everybody
// waits, and time.Sleep costs nothing. No connection leaves the process, so both kinds of server work in a bubble.
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
	"github.com/rratelimiter/rratelimiter/internal/hook"
	"github.com/rratelimiter/rratelimiter/internal/roomy"
)

// Epoch is what the clock of a new server shows, unless it is the real one.
var Epoch = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// patience is how long, of real time, the server waits for calls to land and for callers to come.
const patience = 10 * time.Second

// A Server is an embedded Redis server with a clock. It is safe for concurrent use, but only one goroutine should move
// the clock. It has no port: it can be reached through Client and Redis alone.
type Server struct {
	server   *miniredis.Miniredis
	rdb      *redis.Client
	fail     func(format string, args ...any)
	realTime bool
	bubble   bool // in a testing/synctest bubble

	moving  sync.Mutex // one at a time moves the clock
	mu      sync.Mutex
	now     time.Time
	clients []*rratelimiter.Client
}

// New starts a server with a clock that the test drives. It is closed when the test is over.
func New(t testing.TB) *Server {
	return started(t, false)
}

// NewRealTime starts a server whose clock is time.Now. It is meant for testing/synctest, where that clock moves when all
// goroutines of the bubble wait; outside it makes tests that really sleep. It is closed when the test is over, which in a
// bubble is before the bubble ends.
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

// Start starts a server as New does, where there is no test: for examples. Close it. Where New's server fails the test,
// this one panics.
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
		Addr: "127.0.0.1:6379", // no port is used; a name would be looked up, which a bubble can't
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			pipe, err := s.server.Dial()
			if err != nil {
				return nil, err
			}
			return roomy.Conn(pipe), nil
		},
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	return s
}

// settleBubble waits until all other goroutines of the bubble wait, and tells whether there is a bubble at all.
func settleBubble() (bubble bool) {
	defer func() {
		if r := recover(); r != nil {
			bubble = false
		}
	}()
	synctest.Wait()
	return true
}

// Close ends all waiting with redis.ErrClosed and stops the server. New and NewRealTime see to it; closing twice is no
// fault.
func (s *Server) Close() {
	s.rdb.Close()
	s.wake()
	s.settle()
	s.server.Close()
}

// Client makes a client of the server. Its clock is the server's, and a call to Redis may take ten seconds, since a busy
// machine is no fault; options may say otherwise. A client with another WithClock, such as one that is some seconds ahead
// of Now, is a host whose clock is wrong.
func (s *Server) Client(opts ...rratelimiter.Option) *rratelimiter.Client {
	c := rratelimiter.NewClient(s.rdb, append([]rratelimiter.Option{
		rratelimiter.WithClock(s.Now), rratelimiter.WithCallTimeout(patience),
	}, opts...)...)
	hook.Alone(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = append(s.clients, c)
	return c
}

// Redis is the connection to the server that all clients use: to look at keys, or to change them behind a limiter's back.
func (s *Server) Redis() *redis.Client { return s.rdb }

// Fail lets the server answer every command with an error, such as "OOM command not allowed", until it is called with "".
// Where the error says that it will pass, as LOADING does, calls are made again until their time is over: 10 s of real time,
// unless a client has another one (WithCallTimeout).
func (s *Server) Fail(message string) { s.server.SetError(message) }

// Now is what the clock shows.
func (s *Server) Now() time.Time {
	if s.realTime {
		return time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Advance moves the clock forward. Callers who block in a client of this server are served at the times at which their
// permits become free; when Advance returns, everybody who could be served was, and Waiting tells who could not. Callers
// who then block again are sure to be seen only by the next Advance (and, in a bubble, by this one). On a server with the
// real clock Advance sleeps.
func (s *Server) Advance(d time.Duration) {
	if d < 0 {
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

// Set moves the clock to a time: forward as Advance does, or back, like a clock that was wrong. The real clock can't be
// moved back.
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

// jump moves the clock and lets everybody who waits ask again.
func (s *Server) jump(to time.Time) {
	s.mu.Lock()
	s.now = to
	s.server.SetTime(to)
	s.mu.Unlock()
	s.wake()
	s.settle()
}

// Waiting tells how many callers wait for permits of the limiter with a name, or of all limiters with "", in all clients
// of this server.
func (s *Server) Waiting(limiter string) int {
	return s.look(limiter).Waiting
}

// AwaitWaiting returns once exactly n callers wait for permits of the limiter with a name, or of all limiters with "", and
// Redis has refused them: nothing happens any more unless the clock moves or the test acts. It fails the test when that
// does not come about: in a bubble as soon as everybody waits, else after ten seconds.
func (s *Server) AwaitWaiting(limiter string, n int) {
	if !s.await(func() bool {
		calls := s.look(limiter)
		return calls.Waiting == n && !calls.Flying
	}) {
		s.fail("%d callers wait for %q, not %d", s.look(limiter).Waiting, limiter, n)
	}
}

// settle returns when all calls have landed.
func (s *Server) settle() {
	if !s.await(func() bool { return !s.look("").Flying }) {
		s.fail("a call to Redis did not land")
	}
}

// await waits, a short time of the real clock, for something that is about to happen.
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
		hook.Wake(c)
	}
}

// look adds up what goes on in all clients.
func (s *Server) look(limiter string) (sum hook.Calls) {
	for _, c := range s.all() {
		calls := hook.Look(c, limiter)
		sum.Waiting += calls.Waiting
		sum.Flying = sum.Flying || calls.Flying
		if calls.Next > 0 && (sum.Next == 0 || calls.Next < sum.Next) {
			sum.Next = calls.Next
		}
	}
	return sum
}

func (s *Server) all() []*rratelimiter.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[:len(s.clients):len(s.clients)]
}
