package rratelimiter_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// wake_test.go tests what wakes waiting callers: changes here and elsewhere, and the end of the limiter or of the redis
// client.

// waitsForOne takes all 10 permits an hour of a limiter "l", and then has a caller wait for one.
func (b *bubble) waitsForOne() (*process, *rratelimiter.Limiter, *call) {
	b.t.Helper()
	p := b.process()
	l := p.RateLimiter("l")
	mustSet(b.t, l, rratelimiter.PerHour(10))
	b.granted("the first", b.acquire(l, 10), 0)
	return p, l, b.acquire(l, 1)
}

// A change by this process takes effect for waiting callers at once, also through a handle with other options.
func TestLocalChangesWakeWaiters(t *testing.T) {
	hour := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
	for name, change := range map[string]func(context.Context, *rratelimiter.Limiter) error{
		"SetRate": func(ctx context.Context, l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, rratelimiter.Rate{Permits: 11, Interval: time.Hour}, rratelimiter.KeepState())
		},
		"SetRate without state": func(ctx context.Context, l *rratelimiter.Limiter) error { return l.SetRate(ctx, hour) },
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
			inBubble(t, func(t *testing.T, b *bubble) {
				p, _, waiter := b.waitsForOne()
				b.sleepTo(1234567 * time.Microsecond)
				b.waits("the waiter", waiter)
				if err := change(t.Context(), p.RateLimiter("l", rratelimiter.WithServerTime())); err != nil {
					t.Fatal(err)
				}
				gone := name == "Delete" || name == "Rename" || name == "Expire"
				b.ended("the waiter", waiter, !gone, 1234567*time.Microsecond)
				if gone != errors.Is(waiter.err, rratelimiter.ErrNotInitialized) {
					t.Errorf("%v", waiter.err)
				}
			})
		})
	}
}

// So does a change whose caller has left meanwhile.
func TestAChangeWhoseCallerLeftWakesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p, l, waiter := b.waitsForOne()
		b.waits("the waiter", waiter)
		p.wire.back.Store(int64(20 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 10*ms)
		defer cancel()
		if _, err := l.Release(ctx, 1); !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%v", err)
		}
		b.sleepTo(50 * ms)
		b.granted("the waiter", waiter, 40*ms)
	})
}

// So does a rate that a handle enforces.
func TestAnEnforcedRateWakesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p, _, waiter := b.waitsForOne()
		b.sleepTo(time.Second)
		b.waits("the waiter", waiter)
		b.granted("the caller that brings the rate", b.acquire(p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(20))), 1), time.Second)
		b.granted("the waiter", waiter, time.Second)
	})
}

// Handles that enforce different rates do not wake each other in turn.
func TestDifferentEnforcedRatesAreQuiet(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		low := p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(10)))
		high := p.RateLimiter("l", rratelimiter.WithEnforcedRate(rratelimiter.PerHour(20)))
		b.granted("the first", b.acquire(high, 20), 0)
		p.wire.there.Store(int64(ms))
		b.acquire(low, 1)
		b.acquire(high, 1)
		before := p.wire.scripts.Load()
		b.sleepTo(time.Minute)
		if n := p.wire.scripts.Load() - before; n > 100 { // two polls of each in 15 s, with a few calls
			t.Errorf("%d calls in a minute", n)
		}
	})
}

// A release of which only the first part is known to have succeeded wakes waiting callers, too.
func TestReleaseThatFailsHalfwayWakesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 3000, Interval: time.Hour}), rratelimiter.WithRecordPerRequest())
		plug := p.wire.hang()
		b.try(l, 3001)
		for range 3000 {
			go l.Acquire(t.Context(), 1)
		}
		plug()
		synctest.Wait()
		waiter := b.acquire(l, 1)
		b.waits("the waiter", waiter)
		p.wire.back.Store(int64(20 * ms))
		ctx, cancel := context.WithTimeout(t.Context(), 30*ms)
		defer cancel()
		n, err := l.Release(ctx, 2500)
		if n == 0 || n == 2500 || !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Fatalf("%d, %v", n, err)
		}
		b.sleepTo(60 * ms)
		b.granted("the waiter", waiter, 40*ms)
	})
}

// Changes by other processes are noticed at a poll: after 1 s at first, after 15 s at most.
func TestChangesElsewhereAreNoticed(t *testing.T) {
	hour := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
	for _, c := range []struct {
		tries         int // by other callers of the process while callers wait
		after, within time.Duration
	}{{0, 100 * ms, 900 * ms}, {5, 100 * ms, 900 * ms}, {0, 10 * time.Minute, 15 * time.Second}} {
		inBubble(t, func(t *testing.T, b *bubble) {
			p, elsewhere := b.process(), b.process()
			l, deleted := p.RateLimiter("l", rratelimiter.WithRate(hour)), p.RateLimiter("deleted")
			if err := deleted.SetRate(t.Context(), hour); err != nil {
				t.Fatal(err)
			}
			b.granted("the first", b.acquire(l, 10), 0)
			b.granted("the first", b.acquire(deleted, 10), 0)
			waiter, other := b.acquire(l, 1), b.acquire(deleted, 1)
			for range c.tries {
				b.try(l, 1)
				b.try(deleted, 1)
			}
			b.sleepTo(c.after)
			if err := elsewhere.RateLimiter("l").SetRate(t.Context(), rratelimiter.Rate{Permits: 11, Interval: time.Hour}, rratelimiter.KeepState()); err != nil {
				t.Fatal(err)
			}
			if _, err := elsewhere.RateLimiter("deleted").Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.sleepTo(c.after + c.within)
			if !waiter.ok {
				t.Errorf("after %v: %v", c.after, waiter.err)
			}
			if !errors.Is(other.err, rratelimiter.ErrNotInitialized) {
				t.Errorf("after %v: %v", c.after, other.err)
			}
			if n, most := p.wire.scripts.Load(), 2*(10+int64(c.tries)+int64(c.after/(13*time.Second))); n > most {
				t.Errorf("%d calls within %v, expected at most %d", n, c.after+c.within, most)
			}
		})
	}
}

// Permits of an interval of 1 s return a little more than 1 s after a call, since records have whole milliseconds.
func TestNoPollJustBeforeThePermitsReturn(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.sleepTo(300 * time.Microsecond)
		b.granted("the first", b.acquire(l, 10), 300*time.Microsecond)
		before := p.wire.scripts.Load()
		waiter := b.acquire(l, 10)
		b.sleepTo(2 * time.Second)
		b.granted("the waiter", waiter, 1001*ms)
		if n := p.wire.scripts.Load() - before; n != 2 {
			t.Errorf("%d calls for the waiter, not 2", n)
		}
	})
}

// Changes elsewhere are noticed as soon if the first waiting caller got its refusal from a call that stalled, before a later
// call for others.
func TestChangesElsewhereAreNoticedAfterAStall(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p, elsewhere := b.process(), b.process()
		p.stalls()
		hour := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
		l := p.RateLimiter("l", rratelimiter.WithRate(hour))
		b.granted("the first", b.acquire(l, 10), 0)
		stalled := p.wire.hang()
		waiter := b.acquire(l, 1)
		b.sleepTo(2 * pipeline.ShortestStall)
		next := p.wire.hang()
		other := b.acquire(l, 1)
		stalled()
		synctest.Wait()
		next()
		synctest.Wait()
		if err := elsewhere.RateLimiter("l").SetRate(t.Context(), rratelimiter.Rate{Permits: 12, Interval: time.Hour}, rratelimiter.KeepState()); err != nil {
			t.Fatal(err)
		}
		b.sleepTo(2*pipeline.ShortestStall + time.Second)
		if !waiter.ok || !other.ok {
			t.Errorf("%v, %v", waiter.err, other.err)
		}
	})
}

// A waiting caller fails at once when this process deletes the limiter.
func TestDeleteEndsWaiting(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		client := rratelimiter.NewClient(server.Client(), patient)
		l := client.RateLimiter("l")
		mustSet(t, l, rratelimiter.PerHour(1))
		mustTry(t, l, 1, true)
		ends := make(chan error)
		for range 5 {
			go func() { ends <- l.Acquire(t.Context(), 1) }()
		}
		soon(t, "waiting", func() bool { return client.Waiting()["l"] == 5 })
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
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: time.Hour}))
		b.granted("the first", b.acquire(l, 1), 0)
		var all []*call
		for range 20 {
			all = append(all, b.acquire(l, 1))
		}
		b.sleepTo(5 * time.Minute)
		p.rdb.Close()
		b.sleepTo(5*time.Minute + 15*time.Second)
		for _, c := range all {
			if !errors.Is(c.err, redis.ErrClosed) || errors.Is(c.err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%v, %v at %v", c.ok, c.err, c.at)
			}
		}
		if err := l.Acquire(t.Context(), 1); !errors.Is(err, redis.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestClosedRedisClientEndsWaitingSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bubble) {
		p := b.process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: time.Hour}))
		b.granted("the first", b.try(l, 1), 0)
		var waiting []*call
		for range 20 {
			waiting = append(waiting, b.acquire(l, 1))
		}
		b.sleepTo(200 * ms)
		p.rdb.Close()
		// Without the check of the client, the first sleep alone would last most of a second, and the next ones longer.
		b.sleepTo(800 * ms)
		for _, c := range waiting {
			if !c.ended.Load() || !errors.Is(c.err, redis.ErrClosed) {
				t.Errorf("ended %v: %v", c.ended.Load(), c.err)
			}
		}
	})
}
