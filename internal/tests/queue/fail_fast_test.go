package queue

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// acquireBy makes a Call of Acquire whose context has a deadline, after the given time since the
// bubble began.
func acquireBy(b *rig.Bubble, l *rratelimiter.Limiter, n int64, deadline time.Duration) *rig.Call {
	return b.Call(func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithDeadline(ctx, b.Start.Add(deadline))
		defer cancel()
		err := l.Acquire(ctx, n)
		return err == nil, err
	})
}

// failedFast checks that a call failed at a time, because its permits are free at another time at
// the earliest.
func failedFast(b *rig.Bubble, what string, c *rig.Call, at, free time.Duration) {
	b.T.Helper()
	b.Ended(what, c, false, at)
	var late *rratelimiter.NotInTimeError
	switch {
	case !errors.As(c.Err, &late):
		b.T.Errorf("%s: %v, not a NotInTimeError", what, c.Err)
	case late.At.Sub(b.Start) != free:
		b.T.Errorf("%s: free %v after the start, want %v", what, late.At.Sub(b.Start), free)
	case errors.Is(c.Err, context.DeadlineExceeded), errors.Is(c.Err, rratelimiter.ErrOutcomeUnknown):
		b.T.Errorf("%s: %v matches an error that it is not", what, c.Err)
	case !strings.Contains(c.Err.Error(), `acquire from "l"`):
		b.T.Errorf("%s: the error does not name the limiter: %v", what, c.Err)
	}
}

func TestFailFast(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFailFast())
		b.Granted("the first", b.Try(l, 10), 0)
		b.SleepTo(200 * ms)
		failedFast(b, "one whose deadline is when the permits return", acquireBy(b, l, 1, time.Second), 200*ms,
			time.Second)
		in := acquireBy(b, l, 1, time.Second+ms)
		forever, bounded := b.Acquire(l, 1), b.TryFor(l, 1, 900*ms)
		b.Ended("TryAcquireTimeout", b.TryFor(l, 1, 800*ms), false, 200*ms)
		b.Ended("TryAcquireTimeout with an earlier deadline", b.Call(func(ctx context.Context) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, 100*ms)
			defer cancel()
			return l.TryAcquireTimeout(ctx, 1, time.Minute)
		}), false, 200*ms)
		b.SleepTo(time.Second)
		b.Granted("one in time", in, time.Second)
		b.Granted("one without a deadline", forever, time.Second)
		b.Granted("one with a timeout", bounded, time.Second)
	})
}

// By default a caller waits until its deadline.
func TestWithoutFailFastACallerWaits(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := b.Process().RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("the first", b.Try(l, 10), 0)
		c := acquireBy(b, l, 1, 500*ms)
		b.SleepTo(500 * ms)
		if b.Ended("the caller", c, false, 500*ms); !errors.Is(c.Err, context.DeadlineExceeded) {
			t.Error(c.Err)
		}
	})
}

// The callers in front take their permits first: the permits of each group of 10 return an interval
// after those of the group before.
func TestFailFastCountsTheCallersInFront(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := b.Process().RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFailFast())
		b.Granted("the first", b.Try(l, 6), 0)
		b.SleepTo(300 * ms)
		b.Granted("the second", b.Try(l, 4), 300*ms)
		front := b.Acquire(l, 5)
		failedFast(b, "behind the one in front", acquireBy(b, l, 2, 1200*ms), 300*ms, 1300*ms)
		small := acquireBy(b, l, 1, 1100*ms)
		next := b.Acquire(l, 4)
		failedFast(b, "one more than the rate", acquireBy(b, l, 3, 1900*ms), 300*ms, 2*time.Second)
		last := acquireBy(b, l, 3, 2500*ms)
		b.SleepTo(time.Second)
		b.Granted("the one in front", front, time.Second)
		b.Granted("the one that fits behind it", small, time.Second)
		b.SleepTo(1300 * ms)
		b.Granted("the next one", next, 1300*ms)
		b.SleepTo(2 * time.Second)
		b.Granted("the last one", last, 2*time.Second)
	})
}

// What other processes take is known once a reply shows it.
func TestFailFastWhenAnotherProcessTakesThePermits(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		rate := rratelimiter.WithRate(rratelimiter.PerSecond(10))
		l, other := b.Process().RateLimiter("l", rate, rratelimiter.WithFailFast()), b.Process().RateLimiter("l", rate)
		b.Granted("the other process", b.Try(other, 9), 0)
		c := acquireBy(b, l, 10, 1500*ms)
		b.SleepTo(500 * ms)
		b.Granted("the other process again", b.Try(other, 1), 500*ms)
		b.SleepTo(999 * ms)
		b.Waits("before the next reply", c)
		b.SleepTo(time.Second)
		failedFast(b, "the caller", c, time.Second, 1500*ms)
	})
}

// While the process decides, Redis may come back before the deadline.
func TestFailFastWaitsForRedis(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFailFast(),
			rratelimiter.WithFallback(0.1),
		)
		mend := p.Wire.Fail(rig.ErrRefused)
		b.Granted("by the process", b.Try(l, 1), 0)
		c := acquireBy(b, l, 1, 900*ms)
		b.Waits("until Redis is back", c)
		b.SleepTo(500 * ms)
		mend()
		b.SleepTo(900 * ms)
		if !c.Ended.Load() || !c.OK {
			t.Errorf("%v at %v", c.Err, c.At)
		}
	})
}

func TestFailFastByTheServersClock(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := b.Process().
			RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFailFast(),
				rratelimiter.WithServerTime())
		b.Granted("the first", b.Try(l, 10), 0)
		c := acquireBy(b, l, 1, 500*ms)
		var late *rratelimiter.NotInTimeError
		if b.Ended("the caller", c, false, 0); !errors.As(c.Err, &late) || late.At.Sub(b.Start) < time.Second {
			t.Error(c.Err)
		}
	})
}
