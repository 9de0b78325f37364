package acquire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/netpipe"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// acquire_all_test.go tests AcquireAll, AcquireAllN and TryAcquireAllTimeout. The order of their
// callers is tested in package queue.

func TestAcquireAllIsGrantedAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(10))), r.Limiter(
			"b", rratelimiter.WithRate(rratelimiter.PerHour(6)),
		)
		used := func(what string, ofA, ofB int64) {
			t.Helper()
			for l, want := range map[*rratelimiter.Limiter]int64{a: ofA, b: ofB} {
				if state := rig.State(t, l); state.Used != want || !state.Consistent {
					t.Errorf("%s: %+v, expected %d used of %q", what, state, want, l.Name())
				}
			}
		}
		r.Must(r.Client.AcquireAll(ctx, 2, a, b))
		used("two of each", 2, 2)
		r.Must(r.Client.AcquireAllN(ctx, []int64{3, 1}, a, b))
		used("three and one", 5, 3)
		r.Must(r.Client.AcquireAll(ctx, 1, a, b, a, r.Limiter("a")))
		used("a limiter listed three times", 8, 4)
		r.Must(r.Client.AcquireAll(ctx, 1, a, a))
		used("one limiter listed twice", 10, 4)
		r.Must(r.Client.AcquireAll(ctx, 1))
		if ok, err := r.Client.TryAcquireAllTimeout(ctx, 1, 59*time.Second, a, b); ok || err != nil {
			t.Errorf("permits that are not free in time: %v, %v", ok, err)
		}
		if ok, err := r.Client.TryAcquireAllTimeout(ctx, 1, 0, b, a); ok || err != nil {
			t.Errorf("without a timeout: %v, %v", ok, err)
		}
		used("a refusal", 10, 4)
		r.Advance(time.Minute)
		if ok, err := r.Client.TryAcquireAllTimeout(ctx, 2, time.Second, a, b); !ok || err != nil {
			t.Errorf("free permits: %v, %v", ok, err)
		}
		used("after a minute", 2, 6)
	})
}

func TestAcquireAllErrors(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(10))), r.Limiter(
			"b", rratelimiter.WithRate(rratelimiter.PerMinute(6)),
		)
		r.Try(a, 1)
		r.Try(b, 1)
		r.Limiter("none")
		before := r.Dump()
		all := func(n int64, limiters ...*rratelimiter.Limiter) func(context.Context) error {
			return func(ctx context.Context) error { return r.Client.AcquireAll(ctx, n, limiters...) }
		}
		each := func(permits []int64) func(context.Context) error {
			return func(ctx context.Context) error { return r.Client.AcquireAllN(ctx, permits, a, b) }
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, test := range []struct {
			name  string
			ctx   context.Context
			ask   func(context.Context) error
			want  error
			named string
		}{
			{"more than a rate", t.Context(), all(7, a, b), rratelimiter.ErrExceedsRate, `"b"`},
			{"more than the first rate", t.Context(), all(11, a, b), rratelimiter.ErrExceedsRate, `"a"`},
			{"more than the rate in sum", t.Context(), all(6, a, b, a), rratelimiter.ErrExceedsRate, `"a"`},
			{"more than can be counted", t.Context(), all(math.MaxInt64, a, b, a), rratelimiter.ErrExceedsRate, `"a"`},
			{"without a rate", t.Context(), all(1, a, r.Limiter("none"), b), rratelimiter.ErrNotInitialized, `"none"`},
			{"no permit", t.Context(), all(0, a, b), rratelimiter.ErrInvalidPermits, "0"},
			{"less than none", t.Context(), each([]int64{1, -1}), rratelimiter.ErrInvalidPermits, "-1"},
			{"a number too few", t.Context(), each([]int64{1}), rratelimiter.ErrInvalidPermits, "1 numbers for 2"},
			{
				"a number too many",
				t.Context(),
				each([]int64{1, 1, 1}),
				rratelimiter.ErrInvalidPermits,
				"3 numbers for 2",
			},
			{"no limiter", t.Context(), all(1, a, nil), rratelimiter.ErrInvalidOption, "nil"},
			{
				"another client's",
				t.Context(),
				all(1, a, rig.New(t, s).Limiter("b")),
				rratelimiter.ErrInvalidOption,
				`"b"`,
			},
			{
				"one state by two names",
				t.Context(),
				all(1, b, a, r.Limiter("{a}")),
				rratelimiter.ErrInvalidOption,
				`"{a}"`,
			},
			{"a context that has ended", over, all(1, a, b), context.Canceled, "acquire all"},
		} {
			err := test.ask(test.ctx)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.named) ||
				errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", test.name, err)
			}
			r.Unchanged(before, test.name)
		}
		if ok, err := r.Client.TryAcquireAllTimeout(t.Context(), 7, time.Second, a, b); ok ||
			!errors.Is(err, rratelimiter.ErrExceedsRate) {
			t.Errorf("TryAcquireAllTimeout, more than a rate: %v, %v", ok, err)
		}
		if waiting := r.Client.Waiting(); len(waiting) != 0 {
			t.Errorf("waiting are %v", waiting)
		}
	})
}

// waitsFor starts a call, and returns once a reply has refused it and it waits. log is the observer
// of the client.
func waitsFor(t *testing.T, log *rig.Log, ask func() error) (ended chan error) {
	ended = make(chan error, 1)
	before := len(log.All())
	go func() { ended <- ask() }()
	rig.Soon(t, "the refusal", func() bool {
		return slices.ContainsFunc(log.All()[before:], func(c rratelimiter.CallInfo) bool { return c.Waiting > 0 })
	})
	return ended
}

// A caller that waits holds nothing, and is served once permits come back in its process.
func TestAcquireAllWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &rig.Log{}
		r := rig.New(t, s, rratelimiter.WithObserver(log))
		a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(10))), r.Limiter(
			"b", rratelimiter.WithRate(rratelimiter.PerMinute(3)),
		)
		r.Try(b, 2)
		ended := waitsFor(t, log, func() error { return r.Client.AcquireAll(t.Context(), 2, a, b) })
		if free := r.Free(a); free != 10 {
			t.Errorf("while a caller waits, %d of 10 permits are free", free)
		}
		if n := r.Release(b, 1); n != 1 {
			t.Errorf("%d came back", n)
		}
		r.Must(<-ended)
		if ofA, ofB := rig.State(t, a), rig.State(t, b); ofA.Used != 2 || ofB.Used != 3 || !ofA.Consistent ||
			!ofB.Consistent {
			t.Errorf("%+v, %+v", ofA, ofB)
		}

		// The same if the clock has gone on.
		ended = waitsFor(t, log, func() error { return r.Client.AcquireAllN(t.Context(), []int64{8, 3}, a, b) })
		r.Advance(time.Minute)
		r.SetRate(b, rratelimiter.PerMinute(3), rratelimiter.KeepState()) // it wakes those who wait
		r.Must(<-ended)
		if ofA, ofB := r.Free(a), r.Free(b); ofA != 2 || ofB != 0 {
			t.Errorf("%d and %d are free", ofA, ofB)
		}
	})
}

func TestAcquireAllWhoseContextEndsWhileItWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &rig.Log{}
		r := rig.New(t, s, rratelimiter.WithObserver(log))
		a, b := r.Limiter("a", rratelimiter.WithRate(rratelimiter.PerMinute(10))), r.Limiter(
			"b", rratelimiter.WithRate(rratelimiter.PerMinute(3)),
		)
		r.Try(a, 1)
		r.Try(b, 2)
		before := r.Dump()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := waitsFor(t, log, func() error { return r.Client.AcquireAll(ctx, 2, a, b) })
		if waiting, want := fmt.Sprint(r.Client.Waiting()), "map[a:1 b:1]"; waiting != want {
			t.Errorf("waiting are %s, expected %s", waiting, want)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		} else if strings.Contains(err.Error(), `"a"`) {
			t.Errorf("the error of a context is about one of the limiters: %v", err)
		}
		r.Unchanged(before, "a caller that has left")
		if waiting := r.Client.Waiting(); len(waiting) != 0 {
			t.Errorf("waiting are %v", waiting)
		}
		if !r.Try(a, 9) {
			t.Error("permits are kept free for a caller that has left")
		}
	})
}

func TestAcquireAllWhoseContextEndsInFlight(t *testing.T) {
	for _, waits := range []bool{false, true} { // the first call, or a later one
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			x, y := p.RateLimiter("{t}x", rratelimiter.WithRate(rratelimiter.PerMinute(10))), p.RateLimiter(
				"{t}y", rratelimiter.WithRate(rratelimiter.PerSecond(3)),
			)
			b.Granted("one permit", b.Try(y, 1), 0)
			ask := func(ctx context.Context) (bool, error) {
				err := p.AcquireAll(ctx, 3, x, y)
				return err == nil, err
			}
			var call *rig.Call
			if waits {
				call = b.Call(ask)
				b.SleepTo(999 * ms)
				defer b.End(p.Wire.Hang())
				b.SleepTo(1001 * ms)
			} else {
				b.SleepTo(1001 * ms)
				defer b.End(p.Wire.Hang())
				call = b.Call(ask)
			}
			b.Waits("a call in flight", call)
			call.Cancel()
			b.Ended("a caller that leaves", call, false, 1001*ms)
			if !errors.Is(call.Err, context.Canceled) || !errors.Is(call.Err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("waits %v: %v", waits, call.Err)
			}
			if waiting := p.Waiting(); len(waiting) != 0 {
				t.Errorf("waiting are %v", waiting)
			}
		})
	}
}

// The first attempt was granted by all limiters or by none. A lost reply takes nothing twice, also
// of a caller that waited.
func TestAcquireAllIsMadeAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, opts := range map[string][]rratelimiter.LimiterOption{
			"plain":         nil,
			"joined":        {rratelimiter.WithGranularity(time.Second)},
			"server time":   {rratelimiter.WithServerTime()},
			"a record each": {rratelimiter.WithRecordPerRequest()},
		} {
			for _, lost := range []rig.Plan{{Cut: true}, {Lost: true}} {
				r := rig.New(t, s)
				r.Wipe()
				c, tap := r.Tapped()
				a, b := c.RateLimiter(
					"a",
					append(opts, rratelimiter.WithRate(rratelimiter.PerMinute(10)))...), c.RateLimiter(
					"b",
					rratelimiter.WithRate(rratelimiter.PerMinute(20)),
				)
				lost.Then = func() { r.Advance(300 * time.Millisecond) }
				tap.Plan(lost)
				r.Must(c.AcquireAll(t.Context(), 4, a, b))
				if n := tap.Requests(); n < 2 {
					t.Errorf("%s: %d requests", name, n)
				}
				for _, l := range []*rratelimiter.Limiter{a, b} {
					if state := rig.State(t, l); state.Used != 4 || !state.Consistent || state.Records != 1 {
						t.Errorf("%s: %+v", name, state)
					}
				}
			}
		}
	})
}

// Where the limiters cannot be asked in one step, a caller asks again after the longest wait, and
// holds nothing meanwhile.
func TestAcquireAllAcrossACluster(t *testing.T) {
	rdb := redistest.Cluster(t, 3).ClusterClient()
	ctx := t.Context()
	var mu sync.Mutex
	at := time.Now().Truncate(time.Millisecond)
	log := &requests{}
	c := rratelimiter.NewClient(
		rdb,
		rratelimiter.WithCallTimeout(20*time.Second),
		rratelimiter.WithObserver(log),
		rratelimiter.WithClock(func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return at
		}),
	)
	var limiters []*rratelimiter.Limiter
	for i, name := range []string{"a", "b", "c", "d"} {
		limiters = append(
			limiters,
			c.RateLimiter(
				name, rratelimiter.WithRate(rratelimiter.Rate{Permits: int64(8 - i), Interval: 300 * time.Millisecond}),
			),
		)
	}
	free := func() (all []int64) {
		for _, l := range limiters {
			n, err := l.AvailablePermits(ctx)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, n)
		}
		return all
	}
	if err := c.AcquireAll(ctx, 5, limiters...); err != nil || !slices.Equal(free(), []int64{3, 2, 1, 0}) {
		t.Fatalf("%v, %v are free", err, free())
	}
	before := free()
	for _, timeout := range []time.Duration{0, 299 * time.Millisecond} {
		if ok, err := c.TryAcquireAllTimeout(ctx, 1, timeout, limiters...); ok || err != nil ||
			!slices.Equal(free(), before) {
			t.Errorf("a timeout of %v: %v, %v; %v are free", timeout, ok, err, free())
		}
	}
	ended := make(chan error)
	asked := len(log.all())
	go func() { ended <- c.AcquireAll(ctx, 2, limiters...) }()
	rig.Soon(t, "the refusal", func() bool { return len(log.all()) > asked+2 }) // the third limiter refuses
	if got := free(); got[3] != 0 || got[2] != 1 {
		t.Errorf("while a caller waits, %v are free", got)
	}
	// The caller may be between two limiters when the clock is set: what it took before must still
	// count. So only the last step lets permits return, and a whole round lies before it.
	advance := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		at = at.Add(d)
	}
	advance(299 * time.Millisecond)
	asked = len(log.all())
	rig.Soon(t, "another round", func() bool { return len(log.all()) > asked+6 })
	advance(time.Millisecond)
	if err := <-ended; err != nil || !slices.Equal(free(), []int64{6, 5, 4, 3}) {
		t.Errorf("%v, %v are free", err, free())
	}
	for _, one := range log.all() {
		if one.Method != "Allow" || one.Waits {
			t.Errorf("%+v", one)
		}
	}

	// A context that ends meanwhile.
	ctx, cancel := context.WithCancel(ctx)
	asked = len(log.all())
	go func() { ended <- c.AcquireAll(ctx, 5, limiters...) }()
	rig.Soon(t, "the refusal", func() bool { return len(log.all()) > asked+2 })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// slow is a hook that delays the requests and the replies of a client.
type slow struct{ way time.Duration }

func (slow) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s slow) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		time.Sleep(s.way)
		defer time.Sleep(s.way)
		return next(ctx, cmd)
	}
}

func (s slow) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(s.way)
		defer time.Sleep(s.way)
		return next(ctx, cmds)
	}
}

// ringProcess starts another process of a bubble, whose client is a Ring. Each command takes 2 ms.
func ringProcess(b *rig.Bubble, opts ...rratelimiter.Option) *rratelimiter.Client {
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"one": "127.0.0.1:6379"},
		NewClient: func(o *redis.Options) *redis.Client {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) {
				pipe, err := b.Server.Dial()
				if err != nil {
					return nil, err
				}
				return netpipe.Conn(pipe), nil
			}
			o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
			return redis.NewClient(o)
		},
	})
	ring.AddHook(slow{time.Millisecond})
	b.T.Cleanup(func() {
		synctest.Wait()
		ring.Close()
	})
	return rratelimiter.NewClient(ring, opts...)
}

// Callers in two processes that list the same limiters in opposite orders get all that is possible:
// 20 times both in 10 s.
func TestAcquireAllInOppositeOrders(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		var granted [2]atomic.Int64
		var asked atomic.Int64
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var callers sync.WaitGroup
		for i := range granted {
			c := ringProcess(b, rratelimiter.WithObserver(counting{&asked}))
			rate := rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: 500 * time.Millisecond})
			limiters := []*rratelimiter.Limiter{c.RateLimiter("a", rate), c.RateLimiter("b", rate)}
			if i == 1 {
				slices.Reverse(limiters)
			}
			callers.Go(func() {
				for c.AcquireAll(ctx, 1, limiters...) == nil {
					granted[i].Add(1)
				}
			})
		}
		callers.Wait()
		b.SleepTo(11 * time.Second) // what the calls in flight took is given back
		first, second := granted[0].Load(), granted[1].Load()
		if first+second < 19 || first < 5 || second < 5 {
			t.Errorf("%d and %d grants in 10 s, 10 and 10 are possible", first, second)
		}
		if n := asked.Load(); n > 300 {
			t.Errorf("%d requests in 10 s", n)
		}
	})
}

// counting counts requests.
type counting struct{ n *atomic.Int64 }

func (c counting) Call(rratelimiter.CallInfo) {}

func (c counting) Request(context.Context, rratelimiter.RequestInfo) { c.n.Add(1) }

// requests is an observer of requests.
type requests struct {
	rig.Log
	mu   sync.Mutex
	seen []rratelimiter.RequestInfo
}

func (l *requests) Request(_ context.Context, info rratelimiter.RequestInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, info)
}

func (l *requests) all() []rratelimiter.RequestInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

func TestAcquireAllIsObserved(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &requests{}
		p := b.Process(rratelimiter.WithObserver(log))
		x, y := p.RateLimiter("{t}x", rratelimiter.WithRate(rratelimiter.PerSecond(10))), p.RateLimiter(
			"{t}y", rratelimiter.WithRate(rratelimiter.PerSecond(4)),
		)
		ask := func(ctx context.Context) (bool, error) {
			err := p.AcquireAll(ctx, 3, x, y)
			return err == nil, err
		}
		b.Granted("the first", b.Call(ask), 0)
		second := b.Call(ask)
		third := b.Call(
			func(ctx context.Context) (bool, error) { return p.TryAcquireAllTimeout(ctx, 1, 2*time.Second, x, y) },
		)
		b.Ended(
			"not in time",
			b.Call(func(ctx context.Context) (bool, error) { return p.TryAcquireAllTimeout(ctx, 4, 900*ms, x, y) }),
			false, 0,
		)
		if waiting, want := fmt.Sprint(p.Waiting()), "map[{t}x:2 {t}y:2]"; waiting != want {
			t.Errorf("waiting are %s, expected %s", waiting, want)
		}
		b.SleepTo(2 * time.Second)
		b.Granted("the second", second, time.Second)
		b.Granted("the third", third, time.Second)
		b.Ended(
			"more than a rate",
			b.Call(func(ctx context.Context) (bool, error) {
				return p.TryAcquireAllTimeout(ctx, 5, time.Second, x, y)
			}), false,
			2*time.Second,
		)
		b.Granted(
			"without a timeout",
			b.Call(func(ctx context.Context) (bool, error) { return p.TryAcquireAllTimeout(ctx, 1, 0, x, y) }),
			2*time.Second,
		)
		b.Granted(
			"one limiter",
			b.Call(func(ctx context.Context) (bool, error) {
				err := p.AcquireAll(ctx, 1, x, x)
				return err == nil, err
			}),
			2*time.Second,
		)
		synctest.Wait()
		var seen []string
		for _, one := range log.all() {
			seen = append(
				seen,
				fmt.Sprintf(
					"%s %s waits %v: %d of %d after %v, %v", one.Limiter[3:], one.Method, one.Waits, one.Granted,
					one.Permits,
					one.Latency, errors.Is(one.Err, rratelimiter.ErrExceedsRate),
				),
			)
		}
		want := []string{
			"x AcquireAll waits true: 3 of 3 after 0s, false", "y AcquireAll waits true: 3 of 3 after 0s, false",
			"x TryAcquireAllTimeout waits true: 0 of 4 after 0s, false",
			"y TryAcquireAllTimeout waits true: 0 of 4 after 0s, false",
			"x AcquireAll waits true: 3 of 3 after 1s, false", "y AcquireAll waits true: 3 of 3 after 1s, false",
			"x TryAcquireAllTimeout waits true: 1 of 1 after 1s, false",
			"y TryAcquireAllTimeout waits true: 1 of 1 after 1s, false",
			"x TryAcquireAllTimeout waits true: 0 of 5 after 0s, true",
			"y TryAcquireAllTimeout waits true: 0 of 5 after 0s, true",
			"x AllowAll waits false: 1 of 1 after 0s, false", "y AllowAll waits false: 1 of 1 after 0s, false",
			"x Acquire waits true: 2 of 2 after 0s, false",
		}
		slices.Sort(seen)
		slices.Sort(want)
		if !slices.Equal(seen, want) {
			t.Errorf("seen are\n%s\nexpected\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
		}
		var calls []string
		for _, one := range log.All() {
			calls = append(
				calls,
				fmt.Sprintf(
					"%s %d callers: %d granted, %d denied, %d permits, %d wait", one.Limiter[3:], one.Callers,
					one.Granted, one.Denied,
					one.Permits, one.Waiting,
				),
			)
		}
		wantCalls := []string{
			"x 1 callers: 1 granted, 0 denied, 3 permits, 0 wait",
			"y 1 callers: 1 granted, 0 denied, 3 permits, 0 wait",
			"x 1 callers: 0 granted, 0 denied, 0 permits, 1 wait",
			"y 1 callers: 0 granted, 0 denied, 0 permits, 1 wait",
			"x 2 callers: 0 granted, 0 denied, 0 permits, 2 wait",
			"y 2 callers: 0 granted, 0 denied, 0 permits, 2 wait",
			"x 3 callers: 0 granted, 0 denied, 0 permits, 2 wait",
			"y 3 callers: 0 granted, 1 denied, 0 permits, 2 wait",
			"x 2 callers: 2 granted, 0 denied, 4 permits, 0 wait",
			"y 2 callers: 2 granted, 0 denied, 4 permits, 0 wait",
			"x 1 callers: 0 granted, 0 denied, 0 permits, 0 wait",
			"y 1 callers: 0 granted, 1 denied, 0 permits, 0 wait",
			"x 1 callers: 1 granted, 0 denied, 1 permits, 0 wait",
			"y 1 callers: 1 granted, 0 denied, 1 permits, 0 wait",
			"x 1 callers: 1 granted, 0 denied, 2 permits, 0 wait",
		}
		if !slices.Equal(calls, wantCalls) {
			t.Errorf("calls are\n%s\nexpected\n%s", strings.Join(calls, "\n"), strings.Join(wantCalls, "\n"))
		}
	})
}

// While Redis is away, the process grants and refuses with WithFallback, and those who wait ask
// again.
func TestAcquireAllFallsBack(t *testing.T) {
	for how, names := range map[string][2]string{"together": {"{a}small", "{a}large"}, "in order": {"small", "large"}} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			fallback := rratelimiter.WithFallback(0.5)
			small, large := p.RateLimiter(names[0], rratelimiter.WithRate(rratelimiter.PerSecond(4)), fallback),
				p.RateLimiter(names[1], rratelimiter.WithRate(rratelimiter.PerSecond(10)), fallback)
			ask := func(n int64) *rig.Call {
				return b.Call(func(ctx context.Context) (bool, error) {
					err := p.AcquireAll(ctx, n, large, small)
					return err == nil, err
				})
			}
			mend := p.Wire.Fail(rig.ErrRefused)
			b.Granted(how, ask(2), 0)
			second := ask(2)
			b.Waits(how, second)
			b.SleepTo(1100 * ms)
			if !second.OK || second.At < time.Second || second.At > 1100*ms {
				t.Errorf("%s: the second ended with %v at %v", how, second.Err, second.At)
			}
			above := ask(4)
			b.Waits(how+", more than the part of the rate", above)
			mend()
			b.SleepTo(10 * time.Second)
			if !above.OK {
				t.Errorf("%s: when Redis is back: %v", how, above.Err)
			}
			if exceeds := ask(5); !errors.Is(exceeds.Err, rratelimiter.ErrExceedsRate) {
				t.Errorf("%s: more than a rate: %v", how, exceeds.Err)
			}
		})
	}
}

// Without WithFallback for each limiter, a call that fails is an error of those who wait.
func TestAcquireAllWithoutFallback(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := p.RateLimiter(
			"{t}x", rratelimiter.WithRate(rratelimiter.PerSecond(4)), rratelimiter.WithFallback(1),
		), p.RateLimiter("{t}y", rratelimiter.WithRate(rratelimiter.PerSecond(4)))
		ask := func(ctx context.Context) (bool, error) {
			err := p.AcquireAll(ctx, 4, x, y)
			return err == nil, err
		}
		b.Granted("the first", b.Call(ask), 0)
		waits := b.Call(ask)
		p.Wire.Fail(rig.ErrRefused)
		now := b.Call(ask)
		b.SleepTo(3 * time.Second) // the calls are retried
		for _, call := range []*rig.Call{now, waits} {
			if !call.Ended.Load() || !errors.Is(call.Err, rig.ErrRefused.Err) {
				t.Errorf("it ended: %v, with %v", call.Ended.Load(), call.Err)
			}
		}
	})
}

// With WithFailFast for one limiter, a caller that would wait in vain learns at once when its
// permits are free.
func TestAcquireAllFailsFast(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := p.RateLimiter("{t}x", rratelimiter.WithRate(rratelimiter.PerSecond(4))), p.RateLimiter(
			"{t}y", rratelimiter.WithRate(rratelimiter.PerSecond(2)), rratelimiter.WithFailFast(),
		)
		by := func(deadline time.Duration) *rig.Call {
			return b.Call(func(ctx context.Context) (bool, error) {
				ctx, cancel := context.WithDeadline(ctx, b.Start.Add(deadline))
				defer cancel()
				err := p.AcquireAll(ctx, 1, x, y)
				return err == nil, err
			})
		}
		b.Granted("one", b.Try(y, 2), 0)
		b.SleepTo(100 * ms)
		in, vain := by(1100*ms), by(time.Second)
		b.Ended("in vain", vain, false, 100*ms)
		var late *rratelimiter.NotInTimeError
		if !errors.As(vain.Err, &late) || late.At.Sub(b.Start) != time.Second ||
			errors.Is(vain.Err, rratelimiter.ErrOutcomeUnknown) ||
			!strings.Contains(vain.Err.Error(), "acquire all") {
			t.Errorf("%v", vain.Err)
		}
		b.SleepTo(1100 * ms)
		b.Granted("in time", in, time.Second)
	})
}

// A timeout that ends while the request is queued behind a call in flight is a refusal, for any
// number of limiters.
func TestTryAcquireAllTimeoutEndsBehindACallInFlight(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, names := range map[string][]string{
			"two": {"x", "y"}, "three": {"x", "y", "z"}, "one listed twice": {"x", "y", "x"}, "one alone": {"x", "x"},
		} {
			r, log := rig.New(t, s), &requests{}
			r.Wipe()
			c, tap := r.Tapped(rratelimiter.WithObserver(log))
			limiters := make([]*rratelimiter.Limiter, len(names))
			for i, name := range names {
				limiters[i] = c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10)))
			}
			sent, reply := make(chan struct{}), make(chan struct{})
			tap.Plan(rig.Plan{Then: func() { close(sent); <-reply }})
			first := make(chan error)
			go func() { first <- c.AcquireAll(t.Context(), 1, limiters...) }()
			<-sent
			if ok, err := c.TryAcquireAllTimeout(t.Context(), 1, ms, limiters...); ok || err != nil {
				t.Errorf("%s: %v, %v", what, ok, err)
			}
			for _, one := range log.all() {
				if one.Granted > 0 || one.Err != nil {
					t.Errorf("%s, the observer sees %+v", what, one)
				}
			}
			close(reply)
			r.Must(<-first)
			for _, l := range limiters {
				want := int64(0)
				for _, name := range names {
					if name == l.Name() {
						want++
					}
				}
				if got := rig.State(t, l).Used; got != want {
					t.Errorf("%s: %d permits of %q are used, want %d", what, got, l.Name(), want)
				}
			}
		}
	})
}

// Whatever timeouts end while calls are queued, in flight or between two calls: a call is granted
// or refused, and no permit is taken that no caller got.
func TestManyTimeoutsOfTwoLimiters(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		c := rratelimiter.NewClient(s.Client())
		x := c.RateLimiter("x", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		y := c.RateLimiter("y", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		for _, longest := range []time.Duration{3 * ms, 200 * ms} {
			var granted atomic.Int64
			var callers sync.WaitGroup
			for range 32 {
				callers.Go(func() {
					for range 100 {
						ok, err := c.TryAcquireAllTimeout(t.Context(), 1, 1+rand.N(longest), x, y)
						if err != nil {
							t.Error(err)
						}
						if ok {
							granted.Add(1)
						}
					}
				})
			}
			callers.Wait()
			for _, l := range []*rratelimiter.Limiter{x, y} {
				if taken := rig.State(t, l).Used; taken > granted.Load() {
					t.Errorf("below %v: %d permits are taken, %d were granted", longest, taken, granted.Load())
				}
			}
			r.Wipe()
		}
	})
}

// One after the other, a timeout that ends while a limiter has a call in flight is a refusal, and
// what the limiters before it granted is given back.
func TestTryAcquireAllTimeoutEndsInAQueueOfOneLimiter(t *testing.T) {
	for _, busy := range []string{"x", "y", "z"} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			limiters := map[string]*rratelimiter.Limiter{}
			for _, name := range []string{"x", "y", "z"} {
				limiters[name] = p.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10)))
				b.Granted("one permit", b.Try(limiters[name], 1), 0)
			}
			resume := p.Wire.Hang()
			first := b.Try(limiters[busy], 1)
			p.Wire.PassNew()
			call := b.Call(func(ctx context.Context) (bool, error) {
				return p.TryAcquireAllTimeout(ctx, 1, 5*ms, limiters["z"], limiters["y"], limiters["x"])
			})
			b.Waits("before its timeout", call)
			b.SleepTo(5 * ms)
			b.Ended("behind a call for "+busy, call, false, 5*ms)
			if call.Err != nil {
				t.Error(call.Err)
			}
			b.End(resume)
			b.Granted("the first call", first, 5*ms)
			for name, l := range limiters {
				want := int64(1)
				if name == busy {
					want++
				}
				if used := rig.State(t, l).Used; used != want {
					t.Errorf("%d permits of %s are in use, expected %d", used, name, want)
				}
			}
		})
	}
}

// One after the other, a caller lets others be first when permits return, but not beyond its
// timeout.
func TestTryAcquireAllTimeoutIsNotLate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rate := rratelimiter.WithRate(rratelimiter.PerSecond(1))
		x, y := p.RateLimiter("x", rate), p.RateLimiter("y", rate)
		b.Granted("who takes all", b.Try(y, 1), 0)
		b.SleepTo(995 * ms)
		call := b.Call(func(ctx context.Context) (bool, error) {
			return p.TryAcquireAllTimeout(ctx, 1, 5*ms+20*time.Microsecond, x, y)
		})
		b.SleepTo(2 * time.Second)
		b.Granted("the caller", call, time.Second)
	})
}
