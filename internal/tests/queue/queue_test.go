package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// queue_test.go tests the cost and the result of a try while callers of the process wait, and the
// order of waiting callers.

// A try while others wait makes one call and gets its result from it, whatever the state of the
// queue: the limiter is drained or not, permits are left to Redisson for a moment or not, the queue
// is longer than a call carries or not, callers have left it, or a call with some of them has
// stalled. The one exception: if a queue that is longer than a call carries advances, the try waits
// for the call that carries the end of the queue, which is made anyway.
func TestTryIsOneCallInEveryStateOfTheQueue(t *testing.T) {
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	for seed := range uint64(proof.Or(30, 10)) {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			tryInSomeState(t, b, rand.New(rand.NewPCG(seed, 0)), fmt.Sprint("seed ", seed))
		})
		if t.Failed() {
			return
		}
	}
}

// tryInSomeState brings a queue into a random state and then makes tries.
func tryInSomeState(t *testing.T, b *rig.Bubble, random *rand.Rand, name string) {
	// periods of the fair share begin at even times
	time.Sleep(time.Duration(random.Int64N(int64(20 * time.Second))))
	p := b.Process()
	const delay = time.Nanosecond // a poll must not come in between
	p.Wire.Back.Store(int64(delay))
	if random.IntN(2) == 0 {
		p.MayStall()
	}
	rate := rratelimiter.Rate{
		Permits:  1 + random.Int64N(30),
		Interval: []time.Duration{100 * ms, time.Second, 10 * time.Second}[random.IntN(3)],
	}
	opts := []rratelimiter.LimiterOption{rratelimiter.WithRate(rate)}
	switch random.IntN(5) {
	case 0:
		opts = append(opts, rratelimiter.WithRecordPerRequest())
	case 1:
		opts = append(opts, rratelimiter.WithGranularity(rate.Interval/10))
	}
	l := p.RateLimiter("l", opts...)
	if random.IntN(3) > 0 {
		if err := rig.AskRedisson.Load(t.Context(), p.Redis).Err(); err != nil { // Redisson uses the server
			t.Fatal(err)
		}
	}
	if random.IntN(3) == 0 {
		n := 1 + random.Int64N(rate.Permits)
		if ok, _ := l.TryAcquire(t.Context(), n); ok { // Redisson uses this limiter, too
			member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte{1, 2, 3, 4, 5, 6, 7, 8}, 1)
			if err != nil {
				t.Fatal(err)
			}
			at := redis.Z{Score: float64(time.Now().UnixMilli()), Member: member}
			if n < rate.Permits && p.Redis.ZAdd(t.Context(), "{l}:permits", at).Err() == nil {
				p.Redis.Decr(t.Context(), "{l}:value")
			}
		}
	}
	size := func() int64 { return 1 + random.Int64N(1+random.Int64N(rate.Permits)) }
	var queue []*rig.Call
	defer func() { // calls in flight complete
		for _, c := range queue {
			c.Cancel()
		}
		time.Sleep(time.Second)
	}()
	resume := func() {}
	for range 40 {
		switch random.IntN(12) {
		case 0, 1, 2:
			queue = append(queue, b.Acquire(l, size()))
		case 3:
			queue = append(queue, b.TryFor(l, size(), time.Duration(random.Int64N(int64(rate.Interval)))))
		case 4:
			if len(queue) > 0 {
				queue[random.IntN(len(queue))].Cancel()
			}
		case 5:
			for range random.IntN(2 * schedule.MaxGroups) {
				queue = append(queue, b.Acquire(l, size()))
			}
		case 6:
			resume()
			resume = p.Wire.Hang()
			for range 3 {
				b.Try(l, size())
				queue = append(queue, b.Acquire(l, size()))
			}
		case 7:
			resume()
			resume = func() {}
		default:
			time.Sleep(time.Duration(random.Int64N(int64(rate.Interval / 3))))
		}
	}
	resume()
	synctest.Wait()
	core := rig.Core(p.Client)
	for range 10 {
		time.Sleep(time.Duration(random.Int64N(int64(rate.Interval / 4))))
		synctest.Wait() // timers that are due have fired
		for core.Look("").InFlight {
			time.Sleep(delay)
			synctest.Wait()
		}
		waiting, n, before, at := core.Inspect().Waiting, size(), p.Wire.Calls(), time.Now()
		result, err := l.Allow(t.Context(), n)
		synctest.Wait()
		if calls := p.Wire.Calls() - before; calls != 1 && core.Inspect().Waiting == waiting ||
			time.Since(at) > delay ||
			err != nil {
			t.Fatalf("%s: a try behind %d callers (now %d) took %d calls and %v: %v", name, waiting,
				core.Inspect().Waiting, calls, time.Since(at), err)
		}
		if !result.Allowed &&
			(result.Remaining >= n || result.RetryAfter <= 0 || result.ResetAfter < result.RetryAfter) {
			t.Fatalf("%s: a try for %d behind %d callers was refused with %+v", name, n, waiting, result)
		}
	}
}

// The same beside a process that takes all permits it can, on real servers: each try costs one
// call, and waiting callers one call per wake.
func TestTriesWhileOthersWaitDoNotStormRedis(t *testing.T) {
	rig.Long(t)
	rig.TakeForRedissons(t, rig.AskRedisson.Hash())
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		log := &rig.Log{}
		l := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(log), rig.Patient).RateLimiter("l")
		rig.MustSet(t, l, rratelimiter.PerSecond(20))
		member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte{1, 2, 3, 4, 5, 6, 7, 8}, 1)
		if err != nil {
			t.Fatal(err)
		}
		rig.MustTry(t, l, 1, true) // so that there is a state
		now := time.Now().UnixMilli()
		if err := rig.AskRedisson.Run(t.Context(), rdb, []string{"{l}:value", "{l}:permits"}, now, 1000, 1,
			member).Err(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 30 {
			go func() {
				for l.Acquire(ctx, 1) == nil {
				}
			}()
		}
		tries := 0
		for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(10 * ms) {
			if _, err := l.Allow(ctx, 1); err != nil {
				t.Fatal(err)
			}
			tries++
		}
		if calls := len(log.All()); calls > tries+200 { // each returning permit could cost a call
			t.Errorf("%d calls for %d tries", calls, tries)
		}
	})
}

// While permits are left to others for a moment, a try is refused with the end of that moment as
// RetryAfter.
func TestTryIsRefusedUntilTheTurnOfTheQueue(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.TakeForRedissons(t, protocol.AcquireScript.SHA)
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		b.Granted("the first", b.Try(l, 1), 0)
		waiting := b.Acquire(l, 1)
		b.SleepTo(1020 * ms) // the permit returned at 1 s
		p.Wire.There.Store(int64(ms))
		result, err := l.Allow(t.Context(), 1)
		if want := (rratelimiter.Result{
			Limit:      1,
			RetryAfter: 129 * ms,
			NextAfter:  129 * ms,
			ResetAfter: 129 * ms,
		}); result != want ||
			err != nil {
			t.Errorf("%+v, %v, expected %+v", result, err, want)
		}
		b.SleepTo(2 * time.Second)
		b.Granted("the caller that waits", waiting, 1151*ms)
	})
}

// If other clients keep setting another rate, a request is decided under the rate in force, and
// CallInfo.RateMismatch is true.
func TestContestedRateServesRequests(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *rratelimiter.Limiter) (int64, error){
		"TryAcquire": func(ctx context.Context, l *rratelimiter.Limiter) (int64, error) {
			return granted(l.TryAcquire(ctx, 1))
		},
		"TryAcquireTimeout": func(ctx context.Context, l *rratelimiter.Limiter) (int64, error) {
			return granted(l.TryAcquireTimeout(ctx, 1, time.Minute))
		},
		"Allow": func(ctx context.Context, l *rratelimiter.Limiter) (int64, error) {
			r, err := l.Allow(ctx, 1)
			return granted(r.Allowed, err)
		},
		"Acquire": func(ctx context.Context, l *rratelimiter.Limiter) (int64, error) {
			return granted(true, l.Acquire(ctx, 1))
		},
		"AcquireUpTo": func(ctx context.Context, l *rratelimiter.Limiter) (int64, error) {
			return l.AcquireUpTo(ctx, 1)
		},
		"AllowAll": func(ctx context.Context, l *rratelimiter.Limiter) (int64, error) {
			all, err := l.Client().AllowAll(ctx, 1, l,
				l.Client().RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerHour(1))))
			return granted(err == nil && all[0].Allowed, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				log := &rig.Log{}
				rdb := s.Client()
				rival := rratelimiter.NewClient(s.Client(), rig.Patient).RateLimiter("l")
				rig.MustSet(t, rival, rratelimiter.PerHour(7))
				sets := 0
				rdb.AddHook(redistest.Hook{
					Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
						err := next(ctx, cmd)
						if args := cmd.Args(); err == nil &&
							(args[1] == protocol.SetRateScript.SHA || args[1] == protocol.SetRateScript.Text) {
							sets++
							return rival.SetRate(ctx, rratelimiter.PerHour(7), rratelimiter.KeepState())
						}
						return err
					},
				})
				c := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(log),
					rratelimiter.WithCallTimeout(10*time.Second))
				l := c.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(100)))
				if n, err := ask(t.Context(), l); n != 1 || err != nil {
					t.Errorf("%d permits, %v", n, err)
				}
				if f := log.All()[0]; !f.RateMismatch || f.Err != nil || f.Granted != 1 || sets > 3 {
					t.Errorf("the rate was set %d times: %+v", sets, f)
				}
				if free, err := l.AvailablePermits(t.Context()); free != 6 || err != nil {
					t.Errorf("%d permits are free, %v", free, err)
				}
			})
		})
	}
}

func granted(ok bool, err error) (int64, error) {
	if ok {
		return 1, err
	}
	return 0, err
}

// More permits than the rate fail at once, also for a caller that comes before the rate is known.
func TestMoreThanTheRateFailsOnceTheRateIsKnown(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		rate := rratelimiter.WithRate(rratelimiter.PerMinute(1))
		b.Granted("another process", b.Acquire(b.Process().RateLimiter("l", rate), 1), 0)
		p := b.Process()
		p.Wire.Back.Store(int64(5 * ms))
		l := p.RateLimiter("l", rate)
		first, large := b.Acquire(l, 1), b.Acquire(l, 2)
		b.SleepTo(500 * ms)
		b.Waits("the caller in front", first)
		b.Ended("the caller of more than the rate", large, false, 10*ms)
	})
}
