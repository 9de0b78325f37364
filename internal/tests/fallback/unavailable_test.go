package fallback

import (
	"context"
	"errors"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// unavailable_test.go tests the errors while Redis cannot be reached: what they wrap, and their
// texts.

// A faulty is a Redis that cannot serve calls.
type faulty struct {
	name  string
	start func(t *testing.T) *redis.Client
	cause error // in the error, if the callers have time to find it; nil: none
	text  string
}

// listen handles connections with serve.
func listen(t *testing.T, serve func(net.Conn)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(t.Context(), func() { _ = conn.Close() })()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		all.Wait()
	})
	return listener.Addr().String()
}

func faults() []faulty {
	client := func(t *testing.T, o *redis.Options) *redis.Client {
		o.ReadTimeout = 2 * time.Second
		rdb := redis.NewClient(o)
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	drain := func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1<<16)) // until the test ends, or go-redis gives up
		_, _ = conn.Read(make([]byte, 1<<16))
	}
	return []faulty{
		{
			name:  "refused",
			cause: syscall.ECONNREFUSED,
			text:  "connection refused",
			start: func(t *testing.T) *redis.Client {
				return client(t, &redis.Options{Addr: redistest.Nowhere(t), DialerRetries: 1})
			},
		},
		{name: "hangs", text: "no answer within", start: func(t *testing.T) *redis.Client {
			return client(t, &redis.Options{Addr: listen(t, drain)})
		}},
		{name: "hangs, contexts end reads", start: func(t *testing.T) *redis.Client {
			return client(t, &redis.Options{Addr: listen(t, drain), ContextTimeoutEnabled: true})
		}},
		{name: "can't be dialled in time", text: "timeout", start: func(t *testing.T) *redis.Client {
			return client(t, &redis.Options{
				Addr: "127.0.0.1:1", DialTimeout: 20 * ms, DialerRetries: 1,
				Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
					<-ctx.Done()
					return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
				},
			})
		}},
		{name: "cut", start: func(t *testing.T) *redis.Client {
			return client(t, &redis.Options{Addr: listen(t, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })})
		}},
		{name: "loading", text: "LOADING", start: func(t *testing.T) *redis.Client {
			rdb := client(t, &redis.Options{Addr: "127.0.0.1:1"})
			rdb.AddHook(saying("LOADING Redis is loading the dataset in memory"))
			return rdb
		}},
		{
			name:  "no connection is free",
			cause: redis.ErrPoolTimeout,
			text:  "pool timeout",
			start: func(t *testing.T) *redis.Client {
				s := redistest.Embedded(t)
				options := &redis.Options{Addr: s.Addr, PoolSize: 1, PoolTimeout: 20 * ms}
				// Since go-redis 9.23 pipelines have connections of their own. Older releases do
				// not have the field.
				if size := reflect.ValueOf(options).Elem().FieldByName("PipelinePoolSize"); size.IsValid() {
					size.SetInt(-1)
				}
				rdb := client(t, options)
				held := rdb.Conn()
				if err := held.Ping(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = held.Close() })
				return rdb
			},
		},
	}
}

// saying returns a hook that replies to every command with an error of a server.
func saying(err redisError) redis.Hook {
	return redistest.Hook{
		Command: func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			cmd.SetErr(err)
			return err
		},
		Pipeline: func(_ context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		},
	}
}

// For every method, fault and deadline, an error wraps the error of the caller's context if it has
// ended, else ErrUnavailable, and never both. Its text has one cause.
func TestErrorsWhileRedisIsAway(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	for _, fault := range faults() {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			c := rratelimiter.NewClient(fault.start(t), rratelimiter.WithCallTimeout(timeout))
			var all sync.WaitGroup
			var caused atomic.Int64
			defer func() {
				// If the machine stands still for a while, some errors have only the timeout as
				// their cause.
				if all.Wait(); caused.Load() < 20 {
					t.Errorf("%d errors have the cause", caused.Load())
				}
			}()
			for _, deadline := range []time.Duration{0, 5 * ms, 50 * ms, timeout - 5*ms, timeout, time.Minute} {
				methods := map[string]func(context.Context) error{}
				// each has a limiter of its own, so that none is queued behind another
				for name := range rig.EveryMethod(c, nil) {
					methods[name] = rig.EveryMethod(c,
						c.RateLimiter("{other}"+name, rratelimiter.WithRate(rratelimiter.PerSecond(10))))[name]
				}
				for name, method := range methods {
					all.Go(func() {
						ctx, cancel := context.WithCancel(t.Context())
						switch {
						case deadline == 0:
							time.AfterFunc(30*ms, cancel)
						default:
							ctx, cancel = context.WithTimeout(t.Context(), deadline)
						}
						defer cancel()
						err := method(ctx)
						over := ctx.Err()
						if err == nil {
							if !strings.HasSuffix(name, "Timeout") {
								t.Errorf("%s within %v: no error", name, deadline)
							}
							return
						}
						ended := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
						switch {
						case ended && over == nil:
							t.Errorf("%s within %v: %v, though its context is not over", name, deadline, err)
						case ended && (!errors.Is(err, over) || errors.Is(err, rratelimiter.ErrUnavailable)):
							t.Errorf("%s within %v: %v", name, deadline, err)
						case !ended && !errors.Is(err, rratelimiter.ErrUnavailable):
							t.Errorf("%s within %v: %v is not ErrUnavailable", name, deadline, err)
						case !ended && strings.Contains(err.Error(), fault.text) &&
							(fault.cause == nil || errors.Is(err, fault.cause)):
							caused.Add(1)
						case !ended && !strings.Contains(err.Error(), "no answer within") &&
							!strings.Contains(err.Error(), "i/o timeout"):
							t.Errorf("%s within %v: %v", name, deadline, err)
						}
						causes := 0
						for _, cause := range []string{
							"refused", "no answer within", "i/o timeout", "context deadline", "canceled",
							"pool timeout", "LOADING", "EOF", "reset by peer",
						} {
							causes += strings.Count(err.Error(), cause)
						}
						if causes != 1 {
							t.Errorf("%s within %v: %q has %d causes", name, deadline, err, causes)
						}
					})
				}
			}
		})
	}
}

// TestNodesThatDisagreeAboutASlot: each of two nodes of a cluster sends callers to the other one.
// The redis client follows only a few of these redirections.
func TestNodesThatDisagreeAboutASlot(t *testing.T) {
	t.Parallel()
	ctx, nodes := t.Context(), redistest.Cluster(t, 2)
	cluster := nodes.ClusterClient()
	pipeliner := rig.AutoPipelined(t, nodes.ClusterClient())
	one, two := nodes.Servers[0].Client(), nodes.Servers[1].Client()
	id := two.Do(ctx, "cluster", "myid").Val()
	give := func(to *redis.Client, name string) { // tells a node that the second one has the slot of a name
		t.Helper()
		if err := to.Do(ctx, "cluster", "setslot", keys.Slot(name), "node", id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for what, rdb := range map[string]rratelimiter.Redis{"cluster": cluster, "auto-pipeliner": pipeliner} {
		c := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(time.Second))
		name := what
		for keys.Slot(name) >= 8192 { // those below are the first node's
			name += "."
		}
		give(one, name)
		var all sync.WaitGroup
		var caused, late atomic.Int64 // errors with the cause; calls without an answer in time
		for method := range rig.EveryMethod(c, nil) {
			if method == "Clients" || strings.HasPrefix(method, "Rename") { // calls without one slot
				continue
			}
			l := c.RateLimiter("{"+name+"}"+method, rratelimiter.WithRate(rratelimiter.PerHour(10)))
			all.Go(func() {
				err := rig.EveryMethod(c, l)[method](ctx)
				switch {
				case !errors.Is(err, rratelimiter.ErrUnavailable):
					t.Errorf("%s, %s: %v", what, method, err)
				case strings.Contains(err.Error(), "disagree about a slot: MOVED") &&
					!errors.Is(err, rratelimiter.ErrOutcomeUnknown):
					caused.Add(1)
				case strings.Contains(err.Error(), "no answer within"), // on a busy machine, or in an auto-pipeliner
					strings.Contains(err.Error(), "the time for the call is over"): // of another call in the pipeline
					late.Add(1)
				default:
					t.Errorf("%s, %s: %v", what, method, err)
				}
			})
		}
		all.Wait()
		if what == "cluster" && caused.Load() == 0 {
			t.Error("no error tells of the nodes that disagree")
		}
		l := c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerHour(10)))
		local := c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerHour(10)), rratelimiter.WithFallback(0.5))
		rig.MustTry(t, local, 5, true)
		rig.MustTry(t, local, 1, false)
		if h := local.Health(); h.Away && late.Load() == 0 { // without an answer in time, it is away
			t.Errorf("%s: %+v, though the nodes answered", what, h)
		}
		give(two, name)
		rig.MustTry(t, l, 10, true)
	}
}
