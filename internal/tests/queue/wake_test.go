package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// wake_test.go tests what wakes waiting callers: changes here and elsewhere, and the end of the
// limiter or of the redis client.

// waitsForOne takes all 10 permits an hour of a limiter "l", and then has a caller wait for one.
func waitsForOne(b *rig.Bubble) (*rig.Process, *rratelimiter.Limiter, *rig.Call) {
	b.T.Helper()
	p := b.Process()
	l := p.RateLimiter("l")
	rig.MustSet(b.T, l, rratelimiter.PerHour(10))
	b.Granted("the first", b.Acquire(l, 10), 0)
	return p, l, b.Acquire(l, 1)
}

// A change by this process takes effect for waiting callers at once, also through a handle with
// other options.
func TestLocalChangesWakeWaiters(t *testing.T) {
	hour := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
	for name, change := range map[string]func(context.Context, *rratelimiter.Limiter) error{
		"SetRate": func(ctx context.Context, l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, rratelimiter.Rate{Permits: 11, Interval: time.Hour}, rratelimiter.KeepState())
		},
		"SetRate without state": func(ctx context.Context, l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, hour)
		},
		"UpdateRate": func(ctx context.Context, l *rratelimiter.Limiter) error {
			_, err := l.UpdateRate(ctx, rratelimiter.Rate{Permits: 11, Interval: time.Hour}, rratelimiter.KeepState())
			return err
		},
		"Release": func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 1); return err },
		"Delete":  func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Delete(ctx); return err },
		"Rename":  func(ctx context.Context, l *rratelimiter.Limiter) error { return l.Rename(ctx, "other") },
		"Expire":  func(ctx context.Context, l *rratelimiter.Limiter) error { _, err := l.Expire(ctx, 0); return err },
	} {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p, _, waiter := waitsForOne(b)
				b.SleepTo(1234567 * time.Microsecond)
				b.Waits("the waiter", waiter)
				if err := change(t.Context(), p.RateLimiter("l", rratelimiter.WithServerTime())); err != nil {
					t.Fatal(err)
				}
				gone := name == "Delete" || name == "Rename" || name == "Expire"
				b.Ended("the waiter", waiter, !gone, 1234567*time.Microsecond)
				if gone != errors.Is(waiter.Err, rratelimiter.ErrNotInitialized) {
					t.Errorf("%v", waiter.Err)
				}
			})
		})
	}
}

// So does a change whose caller has left meanwhile.
func TestAChangeWhoseCallerLeftWakesWaiters(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p, l, waiter := waitsForOne(b)
		b.Waits("the waiter", waiter)
		p.Wire.Back.Store(int64(20 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		if _, err := l.Release(ctx, 1); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		b.SleepTo(50 * ms)
		b.Granted("the waiter", waiter, 40*ms)
	})
}

// So does a rate that a handle enforces.
func TestAnEnforcedRateWakesWaiters(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p, _, waiter := waitsForOne(b)
		b.SleepTo(time.Second)
		b.Waits("the waiter", waiter)
		b.Granted(
			"the caller that brings the rate",
			b.Acquire(p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(20))), 1), time.Second,
		)
		b.Granted("the waiter", waiter, time.Second)
	})
}

// Handles that enforce different rates do not wake each other in turn.
func TestDifferentEnforcedRatesAreQuiet(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		low := p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(10)))
		high := p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(20)))
		b.Granted("the first", b.Acquire(high, 20), 0)
		p.Wire.There.Store(int64(ms))
		b.Acquire(low, 1)
		b.Acquire(high, 1)
		before := p.Wire.Calls()
		b.SleepTo(time.Minute)
		if n := p.Wire.Calls() - before; n > 100 { // two polls of each in 15 s, with a few calls
			t.Errorf("%d calls in a minute", n)
		}
	})
}

// A release of which only the first part is known to have succeeded wakes waiting callers, too.
func TestReleaseThatFailsHalfwayWakesWaiters(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 3000, Interval: time.Hour}),
			rratelimiter.WithRecordPerRequest(),
		)
		plug := p.Wire.Hang()
		b.Try(l, 3001)
		for range 3000 {
			go l.Acquire(t.Context(), 1)
		}
		plug()
		synctest.Wait()
		waiter := b.Acquire(l, 1)
		b.Waits("the waiter", waiter)
		p.Wire.Back.Store(int64(20 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 30*ms)
		defer cancel()
		n, err := l.Release(ctx, 2500)
		if n == 0 || n == 2500 || !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Fatalf("%d, %v", n, err)
		}
		b.SleepTo(60 * ms)
		b.Granted("the waiter", waiter, 40*ms)
	})
}

// Changes by other processes are noticed at a poll: after 1 s at first, after 15 s at most.
func TestChangesElsewhereAreNoticed(t *testing.T) {
	hour := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
	for _, c := range []struct {
		tries         int // by other callers of the process while callers wait
		after, within time.Duration
	}{{0, 100 * ms, 900 * ms}, {5, 100 * ms, 900 * ms}, {0, 10 * time.Minute, 15 * time.Second}} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p, elsewhere := b.Process(), b.Process()
			l, deleted := p.RateLimiter("l", rratelimiter.WithRate(hour)), p.RateLimiter("deleted")
			if err := deleted.SetRate(t.Context(), hour); err != nil {
				t.Fatal(err)
			}
			b.Granted("the first", b.Acquire(l, 10), 0)
			b.Granted("the first", b.Acquire(deleted, 10), 0)
			waiter, other := b.Acquire(l, 1), b.Acquire(deleted, 1)
			for range c.tries {
				b.Try(l, 1)
				b.Try(deleted, 1)
			}
			b.SleepTo(c.after)
			if err := elsewhere.RateLimiter("l").SetRate(t.Context(),
				rratelimiter.Rate{Permits: 11, Interval: time.Hour}, rratelimiter.KeepState()); err != nil {
				t.Fatal(err)
			}
			if _, err := elsewhere.RateLimiter("deleted").Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.SleepTo(c.after + c.within)
			if !waiter.OK {
				t.Errorf("after %v: %v", c.after, waiter.Err)
			}
			if !errors.Is(other.Err, rratelimiter.ErrNotInitialized) {
				t.Errorf("after %v: %v", c.after, other.Err)
			}
			if n, most := p.Wire.Calls(), 2*(10+int64(c.tries)+int64(c.after/(13*time.Second))); n > most {
				t.Errorf("%d calls within %v, expected at most %d", n, c.after+c.within, most)
			}
		})
	}
}

// Permits of an interval of 1 s return a little more than 1 s after a call, since records have
// whole milliseconds.
func TestNoPollJustBeforeThePermitsReturn(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.SleepTo(300 * time.Microsecond)
		b.Granted("the first", b.Acquire(l, 10), 300*time.Microsecond)
		before := p.Wire.Calls()
		waiter := b.Acquire(l, 10)
		b.SleepTo(2 * time.Second)
		b.Granted("the waiter", waiter, 1001*ms)
		if n := p.Wire.Calls() - before; n != 2 {
			t.Errorf("%d calls for the waiter, not 2", n)
		}
	})
}

// Changes elsewhere are noticed as soon if the first waiting caller got its refusal from a call
// that stalled, before a later call for others.
func TestChangesElsewhereAreNoticedAfterAStall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p, elsewhere := b.Process(), b.Process()
		p.MayStall()
		hour := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
		l := p.RateLimiter("l", rratelimiter.WithRate(hour))
		b.Granted("the first", b.Acquire(l, 10), 0)
		stalled := p.Wire.Hang()
		waiter := b.Acquire(l, 1)
		b.SleepTo(2 * pipeline.ShortestStall)
		next := p.Wire.Hang()
		other := b.Acquire(l, 1)
		stalled()
		synctest.Wait()
		next()
		synctest.Wait()
		if err := elsewhere.RateLimiter("l").SetRate(t.Context(), rratelimiter.Rate{Permits: 12, Interval: time.Hour},
			rratelimiter.KeepState()); err != nil {
			t.Fatal(err)
		}
		b.SleepTo(2*pipeline.ShortestStall + time.Second)
		if !waiter.OK || !other.OK {
			t.Errorf("%v, %v", waiter.Err, other.Err)
		}
	})
}

// A waiting caller fails at once when this process deletes the limiter.
func TestDeleteEndsWaiting(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		client := rratelimiter.NewClient(server.Client(), rig.Patient)
		l := client.RateLimiter("l")
		rig.MustSet(t, l, rratelimiter.PerHour(1))
		rig.MustTry(t, l, 1, true)
		ends := make(chan error)
		for range 5 {
			go func() { ends <- l.Acquire(t.Context(), 1) }()
		}
		rig.Soon(t, "waiting", func() bool { return client.Waiting()["l"] == 5 })
		if _, err := l.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			select {
			case err := <-ends:
				if !errors.Is(err, rratelimiter.ErrNotInitialized) {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("still waits")
			}
		}
	})
}

// Closing the redis client ends all waiting when the queue wakes next.
func TestClosedRedisClientEndsWaiting(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: time.Hour}))
		b.Granted("the first", b.Acquire(l, 1), 0)
		var all []*rig.Call
		for range 20 {
			all = append(all, b.Acquire(l, 1))
		}
		b.SleepTo(5 * time.Minute)
		p.Redis.Close()
		b.SleepTo(5*time.Minute + 15*time.Second)
		for _, c := range all {
			if !errors.Is(c.Err, redis.ErrClosed) || errors.Is(c.Err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%v, %v at %v", c.OK, c.Err, c.At)
			}
		}
		if err := l.Acquire(t.Context(), 1); !errors.Is(err, redis.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestClosedRedisClientEndsWaitingSoon(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: time.Hour}))
		b.Granted("the first", b.Try(l, 1), 0)
		var waiting []*rig.Call
		for range 20 {
			waiting = append(waiting, b.Acquire(l, 1))
		}
		b.SleepTo(200 * ms)
		p.Redis.Close()
		// Without the check of the client, the first sleep alone would last most of a second, and
		// the next ones longer.
		b.SleepTo(800 * ms)
		for _, c := range waiting {
			if !c.Ended.Load() || !errors.Is(c.Err, redis.ErrClosed) {
				t.Errorf("ended %v: %v", c.Ended.Load(), c.Err)
			}
		}
	})
}

// Callers that ask one limiter after the other notice it between two rounds.
func TestClosedRedisClientEndsWaitingForLimitersInOrder(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rate := rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: time.Hour})
		x, y := p.RateLimiter("x", rate), p.RateLimiter("y", rate)
		b.Granted("the first", b.Try(y, 1), 0)
		var waiting []*rig.Call
		for range 20 {
			waiting = append(waiting, acquireAll(b, 1, x, y))
		}
		b.SleepTo(5 * time.Minute) // they pause for 15 s
		p.Redis.Close()
		b.SleepTo(5*time.Minute + 200*ms)
		for _, c := range waiting {
			if !c.Ended.Load() || !errors.Is(c.Err, redis.ErrClosed) ||
				errors.Is(c.Err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("ended %v: %v", c.Ended.Load(), c.Err)
			}
		}
	})
}

// The late reply of a call that has stalled does not make the queue linger: who waits is served
// when its permits are free.
func TestTheReplyToAStalledCallDelaysNobody(t *testing.T) {
	rig.InBubble(t, func(_ *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.Core(p.Client).Tune(limiter.Tuning{}) // runs stall, and queues linger, as usual
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(2)))
		b.Granted("the first caller", b.Acquire(l, 2), 0)
		waits := b.Acquire(l, 1)
		b.SleepTo(150 * ms)
		p.Wire.Back.Store(int64(800 * ms))
		b.Try(l, 2) // its call stalls, and has its reply at 950 ms
		p.Wire.Back.Store(0)
		b.SleepTo(300 * ms)
		behind := b.Acquire(l, 2)
		b.SleepTo(500 * ms)
		behind.Cancel()
		b.SleepTo(1500 * ms)
		b.Granted("the caller that waits", waits, time.Second)
	})
}

// The late reply of a call that has stalled causes no further call for those who were asked for
// since the change.
func TestTheReplyToAStalledCallMakesNoSuperfluousCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.Core(p.Client).Tune(limiter.Tuning{})
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(2)))
		b.Granted("the first caller", b.Acquire(l, 2), 0)
		b.SleepTo(150 * ms)
		p.Wire.Back.Store(int64(700 * ms))
		b.Try(l, 2) // its call stalls, and has its reply at 850 ms
		p.Wire.Back.Store(0)
		b.SleepTo(300 * ms)
		waits := b.Acquire(l, 1)
		leaves := b.Acquire(l, 1)
		b.SleepTo(500 * ms)
		leaves.Cancel()
		if err := l.SetRate(t.Context(), rratelimiter.PerSecond(2), rratelimiter.KeepState()); err != nil {
			t.Fatal(err) // a change: the caller that waits is asked for at once
		}
		b.SleepTo(600 * ms)
		p.CheckCalls("the late reply", 0, func() { b.SleepTo(990 * ms) })
		b.SleepTo(1500 * ms)
		b.Granted("the caller that waits", waits, time.Second)
	})
}
