package charge

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A charge does not wait behind callers that do. They are served when the debt is paid back, in
// order, and cost one call each time that one is told something new.
func TestWaitingCallersWaitADebtOut(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		mustCharge(t, "all", l, 10, result(true, 10, 0, time.Second, time.Second, time.Second))
		first := b.Acquire(l, 3)
		second := b.Acquire(l, 4)
		b.SleepTo(500 * ms)
		p.CheckCalls("a charge, and one call of those who wait", 2, func() {
			mustCharge(t, "beside waiting callers", l, 14, result(false, 10, 0, 1500*ms, 500*ms, 2500*ms))
		})
		third := b.TryFor(l, 1, 2*time.Second)
		late := b.TryFor(l, 1, time.Second)
		b.Ended("a caller whose permits will not be free in time", late, false, 500*ms)
		p.CheckCalls("they wait", 1, func() { b.SleepTo(1999 * ms) }) // polls
		b.Waits("the first caller", first)
		b.Waits("the third caller", third)
		p.CheckCalls("they are served", 1, func() { b.SleepTo(2 * time.Second) })
		b.Granted("the first caller", first, 2*time.Second)
		b.SleepTo(3 * time.Second)
		b.Granted("the second caller", second, 3*time.Second)
	})
}

// With FailFast a waiting caller is told at once that a charge makes it too late.
func TestAChargeMakesAWaitingCallerTooLate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithFailFast())
		rig.MustTry(t, l, 10, true)
		waits := b.Call(func(ctx context.Context) (bool, error) {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			err := l.Acquire(ctx, 1)
			return err == nil, err
		})
		b.SleepTo(200 * ms)
		b.Waits("a caller with time", waits)
		if _, err := l.Charge(t.Context(), 25); err != nil {
			t.Error(err)
		}
		var late *rratelimiter.NotInTimeError
		if b.Ended("the caller", waits, false, 200*ms); !errors.As(waits.Err, &late) ||
			late.At.Sub(b.Start) != 3*time.Second {
			t.Error(waits.Err)
		}
	})
}

// A charge whose caller leaves before it is sent counts nothing.
func TestAChargeThatWasNotSent(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		rig.Core(p.Client).Tune(limiter.Tuning{Patience: time.Minute, RunsInFlight: 1})
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		mustCharge(t, "nothing", l, 0, result(true, 10, 10, 0, 0, 0)) // the server knows the script then
		resume := p.Wire.Hang()
		first := b.Acquire(l, 1)
		charge := b.Call(func(ctx context.Context) (bool, error) {
			_, err := l.Charge(ctx, 5)
			return err == nil, err
		})
		charge.Cancel()
		if b.Ended("the charge", charge, false, 0); !errors.Is(charge.Err, context.Canceled) {
			t.Error(charge.Err)
		}
		b.End(resume)
		if s := rig.State(t, l); s.Used != 0 || !first.OK { // by then, the first permit has returned
			t.Errorf("%+v", s)
		}
		if records := p.Redis.ZCard(t.Context(), rig.Keys(l)[keys.Permits]).Val(); records > 1 {
			t.Errorf("%d records", records)
		}
	})
}

// Permits that are kept for a caller in front of a set return after the debt, too: a caller behind
// it knows at once that it will be too late.
func TestPermitsKeptInFrontReturnAfterADebt(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("{t}l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		other := p.RateLimiter("{t}other", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		mustCharge(t, "a debt", l, 20, result(true, 10, 0, 2*time.Second, time.Second, 2*time.Second))
		front := b.Call(func(ctx context.Context) (bool, error) {
			err := p.AcquireAllN(ctx, []int64{9, 1}, l, other)
			return err == nil, err
		})
		late := b.Call(func(ctx context.Context) (bool, error) {
			return p.TryAcquireAllTimeout(ctx, 2, 1500*ms, other, l)
		})
		b.Ended("the caller behind", late, false, 0)
		b.SleepTo(2 * time.Second)
		b.Granted("the caller in front", front, 2*time.Second)
	})
}
