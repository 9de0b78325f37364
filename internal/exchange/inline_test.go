package exchange_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
)

// inline_test.go has one caller near Redis, whose goroutine makes its calls itself, in bubbles of
// synctest.

const ms = time.Millisecond

// A near is a client near its embedded server: usually a reply takes 1 ms.
type near struct {
	*rratelimiter.Client
	rdb     *redis.Client
	limiter *rratelimiter.Limiter
	slow    atomic.Int64 // ns that the next reply takes, once
	usual   atomic.Int64 // ns that the others take
	nested  atomic.Bool  // the next command makes another one in the hook, with its context, once
	panics  atomic.Bool  // the next command panics in the hook, once
	seen    atomic.Int64 // commands that passed the hook
	dials   atomic.Int64
	calls   int64 // that were granted a permit
}

// whileNear runs a test with a client whose calls are inline from now on.
func whileNear(t *testing.T, test func(t *testing.T, n *near)) {
	whileNearWith(t, func(*redis.Options) {}, test)
}

// whileNearWith is whileNear with other options of the Redis client.
func whileNearWith(t *testing.T, change func(*redis.Options), test func(t *testing.T, n *near)) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		n := &near{}
		n.usual.Store(int64(ms))
		options := &redis.Options{
			// not used; a host name would need a lookup, which does not work in a bubble
			Addr: "127.0.0.1:6379",
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				pipe, err := server.Dial()
				if err != nil {
					return nil, err
				}
				return n.wire(t, netpipe.Conn(pipe)), nil
			},
			// Otherwise go-redis looks up the server's name, which does not work in a bubble.
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}
		change(options)
		n.rdb = redis.NewClient(options)
		n.rdb.AddHook(n)
		t.Cleanup(func() {
			n.rdb.Close()
			time.Sleep(time.Second) // for the connections
		})
		n.Client = rratelimiter.NewClient(n.rdb)
		n.limiter = n.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)))
		for range 20 {
			n.take(t)
		}
		test(t, n)
		time.Sleep(time.Minute)
		if state, err := n.limiter.State(context.Background()); err != nil || state.Used != n.calls ||
			!state.Consistent {
			t.Errorf("%d permits were granted: %+v, %v", n.calls, state, err)
		}
	})
}

// wire returns a connection to the server whose replies take some time. It is closed after the
// test: go-redis 9.22 does not close a new connection that it gives up.
func (n *near) wire(t *testing.T, server net.Conn) net.Conn {
	n.dials.Add(1)
	client, far := net.Pipe()
	t.Cleanup(func() { client.Close() })
	go func() {
		_, _ = io.Copy(server, far)
		server.Close()
	}()
	go func() {
		defer far.Close()
		for reply := make([]byte, 1<<16); ; {
			got, err := server.Read(reply)
			time.Sleep(time.Duration(max(n.slow.Swap(0), n.usual.Load())))
			if _, failed := far.Write(reply[:got]); err != nil || failed != nil {
				return
			}
		}
	}()
	return client
}

// take takes a permit, which must be granted.
func (n *near) take(t *testing.T) {
	t.Helper()
	ok, err := n.limiter.TryAcquire(t.Context(), 1)
	if n.calls++; !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func (n *near) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *near) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		n.seen.Add(1)
		go func() { // as a hook that writes a log
			time.Sleep(5 * ms)
			_ = ctx.Value(n)
		}()
		if n.nested.Swap(false) {
			n.slow.Store(int64(100 * ms))
			if err := n.rdb.Get(ctx, "other").Err(); err != redis.Nil {
				return err
			}
		}
		if n.panics.Swap(false) {
			panic("a hook")
		}
		return next(ctx, cmd)
	}
}

func (n *near) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Replies that are slow now and then cost a connection, but at most one in five seconds, and no
// permits.
func TestSlowRepliesCostFewConnections(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		other := n.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)))
		before := n.dials.Load()
		for began := time.Now(); time.Since(began) < 20*time.Second; {
			for range 20 {
				time.Sleep(20 * ms)
				n.take(t)
				results, err := n.AllowAll(t.Context(), 1, n.limiter, other)
				if n.calls++; err != nil || !results[0].Allowed {
					t.Fatal(results, err)
				}
			}
			n.slow.Store(int64(100 * ms))
		}
		if dials := n.dials.Load() - before; dials < 2 || dials > 5 {
			t.Errorf("%d connections in 20 s", dials)
		}
	})
}

// Calls that would take their permits twice if Redis executed them late, and those on which the
// process can decide, are not inline: a slow reply costs no connection.
func TestCallsThatAreNotInline(t *testing.T) {
	try := func(ctx context.Context, l *rratelimiter.Limiter) error {
		_, err := l.TryAcquire(ctx, 1)
		return err
	}
	rate := rratelimiter.WithRate(rratelimiter.PerHour(1_000_000))
	for name, test := range map[string]struct {
		option rratelimiter.LimiterOption
		call   func(context.Context, *rratelimiter.Limiter) error
	}{
		"WithGranularity":      {rratelimiter.WithGranularity(time.Second), try},
		"WithLease":            {rratelimiter.WithLease(time.Second), try},
		"WithRecordPerRequest": {rratelimiter.WithRecordPerRequest(), try},
		"WithServerTime":       {rratelimiter.WithServerTime(), try},
		"WithFallback":         {rratelimiter.WithFallback(1), try},
		"AcquireUpTo": {rate, func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.AcquireUpTo(ctx, 1)
			return err
		}},
		"AllowAll": {
			rratelimiter.WithGranularity(time.Second),
			func(ctx context.Context, l *rratelimiter.Limiter) error {
				_, err := l.Client().AllowAll(ctx, 1, l, l.Client().RateLimiter("l"))
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			whileNear(t, func(t *testing.T, n *near) {
				before := n.dials.Load()
				n.slow.Store(int64(100 * ms))
				began := time.Now()
				if err := test.call(t.Context(), n.RateLimiter("other", rate, test.option)); err != nil ||
					time.Since(began) < 100*ms {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				if dials := n.dials.Load() - before; dials != 0 {
					t.Errorf("%d connections", dials)
				}
				if name == "AllowAll" {
					n.calls++
				}
			})
		})
	}
}

// A caller whose context ends during its call learns it 20 ms after the call began, or at once if
// its deadline was near.
func TestContextsThatEndDuringACall(t *testing.T) {
	for _, test := range []struct {
		name     string
		deadline bool
		after    time.Duration // when the context ends
		at       time.Duration // when the call does
	}{
		{"a near deadline", true, 5 * ms, 5 * ms},
		{"a deadline", true, 20 * ms, 20 * ms},
		{"a far deadline", true, 100 * ms, 100 * ms},
		{"cancelled", false, 5 * ms, 20 * ms},
		{"cancelled later", false, 100 * ms, 100 * ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			whileNear(t, func(t *testing.T, n *near) {
				ctx, cancel := context.WithCancel(t.Context())
				if test.deadline {
					ctx, cancel = context.WithTimeout(t.Context(), test.after)
				} else {
					time.AfterFunc(test.after, cancel)
				}
				defer cancel()
				n.slow.Store(int64(30 * time.Second)) // as the next reply, to the retry, is not
				began := time.Now()
				_, err := n.limiter.TryAcquire(ctx, 1)
				took := time.Since(began)
				if n.calls++; err == nil { // the retry was answered
					if took > test.at || test.after < 20*ms {
						t.Errorf("granted after %v", took)
					}
					return
				}
				if !errors.Is(err, ctx.Err()) || !errors.Is(err, rratelimiter.ErrOutcomeUnknown) || took < test.after ||
					took > test.at {
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

// A hook that panics does so in the caller's goroutine. If that recovers, the next call is made as
// ever. Without inline runs, it would end the process.
func TestAHookThatPanics(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		for range 3 {
			n.panics.Store(true)
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic is lost")
					}
				}()
				_, _ = n.limiter.TryAcquire(t.Context(), 1)
			}()
			n.take(t)
		}
	})
}

// A hook sees each call once, and what it asks Redis with the context of a call is a command like
// any other.
func TestAHookSeesEachCallOnce(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		before := n.seen.Load()
		for range 10 {
			n.take(t)
		}
		if seen := n.seen.Load() - before; seen != 10 {
			t.Errorf("of 10 calls, it has seen %d", seen)
		}
		n.nested.Store(true)
		dials := n.dials.Load()
		if n.take(t); n.dials.Load() != dials {
			t.Error("its own command is given up")
		}
	})
}

// If the commands of a Redis client could take longer than their context, no call is inline: a slow
// reply costs no connection.
func TestClientsWithoutInlineCalls(t *testing.T) {
	for name, change := range map[string]func(*redis.Options){
		"no deadlines": func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = -2, -2 },
		"OnConnect": func(o *redis.Options) {
			o.OnConnect = func(context.Context, *redis.Conn) error { return nil }
		},
		"credentials": func(o *redis.Options) { o.CredentialsProvider = func() (string, string) { return "", "" } },
	} {
		t.Run(name, func(t *testing.T) {
			whileNearWith(t, change, func(t *testing.T, n *near) {
				n.slow.Store(int64(100 * ms))
				before := n.dials.Load()
				if n.take(t); n.dials.Load() != before {
					t.Error("the call is inline")
				}
			})
		})
	}
}

// A new connection of an inline call ends with that, in whichever step.
func TestASlowNewConnectionIsGivenUp(t *testing.T) {
	whileNearWith(t, func(o *redis.Options) { o.ConnMaxIdleTime = 10 * ms }, func(t *testing.T, n *near) {
		time.Sleep(time.Second)
		n.usual.Store(int64(15 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 30*ms)
		defer cancel()
		began := time.Now()
		_, err := n.limiter.TryAcquire(ctx, 1)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 30*ms {
			t.Errorf("after %v: %v", took, err)
		}
		n.usual.Store(int64(ms))
		time.Sleep(time.Minute)
		if state, err := n.limiter.State(context.Background()); err != nil || state.Used < n.calls ||
			state.Used > n.calls+1 {
			t.Errorf("%d permits were granted, and perhaps one more: %+v, %v", n.calls, state, err)
		} else {
			n.calls = state.Used
		}
	})
}

// A hook that is added after NewClient sees all calls but the inline ones.
func TestAHookThatIsAddedLater(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		later := &near{}
		n.rdb.AddHook(later)
		before := n.seen.Load()
		for range 10 {
			n.take(t)
		}
		if first, last := n.seen.Load()-before, later.seen.Load(); first != 10 || last != 0 {
			t.Errorf("of 10 inline calls, the first hook has seen %d and the last one %d", first, last)
		}
		if state, err := n.limiter.State(t.Context()); err != nil || later.seen.Load() == 0 {
			t.Errorf("the last one has seen no command of State: %+v, %v", state, err)
		}
	})
}

// Two clients of this library can share a Redis client.
func TestClientsThatShareARedisClient(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		n.Client = rratelimiter.NewClient(n.rdb)
		n.limiter = n.RateLimiter("l")
		for range 20 {
			n.take(t)
		}
		n.slow.Store(int64(100 * ms))
		before := n.dials.Load()
		if n.take(t); n.dials.Load() == before {
			t.Error("the call is not inline")
		}
	})
}

// All clients on a Redis client share one hook.
func TestManyClientsAddOneHook(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		for range 100 {
			rratelimiter.NewClient(n.rdb)
		}
		depth := 0
		n.rdb.AddHook(&depthHook{&depth})
		if err := n.rdb.Get(t.Context(), "other").Err(); err != redis.Nil {
			t.Fatal(err)
		}
		if depth > 100 {
			t.Errorf("%d calls deep", depth)
		}
	})
}

// A depthHook notes how many calls are on the stack when a command reaches it.
type depthHook struct{ depth *int }

func (h *depthHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *depthHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		*h.depth = runtime.Callers(0, make([]uintptr, 1000))
		return next(ctx, cmd)
	}
}

func (h *depthHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Requests that come during a call are served by the next one, together.
func TestThoseThatComeDuringACallShareTheNext(t *testing.T) {
	whileNear(t, func(t *testing.T, n *near) {
		began := time.Now()
		var latest atomic.Int64
		for range 10 {
			go func() {
				if ok, err := n.limiter.TryAcquire(context.Background(), 1); !ok || err != nil {
					t.Error(ok, err)
				}
				latest.Store(int64(time.Since(began)))
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		if n.calls += 10; time.Duration(latest.Load()) != 2*ms {
			t.Errorf("the last one is served after %v", time.Duration(latest.Load()))
		}
	})
}
