package acquire

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
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestAllowReturnsAllFigures(t *testing.T) {
	const s = time.Second
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		clock := rig.NewHandClock()
		l := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(clock.Now), rig.Patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		start := clock.Now()
		for _, step := range []struct {
			at   time.Duration
			n    int64
			want rratelimiter.Result
		}{
			{0, 4, result(true, 10, 6, 0, s, s)},
			{0, 10, result(false, 10, 6, s, s, s)},
			{300 * ms, 4, result(true, 10, 2, 0, 700*ms, s)},
			{400 * ms, 3, result(false, 10, 2, 600*ms, 600*ms, 900*ms)},
			{400 * ms, 6, result(false, 10, 2, 600*ms, 600*ms, 900*ms)},
			{400 * ms, 7, result(false, 10, 2, 900*ms, 600*ms, 900*ms)},
			{400 * ms, 2, result(true, 10, 0, 0, 600*ms, s)},
			{400 * ms, 1, result(false, 10, 0, 600*ms, 600*ms, s)},
			{999 * ms, 10, result(false, 10, 0, 401*ms, 1*ms, 401*ms)},
			{999 * ms, 4, result(false, 10, 0, 1*ms, 1*ms, 401*ms)},
			// the clock is read in whole µs
			{1000*ms - 1, 4, result(false, 10, 0, time.Microsecond, time.Microsecond, 400*ms+time.Microsecond)},
			{1000 * ms, 5, result(false, 10, 4, 300*ms, 300*ms, 400*ms)},
			{1000 * ms, 4, result(true, 10, 0, 0, 300*ms, s)},
			{5 * s, 10, result(true, 10, 0, 0, s, s)},
			{5 * s, 10, result(false, 10, 0, s, s, s)},
			{6 * s, 1, result(true, 10, 9, 0, s, s)},
		} {
			clock.Advance(step.at - clock.Now().Sub(start))
			got, err := l.Allow(t.Context(), step.n)
			if err != nil || got != step.want {
				t.Errorf("at %v Allow(%d): %+v, %v, expected %+v", step.at, step.n, got, err, step.want)
			}
		}
	})
}

// If the permits of 512 records do not suffice, RetryAfter is the time until those are free: a
// lower bound. ResetAfter is exact.
func TestAllowBehindManyRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		clock := rig.NewHandClock()
		l := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(clock.Now), rig.Patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(700)))
		for range 700 {
			rig.MustTry(t, l, 1, true)
			clock.Advance(ms)
		}
		for n, want := range map[int64]time.Duration{
			1:   300 * ms,
			2:   301 * ms,
			512: 811 * ms,
			513: 811 * ms,
			700: 811 * ms,
		} {
			got, err := l.Allow(t.Context(), n)
			if want := (result(false, 700, 0, want, 300*ms, 999*ms)); err != nil || got != want {
				t.Errorf("Allow(%d): %+v, %v, expected %+v", n, got, err, want)
			}
		}
	})
}

func TestTryAcquireTimeout(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Ended("free now", b.TryFor(l, 4, 1), true, 0)
		for _, timeout := range []time.Duration{0, -1, math.MinInt64} {
			b.Ended("no time, free now", b.TryFor(l, 2, timeout), true, 0)
			b.Ended("no time, not free", b.TryFor(l, 7, timeout), false, 0)
		}
		b.Ended("refused", b.TryFor(l, 1, 999*ms), false, 0)
		b.Ended("refused: free just when the timeout ends", b.TryFor(l, 1, 1000*ms), false, 0)
		inTime := b.TryFor(l, 10, 1001*ms)
		short, long, ever := b.TryFor(l, 5, 1500*ms), b.TryFor(l, 5, 2100*ms), b.TryFor(l, 5, math.MaxInt64)
		b.SleepTo(999 * ms)
		b.Waits("in time", inTime)
		b.SleepTo(1000 * ms)
		b.Granted("in time", inTime, 1000*ms)
		// The records of the first ten permits are read only now: by them, 1.5 s is too short.
		b.Ended("refused behind others", short, false, 1000*ms)
		b.Waits("in time behind others", long)
		b.SleepTo(3 * time.Second)
		b.Granted("in time behind others", long, 2000*ms)
		b.Granted("with all the time there is", ever, 2000*ms)
	})
}

// A timeout that ends while a call is in flight does not make its outcome unknown.
func TestTimeoutWhileACallIsInFlight(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		p.Wire.Back.Store(int64(100 * ms))
		granted, refused := b.TryFor(l, 10, 20*ms), b.TryFor(l, 10, 150*ms)
		b.SleepTo(time.Second)
		b.Granted("the caller that is granted", granted, 100*ms)
		b.Ended("the caller that is refused", refused, false, 200*ms)
	})
}

func TestTimeoutsOnServers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		l := rratelimiter.NewClient(server.Client(), rig.Patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.Rate{Permits: 2, Interval: 300 * ms}))
		slow := rratelimiter.NewClient(server.Client(), rig.Patient).
			RateLimiter("slow", rratelimiter.WithRate(rratelimiter.PerHour(2)))
		start := time.Now()
		rig.MustTry(t, l, 2, true)
		rig.MustTry(t, slow, 2, true)
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
		rdb := server.Client(redistest.NoDeadlines) // a call for 2^53 permits is never repeated
		client := rratelimiter.NewClient(rdb, rig.Patient)
		l, none, part := client.RateLimiter("l"), client.RateLimiter("none"), client.RateLimiter("part")
		rig.MustSet(t, l, rratelimiter.PerMinute(10))
		rig.MustTry(t, l, 4, true)
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
		for name, ask := range rig.EveryWay(l) {
			named := `"l"`
			if name == "AcquireAll" {
				named = "acquire all" // it is about no limiter
			}
			for _, n := range []int64{0, -1, math.MinInt64} {
				check(fmt.Sprint(name, n), ask(t.Context(), n), rratelimiter.ErrInvalidPermits, named, fmt.Sprint(n))
			}
			for _, n := range []int64{11, 1 << 32, 1 << 53, math.MaxInt64} {
				check(fmt.Sprint(name, n), ask(t.Context(), n), rratelimiter.ErrExceedsRate, `"l"`, fmt.Sprint(n))
			}
			check(name, rig.EveryWay(none)[name](t.Context(), 1), rratelimiter.ErrNotInitialized, `"none"`, "no rate")
			check(name, rig.EveryWay(part)[name](t.Context(), 1), rratelimiter.ErrNotInitialized, `"part"`, "type")
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
		for name, ask := range rig.EveryWay(wrong) {
			check(name, ask(t.Context(), 1), rratelimiter.ErrInvalidOption)
		}
		if s := rig.State(t, l); s.Used != 4 || s.Available != 6 || s.Records != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if keys := rdb.Keys(t.Context(), "*{none}*").Val(); len(keys) != 0 {
			t.Errorf("%q were made", keys)
		}
	})
}

// A request for more than the rate gets ErrExceedsRate; the other requests of the call are served
// as without it.
func TestExcessIsOneCallersOwn(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		plug := p.Wire.Hang()
		b.Try(l, 1)
		served := []*rig.Call{b.Acquire(l, 3), b.TryFor(l, 2, time.Second)}
		excess := []*rig.Call{b.Acquire(l, 11), b.TryFor(l, 12, time.Second), b.Try(l, 13)}
		served = append(served, b.Acquire(l, 1), b.Try(l, 2))
		before := p.Wire.Calls()
		plug()
		for _, c := range served {
			b.Granted("the caller that is served", c, 0)
		}
		for i, c := range excess {
			b.Ended("the caller that asks for too much", c, false, 0)
			if !errors.Is(c.Err, rratelimiter.ErrExceedsRate) ||
				!strings.Contains(fmt.Sprint(c.Err), fmt.Sprint(11+i)) {
				t.Error(c.Err)
			}
		}
		if n := p.Wire.Calls() - before; n != 1 {
			t.Errorf("%d calls", n)
		}
		if s := rig.State(t, l); s.Used != 9 || s.Records != 2 {
			t.Errorf("%+v", s)
		}
	})
}

// Each result of a shared call has the permits that remain after its own request.
func TestRemainingInASharedCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		plug := p.Wire.Hang()
		b.Try(l, 1)
		results := make([]rratelimiter.Result, 5)
		for i, n := range []int64{2, 2, 3, 7, 2} {
			b.Call(func(ctx context.Context) (ok bool, err error) {
				results[i], err = l.Allow(ctx, n)
				return results[i].Allowed, err
			})
		}
		plug()
		synctest.Wait()
		for i, want := range []rratelimiter.Result{
			// requests of one size are served together
			result(true, 10, 7, 0, time.Second, time.Second), result(true, 10, 5, 0, time.Second, time.Second),
			result(true, 10, 0, 0, time.Second, time.Second),
			result(false, 10, 0, time.Second, time.Second, time.Second),
			result(true, 10, 3, 0, time.Second, time.Second),
		} {
			if results[i] != want {
				t.Errorf("caller %d: %+v, expected %+v", i, results[i], want)
			}
		}
	})
}

func TestAcquireUpTo(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		clock := rig.NewHandClock()
		l := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(clock.Now), rig.Patient).RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		for _, step := range []struct{ ask, want int64 }{{3, 3}, {20, 7}, {1, 0}, {math.MaxInt64, 0}} {
			if got, err := l.AcquireUpTo(t.Context(), step.ask); err != nil || got != step.want {
				t.Errorf("AcquireUpTo(%d): %d, %v, expected %d", step.ask, got, err, step.want)
			}
		}
		clock.Advance(time.Second)
		if got, err := l.AcquireUpTo(t.Context(), math.MaxInt64); err != nil || got != 10 {
			t.Errorf("AcquireUpTo(all): %d, %v", got, err)
		}
		if s := rig.State(t, l); s.Used != 10 || s.Records != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// While Redis hangs, callers return when their context or the call timeout ends. Afterwards all
// works as before.
func TestHangingServer(t *testing.T) {
	server := redistest.Real(t)
	const limit, noise = 400 * ms, 100 * ms
	client, calm := rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(limit)),
		rratelimiter.NewClient(
			server.Client(), rig.Patient,
		)
	l, full := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1000))),
		calm.RateLimiter("full", rratelimiter.WithRate(rratelimiter.PerHour(1)))
	rig.MustTry(t, calm.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1000))), 1, true)
	rig.MustTry(t, full, 1, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waited := make(chan error, 1)
	go func() { waited <- full.Acquire(ctx, 1) }()
	// Its next call is sent after at most 1 s, so it is in flight when ctx ends.
	rig.Soon(t, "waiting", func() bool { return rig.Core(calm).Look("full").Next > 0 })
	server.Pause()
	resume := sync.OnceFunc(server.Resume)
	defer resume()

	check := func(what string, least, most time.Duration, ask func() error, want error) {
		t.Helper()
		var took, still time.Duration
		for range 3 { // a caller alone can stand still, too
			stood, start := rig.Standstills(t), time.Now()
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
	for name, ask := range rig.EveryWay(l) {
		check(name, 50*ms, 50*ms+noise, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
			defer cancel()
			return ask(ctx, 1)
		}, context.DeadlineExceeded)
	}
	other := client.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerHour(1000)))
	for name, ask := range rig.EveryWay(other) {
		check(name, limit, 2*limit+noise, func() error { return ask(t.Context(), 1) }, os.ErrDeadlineExceeded)
	}

	resume()
	for name, ask := range rig.EveryWay(l) {
		rig.Soon(t, name+" that works", func() bool { return ask(t.Context(), 1) == nil })
	}
	if s := rig.State(t, calm.RateLimiter("l")); !s.Consistent {
		t.Errorf("%+v", s)
	}
}

// Handles of one name share one state, whatever their options.
func TestHandlesWithOtherOptionsShareTheLimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		log := &rig.Log{}
		client := rratelimiter.NewClient(server.Client(), rratelimiter.WithObserver(log), rig.Patient,
			rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerMinute(10))))
		rig.MustSet(t, client.RateLimiter("l"), rratelimiter.PerMinute(10))
		other := rratelimiter.NewClient(server.Client(), rig.Patient)
		handles := []*rratelimiter.Limiter{
			client.RateLimiter("l"), client.RateLimiter("l", rratelimiter.WithRecordPerRequest()),
			client.RateLimiter("l", rratelimiter.WithServerTime()),
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
		for _, f := range log.All() {
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
		a, b := rratelimiter.NewClient(rdb, rratelimiter.WithClientID("a"), rig.Patient),
			rratelimiter.NewClient(rdb, rratelimiter.WithClientID("b"), rig.Patient)
		rig.MustSet(t, a.RateLimiter("l"),
			rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 3, Interval: time.Minute})
		for _, c := range []*rratelimiter.Client{a, b} {
			rig.MustTry(t, c.RateLimiter("l"), 3, true)
			rig.MustTry(t, c.RateLimiter("l"), 1, false)
		}
		// as after a restart
		rig.MustTry(t, rratelimiter.NewClient(rdb, rratelimiter.WithClientID("a"), rig.Patient).RateLimiter("l"), 1,
			false)
		if n := rdb.Exists(t.Context(), "{l}:value", "{l}:permits").Val(); n != 0 {
			t.Error("the shared state is used")
		}
	})
}

// The call that makes a limiter can also refuse some of its requests.
func TestWaitsOfTheFirstCall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		ask := protocol.BatchAsk{Groups: rig.Groups(1, 12), Detail: true}
		g, err := rig.OneCall(t.Context(), l, ask)
		if err != nil || g.Granted(0, ask.Groups[0]) != 10 || g.Wait(0) != time.Minute ||
			g.First.ResetAfter != time.Minute {
			t.Errorf("%+v, %v", g, err)
		}
		exhausted, fresh := r.Limiter("exhausted", rratelimiter.WithRate(rratelimiter.PerMinute(1))), r.Limiter(
			"new", rratelimiter.WithRate(rratelimiter.PerMinute(2)),
		)
		r.Try(exhausted, 1)
		results, err := r.Client.AllowAll(t.Context(), 1, exhausted, fresh)
		if err != nil || results[0].Allowed || results[0].RetryAfter != time.Minute || results[1].RetryAfter != 0 {
			t.Errorf("%+v, %v", results, err)
		}
	})
}
