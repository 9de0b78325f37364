package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

func TestFallbackGrantsItsPartOfTheRate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.5))
		b.MustAllow(
			"by Redis", l, 7,
			rratelimiter.Result{
				Allowed:    true,
				Limit:      10,
				Remaining:  3,
				NextAfter:  time.Second,
				ResetAfter: time.Second,
			},
		)
		mend := p.Wire.Fail(rig.ErrRefused)
		full := time.Second
		b.MustAllow(
			"by the process", l, 3,
			rratelimiter.Result{Allowed: true, Limit: 5, Remaining: 2, NextAfter: full, ResetAfter: full},
		)
		b.MustAllow(
			"too much for now", l, 3,
			rratelimiter.Result{Limit: 5, Remaining: 2, RetryAfter: full, NextAfter: full, ResetAfter: full},
		)
		b.MustAllow("the rest", l, 2, rratelimiter.Result{Allowed: true, Limit: 5, NextAfter: full, ResetAfter: full})
		b.Granted("nothing", b.Call(func(ctx context.Context) (bool, error) {
			ok, err := l.TryAcquire(ctx, 1)
			return !ok, err
		}), 0)
		if result, err := l.Allow(t.Context(), 6); err != nil || result.Allowed || result.RetryAfter <= 0 ||
			result.RetryAfter > 100*ms {
			t.Errorf("more than the part: %+v, %v", result, err)
		}
		if _, err := l.Allow(t.Context(), 11); !errors.Is(err, rratelimiter.ErrExceedsRate) {
			t.Errorf("more than the rate: %v", err)
		}
		b.SleepTo(full - 1)
		b.Granted("before its time", b.Call(func(ctx context.Context) (bool, error) {
			ok, err := l.TryAcquire(ctx, 1)
			return !ok, err
		}), full-1)
		mend()
		b.SleepTo(1200 * ms)
		b.Granted("the caller that makes a call to Redis", b.Try(l, 5), 1200*ms)
		b.SleepTo(3 * time.Second)
		b.MustAllow(
			"by Redis again", l, 10,
			rratelimiter.Result{Allowed: true, Limit: 10, NextAfter: time.Second, ResetAfter: time.Second},
		)
		if states := rig.Core(p.Client).Inspect().LocalLimiters; states != 0 {
			t.Errorf("%d limiters are kept", states)
		}
	})
}

// With every method, and however often Redis fails and recovers, no interval holds more of the
// process's own grants than its fraction of the rate. A localGrants is an observer that records
// what the process grants of a limiter by itself.
type localGrants struct {
	limiter string
	mu      sync.Mutex
	grants  []window.Grant
}

func (o *localGrants) Call(f rratelimiter.CallInfo) {
	if f.Fallback && f.Limiter == o.limiter {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.grants = append(o.grants, window.Grant{Permits: f.Permits, Start: time.Now(), End: time.Now()})
	}
}

func TestFallbackNeverGrantsMoreThanItsPart(t *testing.T) {
	for _, of := range []struct {
		rate     rratelimiter.Rate
		fraction float64
		part     int64
		interval time.Duration
	}{
		{rratelimiter.PerSecond(10), 0.5, 5, time.Second},
		{rratelimiter.Rate{Permits: 100, Interval: 250 * ms}, 0.29, 29, 250 * ms},
		{rratelimiter.PerSecond(7), 1, 7, time.Second},
		{rratelimiter.PerSecond(2), 0.1, 1, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%v of %v", of.fraction, of.rate), func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				o := &localGrants{limiter: "{l}"}
				p := b.Process(rratelimiter.WithObserver(o))
				random := rand.New(rand.NewPCG(1, 2))
				limiter := func(name string) *rratelimiter.Limiter {
					return p.RateLimiter(name, rratelimiter.WithRate(of.rate), rratelimiter.WithFallback(of.fraction))
				}
				l, other := limiter("{l}"), limiter("{l}other")
				ctx, cancel := context.WithCancel(t.Context())
				mend := func() {}
				for range 300 {
					time.Sleep(time.Duration(random.Int64N(int64(of.interval / 10))))
					synctest.Wait()
					if random.IntN(30) == 0 {
						if mend(); random.IntN(4) > 0 {
							mend = p.Wire.Fail(rig.ErrRefused)
						}
					}
					n := 1 + random.Int64N(of.rate.Permits)
					switch random.IntN(6) {
					case 0:
						go l.Acquire(ctx, n)
					case 1:
						go l.TryAcquireTimeout(ctx, n, of.interval/3)
					case 2:
						go l.AcquireUpTo(ctx, n)
					case 3:
						go p.AllowAll(ctx, 1+n/4, other, l)
					default:
						go l.Allow(ctx, 1+n/4)
					}
					synctest.Wait()
				}
				cancel()
				synctest.Wait()
				sum := int64(0)
				for _, g := range o.grants {
					sum += g.Permits
				}
				if most, at := window.Largest(o.grants, of.interval); most > of.part || most == 0 {
					t.Errorf("%d permits within %v from %v on, of %d", most, of.interval, at.Sub(b.Start), of.part)
				}
				if sum < 10 {
					t.Errorf("only %d permits were granted by the process", sum)
				}
			})
		})
	}
}

// A server that hangs delays callers until that is detected, half a second at most; afterwards no
// caller is delayed.
func TestFallbackFromAServerThatHangs(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process(rratelimiter.WithCallTimeout(time.Second))
		limiters := make([]*rratelimiter.Limiter, 3)
		for i := range limiters {
			limiters[i] = p.RateLimiter(
				fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithFallback(1),
			)
		}
		l := limiters[0]
		b.Granted("before", b.Try(l, 1), 0)
		resume := p.Wire.Hang()
		first := b.Try(l, 1)
		b.SleepTo(300 * ms)
		behind, waiting := b.Try(l, 1), b.Acquire(l, 1)
		b.SleepTo(499 * ms)
		b.Waits("the first", first)
		b.SleepTo(500 * ms)
		b.Granted("the first", first, 500*ms)
		b.Granted("the caller that waited behind it", behind, 500*ms)
		b.Granted("the one queued behind it", waiting, 500*ms)
		b.SleepTo(time.Second)
		asked := p.Wire.Calls()
		for at := time.Second; at < 20*time.Second; at += 10 * ms {
			b.SleepTo(at)
			for i, l := range limiters {
				b.Granted(fmt.Sprintf("a call of limiter %d", i), b.Try(l, 1), at)
			}
			if t.Failed() {
				t.FailNow()
			}
			if at == 2*time.Second { // the hour's permits must last
				for _, l := range limiters {
					untake(l, 1000)
				}
			}
			untake(l, 1)
			untake(limiters[1], 1)
			untake(limiters[2], 1)
		}
		if asked = p.Wire.Calls() - asked; asked < 8 || asked > 15 {
			t.Errorf("Redis was called %d times in between", asked)
		}
		resume()
		b.SleepTo(22 * time.Second)
		before := p.Wire.Calls()
		for _, l := range limiters {
			b.Granted("afterwards", b.Try(l, 1), 22*time.Second)
		}
		if asked = p.Wire.Calls() - before; asked < 3 {
			t.Errorf("afterwards Redis was called %d times", asked)
		}
	})
}

// One lost call does not make a server count as away that answered a later call.
func TestFallbackIsForTheLostCallAlone(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		o := &rig.Log{}
		p := b.Process(rratelimiter.WithCallTimeout(time.Second), rratelimiter.WithObserver(o))
		lost, other := p.RateLimiter("lost",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(1)),
			p.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(1))
		b.Granted("before", b.Try(lost, 1), 0)
		resume := p.Wire.Hang()
		stuck := b.Try(lost, 1)
		p.Wire.PassNew()
		b.SleepTo(500 * ms)
		b.Granted("another call", b.Try(other, 1), 500*ms)
		b.SleepTo(time.Second)
		b.Granted("the lost one", stuck, time.Second)
		b.Granted("the next one", b.Try(other, 1), time.Second)
		resume()
		var fallbacks []string
		for _, f := range o.All() {
			if f.Fallback {
				fallbacks = append(fallbacks, f.Limiter)
			}
		}
		if fmt.Sprint(fallbacks) != "[lost]" {
			t.Errorf("decided in the process: %v", fallbacks)
		}
	})
}

func TestFallbackToNothing(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0))
		mend := p.Wire.Fail(rig.ErrRefused)
		waiting := b.Acquire(l, 1)
		for at := time.Duration(0); at < 5*time.Second; at += 100 * ms {
			b.SleepTo(at)
			result, err := l.Allow(t.Context(), 1)
			if err != nil || result.Allowed || result.Limit != 0 || result.RetryAfter <= 0 ||
				result.RetryAfter > time.Second {
				t.Fatalf("at %v: %+v, %v", at, result, err)
			}
		}
		b.Waits("the one in the queue", waiting)
		b.Ended("the caller that waits a while", b.TryFor(l, 1, ms), false, 4900*ms)
		mend()
		b.SleepTo(6 * time.Second)
		if synctest.Wait(); !waiting.Ended.Load() || !waiting.OK || waiting.At > 6*time.Second {
			t.Errorf("the one in the queue: %v, %v at %v", waiting.OK, waiting.Err, waiting.At)
		}
		if rig.Core(p.Client).Inspect().LocalLimiters != 0 {
			t.Error("a limiter is remembered without a need")
		}
	})
}

// After a while without requests the state of the node is forgotten: the next request calls Redis.
func TestFallbackAfterASilence(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0))
		mend := p.Wire.Fail(rig.ErrRefused)
		b.Ended("while it is away", b.Try(l, 1), false, 0)
		mend()
		b.SleepTo(time.Minute)
		b.Granted("a minute later", b.Try(l, 1), time.Minute)
	})
}

// The deny cache holds refusals by Redis, not those by the process.
func TestFallbackIsNotCachedAsADenial(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.PerHour(10)), rratelimiter.WithFallback(0.5),
			rratelimiter.WithDenyCache(5),
		)
		mend := p.Wire.Fail(rig.ErrRefused)
		b.Granted("the part", b.Try(l, 5), 0)
		b.Ended("more", b.Try(l, 1), false, 0)
		mend()
		b.SleepTo(time.Minute)
		b.Granted("when Redis is back", b.Try(l, 1), time.Minute)
	})
}

// Callers wait in the same queue, in order. Only a request for more than the process can grant lets
// others pass.
func TestFallbackServesTheQueue(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.4))
		mend := p.Wire.Fail(rig.ErrRefused)
		big, first := b.Acquire(l, 5), b.Acquire(l, 3)
		second, third := b.Acquire(l, 2), b.Acquire(l, 1)
		b.Granted("the first", first, 0)
		b.Waits("the second", second)
		b.Waits("the third, behind it", third)
		b.Ended("the caller that only tries, behind them", b.Try(l, 1), false, 0)
		b.SleepTo(999 * ms)
		b.Waits("the second", second)
		b.SleepTo(1000 * ms)
		b.Granted("the second", second, 1000*ms)
		b.Granted("the third", third, 1000*ms)
		b.Waits("the caller that wants more than the fraction", big)
		mend()
		b.SleepTo(3 * time.Second)
		if !big.Ended.Load() || !big.OK {
			t.Errorf("the caller that wants more than the fraction: %v, %v, although Redis is back", big.OK, big.Err)
		}
	})
}

func TestFallbackOfAcquireUpToAndAllowAll(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		o := &rig.Log{}
		p := b.Process(rratelimiter.WithObserver(o))
		limiter := func(name string, permits int64) *rratelimiter.Limiter {
			return p.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(permits)),
				rratelimiter.WithFallback(0.5))
		}
		p.Wire.Fail(rig.ErrRefused)
		l := limiter("up to", 10)
		for _, want := range []int64{3, 2, 0} {
			if n, err := l.AcquireUpTo(t.Context(), 3); err != nil || n != want {
				t.Errorf("up to 3: %d, %v, expected %d", n, err, want)
			}
		}
		for how, names := range map[string][2]string{
			"together": {"{a}small", "{a}large"},
			"in order": {"small", "large"},
		} {
			small, large := limiter(names[0], 4), limiter(names[1], 10)
			for i := range 3 {
				results, err := p.AllowAll(t.Context(), 1, large, small)
				if err != nil || results[0].Allowed != (i < 2) || results[1].Allowed != (i < 2) {
					t.Errorf("%s, %d: %+v, %v", how, i, results, err)
				}
				if want := int64(5 - min(i+1, 2)); err == nil && results[0].Remaining != want {
					t.Errorf("%s, %d: %+v, expected %d left", how, i, results[0], want)
				}
			}
			if result, err := large.Allow(t.Context(), 3); err != nil || !result.Allowed || result.Remaining != 0 {
				t.Errorf("%s: a refusal took permits: %+v, %v", how, result, err)
			}
			if _, err := p.AllowAll(t.Context(), 5, small, large); !errors.Is(err, rratelimiter.ErrExceedsRate) {
				t.Errorf("%s, more than a rate: %v", how, err)
			}
		}
		if _, err := p.AllowAll(t.Context(), 1, limiter("{a}1", 5), p.RateLimiter("{a}2")); !errors.Is(
			err, syscall.ECONNREFUSED,
		) {
			t.Errorf("with a limiter that does not fall back: %v", err)
		}
		for i, f := range o.All() {
			if fell := f.Limiter != "{a}2" && f.Limiter != "{a}1"; f.Fallback != fell {
				t.Errorf("%d: %+v", i, f)
			}
		}
	})
}

// The rate of the latest reply counts.
func TestFallbackUsesTheLastRate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		if err := p.RateLimiter("learned").SetRate(t.Context(), rratelimiter.PerSecond(100)); err != nil {
			t.Fatal(err)
		}
		learned := p.RateLimiter("learned",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.5))
		without := p.RateLimiter("learned", rratelimiter.WithFallback(0.2))
		b.Granted("a call", b.Try(learned, 1), 0)
		mend := p.Wire.Fail(rig.ErrRefused)
		full := time.Second
		b.MustAllow(
			"the rate of the last reply", learned, 1,
			rratelimiter.Result{Allowed: true, Limit: 50, Remaining: 49, NextAfter: full, ResetAfter: full},
		)
		b.MustAllow(
			"another handle", without, 1,
			rratelimiter.Result{Allowed: true, Limit: 20, Remaining: 18, NextAfter: full, ResetAfter: full},
		)
		b.MustAllow(
			"its own rate",
			p.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.5)),
			1,
			rratelimiter.Result{Allowed: true, Limit: 5, Remaining: 4, NextAfter: full, ResetAfter: full},
		)
		unknown := p.RateLimiter("unknown", rratelimiter.WithFallback(0.5))
		if _, err := unknown.TryAcquire(t.Context(), 1); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without any rate: %v", err)
		}
		if _, err := unknown.AcquireUpTo(t.Context(), 1); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("without any rate: %v", err)
		}
		mend()
		b.SleepTo(5 * time.Second)
		if err := learned.SetRate(t.Context(), rratelimiter.PerSecond(10)); err != nil {
			t.Fatal(err)
		}
		for i := range 20 { // the next call learns the rate, and drops expired budgets
			b.SleepTo(5*time.Second + time.Duration(i)*100*ms)
			b.Granted("afterwards", b.Try(learned, 1), 5*time.Second+time.Duration(i)*100*ms)
		}
		if kept := rig.Core(p.Client).Inspect().LocalLimiters; kept != 0 {
			t.Errorf("%d limiters are kept", kept)
		}
	})
}

// Errors in replies are returned as without WithFallback, and so is the error of a closed redis
// client.
func TestFallbackLeavesAnswersAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		c := rratelimiter.NewClient(rdb, rig.Patient)
		if _, err := c.RateLimiter("none", rratelimiter.WithFallback(1)).TryAcquire(t.Context(), 1); !errors.Is(
			err, rratelimiter.ErrNotInitialized,
		) {
			t.Error(err)
		}
		if err := rdb.Set(t.Context(), "wrong", 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
		wrong := c.RateLimiter("wrong", rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithFallback(1))
		if _, err := wrong.TryAcquire(t.Context(), 1); !redis.HasErrorPrefix(err, "WRONGTYPE") {
			t.Error(err)
		}
		if _, err := wrong.AcquireUpTo(t.Context(), 1); !redis.HasErrorPrefix(err, "WRONGTYPE") {
			t.Error(err)
		}
		if err := rdb.Close(); err != nil {
			t.Fatal(err)
		}
		if err := c.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithFallback(1)).Acquire(t.Context(),
			1); !errors.Is(
			err, redis.ErrClosed,
		) {
			t.Error(err)
		}
	})
}

func TestObserverSeesTheFallback(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		o := &rig.Log{}
		p := b.Process(rratelimiter.WithObserver(o))
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.5))
		p.Wire.Fail(rig.ErrRefused)
		b.Granted("the first", b.Try(l, 2), 0)
		b.Granted("the second", b.Try(l, 3), 0)
		b.Ended("the third", b.Try(l, 3), false, 0)
		got := o.All()
		for i := range got {
			got[i].Latency = 0
		}
		want := []rratelimiter.CallInfo{
			{
				Limiter: "l", Callers: 1, Granted: 1, Permits: 2, Attempts: 1, Fallback: true,
				Err: script.Failure(t.Context(), 0, rig.ErrRefused),
			},
			{Limiter: "l", Callers: 1, Granted: 1, Permits: 3, Fallback: true},
			{Limiter: "l", Callers: 1, Denied: 1, Fallback: true},
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%+v, expected %+v", got, want)
		}
	})
}

// untake gives back permits that the process granted.
func untake(l *rratelimiter.Limiter, n int64) {
	core := rig.LimiterCore(l)
	_, _ = core.Undo(context.Background(), n, dispatch.Source{Local: true, At: core.Clock().UnixMicro()})
}

// However many names are used while Redis is away, the state kept is bounded, and is dropped after
// an interval.
func TestFallbackIsBounded(t *testing.T) {
	const most, names, callers = 2000, 5000, 64
	var away atomic.Bool
	away.Store(true)
	clock := rig.NewHandClock()
	c := rratelimiter.NewClient(rig.Served{Away: &away}, rratelimiter.WithClock(clock.Now), rig.Patient)
	rig.Core(c).Tune(limiter.Tuning{LocalLimiters: most})
	goroutines, before := runtime.NumGoroutine(), rig.HeapAlloc()
	var granted, failed atomic.Int64
	ask := func() {
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := caller; i < names; i += callers {
					l := c.RateLimiter(
						fmt.Sprint("name", i), rratelimiter.WithRate(rratelimiter.PerSecond(10)),
						rratelimiter.WithFallback(0.1),
					)
					switch ok, err := l.TryAcquire(t.Context(), 1); {
					case errors.Is(err, syscall.ECONNREFUSED):
						failed.Add(1)
					case err != nil:
						t.Error(err)
						return
					case ok:
						granted.Add(1)
					}
				}
			})
		}
		all.Wait()
	}
	ask()
	if granted.Load() != most || failed.Load() != names-most {
		t.Errorf("%d granted, %d failed", granted.Load(), failed.Load())
	}
	grown := rig.HeapAlloc() - before
	t.Logf("%d bytes for %d limiters", grown, rig.Core(c).Inspect().LocalLimiters)
	if grown > most*512+1<<20 { // the parked queues, too
		t.Errorf("%d bytes for %d limiters", grown, most)
	}
	if ask(); granted.Load() != most {
		t.Errorf("a limiter was forgotten: %d granted", granted.Load())
	}
	clock.Advance(time.Hour)
	away.Store(false)
	one := c.RateLimiter("name0", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFallback(0.1))
	rig.Soon(t, "all is forgotten", func() bool {
		for range 100 {
			if _, err := one.TryAcquire(t.Context(), 1); err != nil {
				t.Error(err)
			}
		}
		clock.Advance(time.Hour)
		return rig.Core(c).Inspect().LocalLimiters == 0
	})
	rig.Soon(t, "the end of the last runs", func() bool { return runtime.NumGoroutine() <= goroutines })
	grown = rig.HeapAlloc() - before
	runtime.KeepAlive(c)
	if grown > 1<<20 { // a map keeps its buckets
		t.Errorf("%d bytes remain", grown)
	}
}

// hook.Away works without WithFallback, too. Probes are sent only while it is called.
func TestAwayWithoutAFallback(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process(rratelimiter.WithCallTimeout(time.Second))
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		away := func(want bool) {
			t.Helper()
			if got := l.Health().Away; got != want {
				t.Fatalf("away at %v: %v", time.Since(b.Start), got)
			}
			synctest.Wait()
		}
		away(false)
		mend := p.Wire.Fail(rig.ErrRefused)
		b.Try(l, 1)
		b.SleepTo(time.Second)
		away(true)
		if l.Health().Decides {
			t.Error("the process decides without WithFallback")
		}
		asked := p.Wire.Calls()
		b.SleepTo(1900 * ms)
		if now := p.Wire.Calls(); now != asked {
			t.Errorf("Redis was called %d times though the state was not queried", now-asked)
		}
		away(true)
		mend()
		for at := 2 * time.Second; at < 4*time.Second; at += 100 * ms {
			b.SleepTo(at)
			l.Health()
		}
		away(false)
	})
}
