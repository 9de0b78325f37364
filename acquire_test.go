package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestAllowReturnsAllFigures(t *testing.T) {
	const s = time.Second
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		clock := newHandClock()
		l := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(clock.now), patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		start := clock.now()
		for _, step := range []struct {
			at   time.Duration
			n    int64
			want rratelimiter.Result
		}{
			{0, 4, rratelimiter.Result{true, 10, 6, 0, s, s}},
			{0, 10, rratelimiter.Result{false, 10, 6, s, s, s}},
			{300 * ms, 4, rratelimiter.Result{true, 10, 2, 0, 700 * ms, s}},
			{400 * ms, 3, rratelimiter.Result{false, 10, 2, 600 * ms, 600 * ms, 900 * ms}},
			{400 * ms, 6, rratelimiter.Result{false, 10, 2, 600 * ms, 600 * ms, 900 * ms}},
			{400 * ms, 7, rratelimiter.Result{false, 10, 2, 900 * ms, 600 * ms, 900 * ms}},
			{400 * ms, 2, rratelimiter.Result{true, 10, 0, 0, 600 * ms, s}},
			{400 * ms, 1, rratelimiter.Result{false, 10, 0, 600 * ms, 600 * ms, s}},
			{999 * ms, 10, rratelimiter.Result{false, 10, 0, 401 * ms, 1 * ms, 401 * ms}},
			{999 * ms, 4, rratelimiter.Result{false, 10, 0, 1 * ms, 1 * ms, 401 * ms}},
			{1000*ms - 1, 4, rratelimiter.Result{false, 10, 0, time.Microsecond, time.Microsecond, 400*ms + time.Microsecond}}, // the clock is read in whole µs
			{1000 * ms, 5, rratelimiter.Result{false, 10, 4, 300 * ms, 300 * ms, 400 * ms}},
			{1000 * ms, 4, rratelimiter.Result{true, 10, 0, 0, 300 * ms, s}},
			{5 * s, 10, rratelimiter.Result{true, 10, 0, 0, s, s}},
			{5 * s, 10, rratelimiter.Result{false, 10, 0, s, s, s}},
			{6 * s, 1, rratelimiter.Result{true, 10, 9, 0, s, s}},
		} {
			clock.advance(step.at - clock.now().Sub(start))
			got, err := l.Allow(t.Context(), step.n)
			if err != nil || got != step.want {
				t.Errorf("at %v Allow(%d): %+v, %v, expected %+v", step.at, step.n, got, err, step.want)
			}
		}
	})
}

// If the permits of 512 records do not suffice, RetryAfter is the time until those are free: a lower bound. ResetAfter
// is exact.
func TestAllowBehindManyRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		clock := newHandClock()
		l := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(clock.now), patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(700)))
		for range 700 {
			mustTry(t, l, 1, true)
			clock.advance(ms)
		}
		for n, want := range map[int64]time.Duration{1: 300 * ms, 2: 301 * ms, 512: 811 * ms, 513: 811 * ms, 700: 811 * ms} {
			got, err := l.Allow(t.Context(), n)
			if want := (rratelimiter.Result{false, 700, 0, want, 300 * ms, 999 * ms}); err != nil || got != want {
				t.Errorf("Allow(%d): %+v, %v, expected %+v", n, got, err, want)
			}
		}
	})
}

func TestTryAcquireTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.ended("free now", b.tryFor(l, 4, 1), true, 0)
		for _, timeout := range []time.Duration{0, -1, math.MinInt64} {
			b.ended("no time, free now", b.tryFor(l, 2, timeout), true, 0)
			b.ended("no time, not free", b.tryFor(l, 7, timeout), false, 0)
		}
		b.ended("refused", b.tryFor(l, 1, 999*ms), false, 0)
		b.ended("refused: free just when the timeout ends", b.tryFor(l, 1, 1000*ms), false, 0)
		inTime := b.tryFor(l, 10, 1001*ms)
		short, long, ever := b.tryFor(l, 5, 1500*ms), b.tryFor(l, 5, 2100*ms), b.tryFor(l, 5, math.MaxInt64)
		b.sleepTo(999 * ms)
		b.waits("in time", inTime)
		b.sleepTo(1000 * ms)
		b.granted("in time", inTime, 1000*ms)
		// The records of the first ten permits are read only now: by them, 1.5 s is too short.
		b.ended("refused behind others", short, false, 1000*ms)
		b.waits("in time behind others", long)
		b.sleepTo(3 * time.Second)
		b.granted("in time behind others", long, 2000*ms)
		b.granted("with all the time there is", ever, 2000*ms)
	})
}

// A timeout that ends while a call is in flight does not make its outcome unknown.
func TestTimeoutWhileACallIsInFlight(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		p.wire.back.Store(int64(100 * ms))
		granted, refused := b.tryFor(l, 10, 20*ms), b.tryFor(l, 10, 150*ms)
		b.sleepTo(time.Second)
		b.granted("the caller that is granted", granted, 100*ms)
		b.ended("the caller that is refused", refused, false, 200*ms)
	})
}

func TestTimeoutsOnServers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		l := rratelimiter.NewClient(server.Client(), patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.Rate{Permits: 2, Interval: 300 * ms}))
		slow := rratelimiter.NewClient(server.Client(), patient).RateLimiter("slow", rratelimiter.WithRate(rratelimiter.PerHour(2)))
		start := time.Now()
		mustTry(t, l, 2, true)
		mustTry(t, slow, 2, true)
		if ok, err := slow.TryAcquireTimeout(t.Context(), 1, time.Minute); ok || err != nil {
			t.Errorf("refused: %v, %v", ok, err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("refused: known after %v", took)
		}
		if ok, err := l.TryAcquireTimeout(t.Context(), 2, time.Minute); !ok || err != nil {
			t.Errorf("in time: %v, %v", ok, err)
		}
		if took := time.Since(start); took < 299*ms {
			t.Errorf("granted after %v", took)
		}
	})
}

func TestErrorsTakeNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		rdb := server.Client()
		client := rratelimiter.NewClient(rdb, patient)
		l, none, part := client.RateLimiter("l"), client.RateLimiter("none"), client.RateLimiter("part")
		mustSet(t, l, rratelimiter.PerMinute(10))
		mustTry(t, l, 4, true)
		if err := rdb.HSet(t.Context(), "part", "rate", "5", "interval", "1000").Err(); err != nil {
			t.Fatal(err)
		}
		check := func(what string, err, want error, texts ...string) {
			t.Helper()
			if !errors.Is(err, want) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s: %v, expected %v", what, err, want)
				return
			}
			for _, text := range texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %q does not contain %s", what, err, text)
				}
			}
		}
		for name, ask := range everyWay(l) {
			for _, n := range []int64{0, -1, math.MinInt64} {
				check(fmt.Sprint(name, n), ask(t.Context(), n), rratelimiter.ErrInvalidPermits, `"l"`, fmt.Sprint(n))
			}
			for _, n := range []int64{11, 1 << 32, 1 << 53, math.MaxInt64} {
				check(fmt.Sprint(name, n), ask(t.Context(), n), rratelimiter.ErrExceedsRate, `"l"`, fmt.Sprint(n))
			}
			check(name, everyWay(none)[name](t.Context(), 1), rratelimiter.ErrNotInitialized, `"none"`, "no rate")
			check(name, everyWay(part)[name](t.Context(), 1), rratelimiter.ErrNotInitialized, `"part"`, "type")
		}
		for _, n := range []int64{0, -1, math.MinInt64} {
			_, err := l.AcquireUpTo(t.Context(), n)
			check("AcquireUpTo", err, rratelimiter.ErrInvalidPermits)
			_, err = client.AllowAll(t.Context(), n, l)
			check("AllowAll", err, rratelimiter.ErrInvalidPermits)
			released, err := l.Release(t.Context(), n)
			if n < 0 {
				check("Release", err, rratelimiter.ErrInvalidPermits)
			}
			if released != 0 || n == 0 && err != nil {
				t.Errorf("Release(%d): %d, %v", n, released, err)
			}
		}
		_, err := none.AcquireUpTo(t.Context(), 1)
		check("AcquireUpTo", err, rratelimiter.ErrNotInitialized)
		_, err = client.AllowAll(t.Context(), 11, l)
		check("AllowAll", err, rratelimiter.ErrExceedsRate)
		_, err = client.AllowAll(t.Context(), 1, l, none)
		check("AllowAll", err, rratelimiter.ErrNotInitialized)
		wrong := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1}))
		for name, ask := range everyWay(wrong) {
			check(name, ask(t.Context(), 1), rratelimiter.ErrInvalidOption)
		}
		if s := state(t, l); s.Used != 4 || s.Available != 6 || s.Records != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if keys := rdb.Keys(t.Context(), "*{none}*").Val(); len(keys) != 0 {
			t.Errorf("%q were made", keys)
		}
	})
}

// A request for more than the rate gets ErrExceedsRate; the other requests of the call are served as without it.
func TestExcessIsOneCallersOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		plug := p.wire.hang()
		b.try(l, 1)
		served := []*call{b.acquire(l, 3), b.tryFor(l, 2, time.Second)}
		excess := []*call{b.acquire(l, 11), b.tryFor(l, 12, time.Second), b.try(l, 13)}
		served = append(served, b.acquire(l, 1), b.try(l, 2))
		before := p.wire.scripts.Load()
		plug()
		for _, c := range served {
			b.granted("the caller that is served", c, 0)
		}
		for i, c := range excess {
			b.ended("the caller that asks for too much", c, false, 0)
			if !errors.Is(c.err, rratelimiter.ErrExceedsRate) || !strings.Contains(fmt.Sprint(c.err), fmt.Sprint(11+i)) {
				t.Error(c.err)
			}
		}
		if n := p.wire.scripts.Load() - before; n != 1 {
			t.Errorf("%d calls", n)
		}
		if s := state(t, l); s.Used != 9 || s.Records != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// Each result of a shared call has the permits that remain after its own request.
func TestRemainingInASharedCall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		plug := p.wire.hang()
		b.try(l, 1)
		results := make([]rratelimiter.Result, 5)
		for i, n := range []int64{2, 2, 3, 7, 2} {
			b.call(func(ctx context.Context) (ok bool, err error) {
				results[i], err = l.Allow(ctx, n)
				return results[i].Allowed, err
			})
		}
		plug()
		synctest.Wait()
		for i, want := range []rratelimiter.Result{
			{true, 10, 7, 0, time.Second, time.Second}, {true, 10, 5, 0, time.Second, time.Second}, // requests of one size are served together
			{true, 10, 0, 0, time.Second, time.Second}, {false, 10, 0, time.Second, time.Second, time.Second}, {true, 10, 3, 0, time.Second, time.Second},
		} {
			if results[i] != want {
				t.Errorf("caller %d: %+v, expected %+v", i, results[i], want)
			}
		}
	})
}

func TestAcquireUpTo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		clock := newHandClock()
		l := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(clock.now), patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		for _, step := range []struct{ ask, want int64 }{{3, 3}, {20, 7}, {1, 0}, {math.MaxInt64, 0}} {
			if got, err := l.AcquireUpTo(t.Context(), step.ask); err != nil || got != step.want {
				t.Errorf("AcquireUpTo(%d): %d, %v, expected %d", step.ask, got, err, step.want)
			}
		}
		clock.advance(time.Second)
		if got, err := l.AcquireUpTo(t.Context(), math.MaxInt64); err != nil || got != 10 {
			t.Errorf("AcquireUpTo(all): %d, %v", got, err)
		}
		if s := state(t, l); s.Used != 10 || s.Records != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// While Redis hangs, callers return when their context or the call timeout ends. Afterwards all works as before.
func TestHangingServer(t *testing.T) {
	server := redistest.Real(t)
	const limit, noise = 400 * ms, 100 * ms
	client, calm := rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(limit)), rratelimiter.NewClient(server.Client(), patient)
	l, full := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1000))),
		calm.RateLimiter("full", rratelimiter.WithRate(rratelimiter.PerHour(1)))
	mustTry(t, calm.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1000))), 1, true)
	mustTry(t, full, 1, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	go func() { waited <- full.Acquire(ctx, 1) }()
	// Its next call is sent after at most 1 s, so it is in flight when ctx ends.
	soon(t, "waiting", func() bool { return rratelimiter.ClientCore(calm).Look("full").Next > 0 })
	server.Pause()
	resume := sync.OnceFunc(server.Resume)
	defer resume()

	check := func(what string, least, most time.Duration, ask func() error, want error) {
		t.Helper()
		var took, still time.Duration
		for range 3 { // a caller alone can stand still, too
			stood, start := standstills(t), time.Now()
			err := ask()
			took = time.Since(start)
			if still = stood(); took < least {
				t.Errorf("%s returned after %v", what, took)
			}
			if !errors.Is(err, want) {
				t.Errorf("%s: %v", what, err)
			}
			if took-still <= most {
				return
			}
		}
		t.Errorf("%s returned after %v, of which the machine stood still for %v", what, took, still)
	}
	check("the caller that waits", 0, 10*time.Second, func() error { cancel(); return <-waited }, context.Canceled)
	for name, ask := range everyWay(l) {
		check(name, 50*ms, 50*ms+noise, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			defer cancel()
			return ask(ctx, 1)
		}, context.DeadlineExceeded)
	}
	other := client.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerHour(1000)))
	for name, ask := range everyWay(other) {
		check(name, limit, 2*limit+noise, func() error { return ask(t.Context(), 1) }, os.ErrDeadlineExceeded)
	}

	resume()
	for name, ask := range everyWay(l) {
		soon(t, name+" that works", func() bool { return ask(t.Context(), 1) == nil })
	}
	if s := state(t, calm.RateLimiter("l")); !s.Consistent {
		t.Errorf("%+v", s)
	}
}

// Handles of one name share one state, whatever their options.
func TestHandlesWithOtherOptionsShareTheLimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		log := &log{}
		client := rratelimiter.NewClient(server.Client(), rratelimiter.WithObserver(log), patient,
			rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerMinute(10))))
		mustSet(t, client.RateLimiter("l"), rratelimiter.PerMinute(10))
		other := rratelimiter.NewClient(server.Client(), patient)
		handles := []*rratelimiter.Limiter{
			client.RateLimiter("l"), client.RateLimiter("l", rratelimiter.WithRecordPerRequest()), client.RateLimiter("l", rratelimiter.WithServerTime()),
			client.RateLimiter("l", rratelimiter.WithRecordFormat(rratelimiter.Redisson321)),
			client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(5))),
			other.RateLimiter("l"), other.RateLimiter("l", rratelimiter.WithRecordFormat(rratelimiter.Redisson313)),
		}
		var granted atomic.Int64
		var all sync.WaitGroup
		for _, l := range handles {
			all.Go(func() {
				for range 5 {
					ok, err := l.TryAcquire(t.Context(), 1)
					if err != nil {
						t.Error(err)
					}
					if ok {
						granted.Add(1)
					}
				}
			})
		}
		all.Wait()
		if granted.Load() != 10 {
			t.Errorf("%d granted", granted.Load())
		}
		differed := 0
		for _, f := range log.all() {
			if f.RateMismatch {
				differed++
			}
		}
		if differed != 5 {
			t.Errorf("%d calls met another rate than theirs, expected 5", differed)
		}
	})
}

// Clients do not share a PerClient rate.
func TestPerClient(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		rdb := server.Client()
		a, b := rratelimiter.NewClient(rdb, rratelimiter.WithClientID("a"), patient),
			rratelimiter.NewClient(rdb, rratelimiter.WithClientID("b"), patient)
		mustSet(t, a.RateLimiter("l"), rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 3, Interval: time.Minute})
		for _, c := range []*rratelimiter.Client{a, b} {
			mustTry(t, c.RateLimiter("l"), 3, true)
			mustTry(t, c.RateLimiter("l"), 1, false)
		}
		mustTry(t, rratelimiter.NewClient(rdb, rratelimiter.WithClientID("a"), patient).RateLimiter("l"), 1, false) // as after a restart
		if n := rdb.Exists(t.Context(), "{l}:value", "{l}:permits").Val(); n != 0 {
			t.Error("the shared state is used")
		}
	})
}

func TestAcquireUpToTakesWhatIsFree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		for _, step := range []struct{ n, want int64 }{{3, 3}, {100, 7}, {1, 0}, {math.MaxInt64, 0}} {
			if got, err := l.AcquireUpTo(t.Context(), step.n); got != step.want || err != nil {
				t.Errorf("up to %d: %d, %v; want %d", step.n, got, err, step.want)
			}
		}
		r.same(l, rratelimiter.State{Rate: rratelimiter.PerMinute(10), Used: 10, Records: 2, Oldest: r.now(), Newest: r.now(), Consistent: true})
		r.advance(time.Minute)
		if got, err := l.AcquireUpTo(t.Context(), math.MaxInt64); got != 10 || err != nil {
			t.Errorf("all: %d, %v", got, err)
		}
	})
}

// The call that makes a limiter can also refuse some of its requests.
func TestWaitsOfTheFirstCall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		ask := protocol.Ask{Groups: callers(1, 12), Detail: true}
		g, err := oneCall(t.Context(), l, ask)
		if err != nil || g.Granted(0, ask.Groups[0]) != 10 || g.Wait(0) != time.Minute || g.ResetAfter != time.Minute {
			t.Errorf("%+v, %v", g, err)
		}
		exhausted, fresh := r.limiter("exhausted", rratelimiter.WithRate(rratelimiter.PerMinute(1))), r.limiter("new", rratelimiter.WithRate(rratelimiter.PerMinute(2)))
		r.try(exhausted, 1)
		results, err := r.client.AllowAll(t.Context(), 1, exhausted, fresh)
		if err != nil || results[0].Allowed || results[0].RetryAfter != time.Minute || results[1].RetryAfter != 0 {
			t.Errorf("%+v, %v", results, err)
		}
	})
}
