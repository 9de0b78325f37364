package classic_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// With every algorithm, a waiting caller is served as soon as Allow would be, and after the
// RetryAfter of that.
func TestAcquireWaitsAsLongAsItIsTold(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := limittest.NewRealTime(t)
				l := s.make(server.Redis(), "key", classic.WithClock(server.Now))
				if s.night {
					time.Sleep(24*time.Hour - 10*time.Second)
				}
				var wait time.Duration
				for asked := 0; wait == 0; asked++ {
					r, err := l.Allow(t.Context(), 1)
					if err != nil {
						t.Fatal(err)
					}
					if wait = r.RetryAfter; asked == 100 {
						t.Fatal("never refused")
					}
				}
				began := time.Now()
				if err := l.Acquire(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > wait+2*ms || took < wait-2*ms {
					t.Errorf("waited %v, RetryAfter is %v", took, wait)
				}
			})
		})
	}
}

func TestAcquireIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := limittest.NewRealTime(t)
		l := classic.NewSlidingLog(server.Redis(), "key", rratelimiter.PerSecond(3), classic.WithClock(server.Now))
		var mu sync.Mutex
		var served []int
		var all sync.WaitGroup
		for i, n := range []int64{3, 2, 3, 1, 2, 1, 3} {
			all.Go(func() {
				if err := l.Acquire(t.Context(), n); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				served = append(served, i)
			})
			synctest.Wait()
		}
		all.Wait()
		if !slices.IsSorted(served) {
			t.Error(served)
		}
	})
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := limittest.NewRealTime(t)
		l := classic.NewSlidingLog(server.Redis(), "key", rratelimiter.PerHour(1), classic.WithClock(server.Now))
		if err := l.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var all sync.WaitGroup
		for i := range 3 { // one waits for permits, two are queued
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
				defer cancel()
				if err := l.Acquire(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestWrongRequestsTakeNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		for _, subject := range subjects() {
			l := subject.make(b.rdb, "key", b.clock())
			for n, want := range map[int64]error{
				0: rratelimiter.ErrInvalidPermits, -1: rratelimiter.ErrInvalidPermits,
				math.MinInt64: rratelimiter.ErrInvalidPermits,
				math.MaxInt64: rratelimiter.ErrExceedsRate, 101: rratelimiter.ErrExceedsRate,
			} {
				if _, err := l.Allow(t.Context(), n); !errors.Is(err, want) {
					t.Errorf("%s: Allow(%d): %v", subject.name, n, err)
				}
				if _, err := l.Peek(t.Context(), n); !errors.Is(err, want) {
					t.Errorf("%s: Peek(%d): %v", subject.name, n, err)
				}
				if err := l.Acquire(t.Context(), n); !errors.Is(err, want) {
					t.Errorf("%s: Acquire(%d): %v", subject.name, n, err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := l.Allow(ctx, 1); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", subject.name, err)
			}
		}
		b.holds(0, "dbsize")
	})
}

func TestWrongParametersAreTold(t *testing.T) {
	rdb := redistest.Embedded(t).Client()
	rate := rratelimiter.PerSecond(10)
	wrongRates := []rratelimiter.Rate{
		{}, {Permits: 1}, {Interval: time.Second}, {Permits: -1, Interval: time.Second},
		{Permits: 1 << 32, Interval: time.Second},
		{Permits: 1, Interval: 1500 * time.Microsecond},
		{Permits: 1, Interval: time.Second, Type: rratelimiter.PerClient},
		{Permits: 1, Interval: time.Second, KeepAlive: time.Hour},
	}
	byRate := map[string]func(rratelimiter.Rate) asker{
		"FixedWindow":  func(r rratelimiter.Rate) asker { return classic.NewFixedWindow(rdb, "key", r) },
		"WindowKeys":   func(r rratelimiter.Rate) asker { return classic.NewWindowKeys(rdb, "key", r) },
		"ListWindow":   func(r rratelimiter.Rate) asker { return classic.NewListWindow(rdb, "key", r) },
		"CursorWindow": func(r rratelimiter.Rate) asker { return classic.NewCursorWindow(rdb, "key", r) },
		"SlidingLog":   func(r rratelimiter.Rate) asker { return classic.NewSlidingLog(rdb, "key", r) },
		"SubWindows":   func(r rratelimiter.Rate) asker { return classic.NewSubWindows(rdb, "key", r, 2) },
		"TwoCounters":  func(r rratelimiter.Rate) asker { return classic.NewTwoCounters(rdb, "key", r) },
		"LeakyBucket":  func(r rratelimiter.Rate) asker { return classic.NewLeakyBucket(rdb, "key", r, 1) },
		"LeakyQueue":   func(r rratelimiter.Rate) asker { return classic.NewLeakyQueue(rdb, "key", r, 1) },
		"GCRA":         func(r rratelimiter.Rate) asker { return classic.NewGCRA(rdb, "key", r, 1) },
	}
	wrong := func(what string, l asker, want error) {
		t.Helper()
		if _, err := l.Allow(t.Context(), 1); !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
		if err := l.Acquire(t.Context(), 1); !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, make := range byRate {
		for _, r := range wrongRates {
			wrong(name, make(r), rratelimiter.ErrInvalidRate)
		}
		rdb.FlushDB(t.Context())
		if _, err := make(rate).Allow(t.Context(), 1); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	second := time.Second
	for name, l := range map[string]asker{
		"a part of a second": classic.NewWindowKeys(rdb, "key", rratelimiter.Rate{Permits: 1, Interval: 1500 * ms}),
		"no quota":           classic.NewQuota(rdb, "key", 0, classic.Days{}),
		"no capacity":        classic.NewTokenBucket(rdb, "key", classic.Tokens{PerStep: 1, Step: second}),
		"no tokens":          classic.NewTokenBucket(rdb, "key", classic.Tokens{Capacity: 1, Step: second}),
		"a step too short": classic.NewTokenBucket(rdb, "key",
			classic.Tokens{Capacity: 1, PerStep: 1, Step: 100 * ms}),
		"a debt below zero": classic.NewTokenBucket(rdb, "key",
			classic.Tokens{Capacity: 1, PerStep: 1, Step: second, Debt: -1}),
		"no interval":         classic.NewGatewayBucket(rdb, "key", classic.Gateway{Every: second, Capacity: 1}),
		"no gateway capacity": classic.NewGatewayBucket(rdb, "key", classic.Gateway{Every: second, Interval: second}),
		"no drops":            classic.NewLeakyBucket(rdb, "key", rate, 0),
		"no burst":            classic.NewGCRA(rdb, "key", rate, 0),
		"no replenish rate":   classic.NewSpringBucket(rdb, "key", classic.Spring{BurstCapacity: 1}),
		"no burst capacity":   classic.NewSpringBucket(rdb, "key", classic.Spring{ReplenishRate: 1}),
		"a TTL of 0 s":        classic.NewSpringBucket(rdb, "key", classic.Spring{ReplenishRate: 9, BurstCapacity: 4}),
		"uneven sub-windows":  classic.NewSubWindows(rdb, "key", rate, 3),
	} {
		wrong(name, l, rratelimiter.ErrInvalidRate)
	}
	var none *redis.Client
	for name, l := range map[string]asker{
		"nil client":     classic.NewFixedWindow(nil, "key", rate),
		"nil pointer":    classic.NewSlidingLog(none, "key", rate),
		"nil list":       classic.NewListWindow(nil, "key", rate),
		"nil option":     classic.NewCursorWindow(rdb, "key", rate, nil),
		"nil clock":      classic.NewCursorWindow(rdb, "key", rate, classic.WithClock(nil)),
		"one sub-window": classic.NewSubWindows(rdb, "key", rate, 1),
	} {
		wrong(name, l, rratelimiter.ErrInvalidOption)
	}
}

// An error of Redis is returned with its code; a call that may have been executed returns
// ErrOutcomeUnknown.
func TestErrorsOfTheServer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		for _, subject := range subjects() {
			b.do("flushdb")
			for _, key := range []string{"key", "rate:key", "key::2036-01-01", "request_rate_limiter.{key}.tokens"} {
				b.do("sadd", key, "a set")
			}
			l := subject.make(b.rdb, "key", b.clock())
			_, err := l.Allow(t.Context(), 1)
			if subject.name == "window keys" {
				continue // the name of its key is not known here
			}
			if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") ||
				errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", subject.name, err)
			}
		}
	})
	server := redistest.Embedded(t)
	rdb := server.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	l := classic.NewSlidingLog(rdb, "key", rratelimiter.PerSecond(1))
	if _, err := l.Allow(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	_ = rdb.Close()
	if _, err := l.Allow(t.Context(), 1); !errors.Is(err, redis.ErrClosed) ||
		errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
		t.Error(err)
	}
}

// On a cluster every layout works; layouts of two keys use a hash tag.
func TestCluster(t *testing.T) {
	rdb := redistest.Cluster(t, 3).ClusterClient()
	rate := rratelimiter.PerHour(3)
	for _, name := range []string{"a", "user:1", "{tag}:x", "a{b"} {
		for what, l := range map[string]asker{
			"fixed window":  classic.NewFixedWindow(rdb, "fw"+name, rate),
			"window keys":   classic.NewWindowKeys(rdb, "wk"+name, rate),
			"quota":         classic.NewQuota(rdb, "q"+name, 3, classic.Days{}),
			"list window":   classic.NewListWindow(rdb, "lw"+name, rate),
			"cursor window": classic.NewCursorWindow(rdb, "cw"+name, rate),
			"sliding log":   classic.NewSlidingLog(rdb, "sl"+name, rate),
			"sub-windows":   classic.NewSubWindows(rdb, "sw"+name, rate, 4),
			"two counters":  classic.NewTwoCounters(rdb, "tc"+name, rate),
			"token bucket": classic.NewTokenBucket(rdb, "tb"+name,
				classic.Tokens{Capacity: 3, PerStep: 1, Step: time.Hour}),
			"gateway bucket": classic.NewGatewayBucket(rdb, "gb"+name,
				classic.Gateway{Every: time.Hour, Capacity: 3, Interval: time.Hour}),
			"leaky bucket": classic.NewLeakyBucket(rdb, "lb"+name, rate, 3),
			"GCRA":         classic.NewGCRA(rdb, name, rate, 3),
			"Spring bucket": classic.NewSpringBucket(rdb, name, classic.Spring{ReplenishRate: 1, BurstCapacity: 3},
				classic.WithClock(func() time.Time { return epoch })),
		} {
			for i := range 4 {
				r, err := l.Allow(t.Context(), 1)
				if err != nil || r.Allowed != (i < 3) {
					t.Errorf("%s %q, request %d: %+v, %v", what, name, i, r, err)
				}
			}
		}
	}
	for _, l := range []asker{
		classic.NewSlidingLog(rdb, "}x", rate), classic.NewListWindow(rdb, "a}", rate),
		classic.NewSpringBucket(rdb, "", classic.Spring{ReplenishRate: 1, BurstCapacity: 1}),
	} {
		if _, err := l.Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Error(err)
		}
	}
}

// Callers of a queue, from any process, are served in order and at an even pace; a request that
// does not fit is dropped.
func TestLeakyQueueIsEven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := limittest.NewRealTime(t)
		began := time.Now()
		var mu sync.Mutex
		var went []time.Duration
		dropped := 0
		var all sync.WaitGroup
		for range 12 {
			all.Go(func() {
				q := classic.NewLeakyQueue(server.Redis(), "queue", tenPerSecond, 8, classic.WithClock(server.Now))
				err := q.Acquire(t.Context(), 1)
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, classic.ErrQueueFull) {
					dropped++
					return
				}
				if err != nil {
					t.Error(err)
				}
				went = append(went, time.Since(began))
			})
			synctest.Wait()
		}
		all.Wait()
		if dropped != 4 || len(went) != 8 {
			t.Fatalf("%d went on, %d were dropped", len(went), dropped)
		}
		for i, at := range went {
			if want := time.Duration(i) * 100 * ms; at != want {
				t.Errorf("caller %d went on after %v, not %v", i, at, want)
			}
		}
	})
}

// A call whose reply is lost may have been executed: the error is ErrOutcomeUnknown, and the client
// library does not retry it.
func TestALostAnswerIsNotARefusal(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var cut atomic.Bool
		rdb := s.Client(func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &lossy{conn, &cut}, err
			}
		})
		l := classic.NewFixedWindow(rdb, "key", rratelimiter.PerHour(100))
		if _, err := l.Allow(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		cut.Store(true)
		if _, err := l.Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Error(err)
		}
		r, err := l.Allow(t.Context(), 1)
		if err != nil || r.Remaining != 97 || cut.Load() {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// A caller of a server that hangs waits no longer than its context, whatever the timeouts of the
// client library.
func TestAHungServerBlocksNoLongerThanTheContext(t *testing.T) {
	rdb, hang, release := hanging(t)
	all := subjects()
	limiters := make([]asker, len(all))
	for i, subject := range all {
		limiters[i] = subject.make(rdb, fmt.Sprint("{", i, "}"))
	}
	conns := make([]*redis.Conn, 3*len(all)) // one for each call below, so that it is sent
	for i := range conns {
		conns[i] = rdb.Conn()
		if err := conns[i].Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range conns {
		_ = conn.Close() // back into the pool
	}
	hang()
	tooLate := time.AfterFunc(10*time.Second, release)
	var wait sync.WaitGroup
	for i, subject := range all {
		for what, ask := range map[string]func(context.Context) error{
			"Allow":   func(ctx context.Context) error { _, err := limiters[i].Allow(ctx, 1); return err },
			"Charge":  func(ctx context.Context) error { _, err := limiters[i].Charge(ctx, 1); return err },
			"Acquire": func(ctx context.Context) error { return limiters[i].Acquire(ctx, 1) },
		} {
			wait.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
				defer cancel()
				err := ask(ctx)
				looks := subject.name == "list window" // its first call takes nothing
				if !errors.Is(err, context.DeadlineExceeded) ||
					errors.Is(err, rratelimiter.ErrOutcomeUnknown) == looks {
					t.Errorf("%s of a %s: %v", what, subject.name, err)
				}
			})
		}
	}
	wait.Wait()
	if !tooLate.Stop() {
		t.Error("they waited for the server")
	}
}

// A call to a server that hangs ends after the call timeout, where neither the context nor the
// client library has an end.
func TestAHungServerBlocksNoLongerThanTheCallTimeout(t *testing.T) {
	if classic.DefaultCallTimeout != time.Second {
		t.Errorf("the default is %v", classic.DefaultCallTimeout)
	}
	for _, c := range []struct {
		opts []classic.Option
		want time.Duration
	}{{nil, time.Minute}, {[]classic.Option{classic.WithCallTimeout(7 * time.Second)}, 7 * time.Second}} {
		for _, subject := range subjects() {
			t.Run(fmt.Sprint(subject.name, " ", c.want), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rdb, hang, release := hangingInBubble(t)
					defer release()
					l := subject.make(rdb, "{key}", c.opts...)
					if _, err := l.Allow(t.Context(), 1); err != nil {
						t.Fatal(err)
					}
					hang()
					for what, ask := range map[string]func() error{
						"Allow":   func() error { _, err := l.Allow(context.Background(), 1); return err },
						"Charge":  func() error { _, err := l.Charge(context.Background(), 1); return err },
						"Peek":    func() error { _, err := l.Peek(context.Background(), 1); return err },
						"Acquire": func() error { return l.Acquire(t.Context(), 1) },
					} {
						began := time.Now()
						err := ask()
						if took := time.Since(began); !errors.Is(err, rratelimiter.ErrUnavailable) || took != c.want {
							t.Errorf("%s: %v after %v", what, err, took)
						}
						if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
							t.Errorf("%s: %v is an error of a context", what, err)
						}
					}
				})
			})
		}
	}
	rdb := redistest.Embedded(t).Client()
	l := classic.NewGCRA(rdb, "key", rratelimiter.PerSecond(1), 1, classic.WithCallTimeout(0))
	if _, err := l.Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrInvalidOption) {
		t.Error(err)
	}
}

// A quota's other methods end, too, and do nothing once their context has ended.
func TestAQuotaOfAHungServerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, hang, release := hangingInBubble(t)
		defer release()
		q := classic.NewQuota(rdb, "user", 10, classic.Days{}, classic.WithCallTimeout(time.Second))
		if _, err := q.Allow(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.Return(ended, 1); !errors.Is(err, context.Canceled) ||
			errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Error(err)
		}
		if _, err := q.Reset(ended); !errors.Is(err, context.Canceled) ||
			errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Error(err)
		}
		if r, err := q.Peek(t.Context(), 1); err != nil || r.Remaining != 5 {
			t.Errorf("%+v, %v", r, err)
		}
		hang()
		began := time.Now()
		if _, err := q.Return(context.Background(), 1); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
			!errors.Is(err, rratelimiter.ErrUnavailable) {
			t.Error(err)
		}
		// This one has a new connection, whose first command is not answered: nothing was sent.
		if _, err := q.Reset(context.Background()); !errors.Is(err, rratelimiter.ErrUnavailable) ||
			errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Error(err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("they took %v", took)
		}
	})
}

// hangingInBubble is hanging in a bubble, where its connections are in memory.
func hangingInBubble(t *testing.T) (rdb *redis.Client, hang, release func()) {
	var hangs atomic.Bool
	goesOn := make(chan struct{})
	o := *limittest.NewRealTime(t).Redis().Options()
	dial := o.Dialer
	o.ReadTimeout = -1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &mute{conn, &hangs, goesOn}, err
	}
	rdb = redis.NewClient(&o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, func() { hangs.Store(true) }, sync.OnceFunc(func() { close(goesOn) })
}

// A call that waits for a connection when its context ends is not sent later.
func TestACallThatIsNotSentInTimeIsNeverSent(t *testing.T) {
	rdb, hang, release := hanging(t)
	hang()
	l := classic.NewFixedWindow(rdb, "key", rratelimiter.PerHour(100))
	ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
	defer cancel()
	if _, err := l.Allow(ctx, 1); !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
		t.Error(err)
	}
	release()
	if r, err := l.Allow(t.Context(), 1); err != nil || r.Remaining != 99 {
		t.Errorf("%+v, %v", r, err)
	}
}

// hanging returns a client of a server that delivers no replies from a call of hang until one of
// release.
func hanging(t *testing.T) (rdb *redis.Client, hang, release func()) {
	var hangs atomic.Bool
	goesOn := make(chan struct{})
	rdb = redistest.Embedded(t).Client(func(o *redis.Options) {
		o.PoolSize, o.ReadTimeout = 100, -1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &mute{conn, &hangs, goesOn}, err
		}
	})
	release = sync.OnceFunc(func() { close(goesOn) })
	t.Cleanup(release)
	return rdb, func() { hangs.Store(true) }, release
}

// A mute connection delivers no replies while it hangs.
type mute struct {
	net.Conn
	hangs  *atomic.Bool
	goesOn <-chan struct{}
}

func (m *mute) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.hangs.Load() {
		<-m.goesOn
	}
	return n, err
}

// A lossy connection loses one reply, and breaks, once it is cut.
type lossy struct {
	net.Conn
	cut *atomic.Bool
}

func (l *lossy) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if err == nil && l.cut.CompareAndSwap(true, false) {
		_ = l.Conn.Close()
		return 0, io.EOF
	}
	return n, err
}
