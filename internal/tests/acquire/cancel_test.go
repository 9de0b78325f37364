package acquire

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// cancel_test.go ends the contexts of callers at each stage of a request.

func TestContextThatEndsBeforeTheCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("some cause"))
		for name, ask := range rig.EveryWay(l) {
			if err := ask(ctx, 1); !errors.Is(err, context.Canceled) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := l.AcquireUpTo(ctx, 1); !errors.Is(err, context.Canceled) ||
			errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("AcquireUpTo: %v", err)
		}
		if _, err := l.Release(ctx, 1); !errors.Is(err, context.Canceled) ||
			errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("Release: %v", err)
		}
		if n := p.Wire.Calls(); n != 0 {
			t.Errorf("%d calls were made", n)
		}
	})
}

func TestContextThatEndsInTheQueue(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("the first", b.Acquire(l, 10), 0)
		in, ended := b.Acquire(l, 1), 0
		b.Waits("the waiter", in)
		for name, ask := range rig.EveryWay(l) {
			if name != "Acquire" && name != "AcquireAll" && name != "TryAcquireTimeout" {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
			before := time.Now()
			err := ask(ctx, 1)
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", name, err)
			}
			if took := time.Since(before); took != 100*ms {
				t.Errorf("%s returned after %v", name, took)
			}
			ended++
		}
		resume := p.Wire.Hang()
		b.Try(l, 1)
		try := b.Try(l, 1) // behind the call in flight
		try.Cancel()
		b.Ended("a try behind a call in flight", try, false, time.Duration(ended)*100*ms)
		if !errors.Is(try.Err, context.Canceled) || errors.Is(try.Err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("a try behind a call in flight: %v", try.Err)
		}
		resume()
		b.SleepTo(time.Second)
		b.Granted("the waiter", in, time.Second)
		if s := rig.State(t, l); s.Used != 1 || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// While Redis hangs, a caller returns exactly when its context ends.
func TestContextThatEndsInFlight(t *testing.T) {
	for name := range rig.EveryWay(nil) {
		t.Run(name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
				resume := p.Wire.Hang()
				ctx, cancel := context.WithTimeout(t.Context(), 70*ms)
				defer cancel()
				err := rig.EveryWay(l)[name](ctx, 3)
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
					t.Errorf("%v", err)
				}
				if at := time.Since(b.Start); at != 70*ms {
					t.Errorf("returned at %v", at)
				}
				resume()
				synctest.Wait()
				if s := rig.State(t, l); s.Used != 3 || !s.Consistent { // no other caller wanted them
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// A context that ends once the reply has arrived changes nothing: the permits are the caller's.
func TestContextThatEndsAtTheGrant(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		granted := 0
		for i := range 50 {
			ctx, cancel := context.WithDeadline(t.Context(), b.Start.Add(time.Duration(i)*time.Second))
			if i == 0 {
				ctx, cancel = context.WithCancel(t.Context())
			}
			switch err := l.Acquire(ctx, 1); { // free at the instant at which ctx ends
			case err == nil:
				granted++
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%v", err)
			case !errors.Is(err, rratelimiter.ErrOutcomeUnknown):
				// It waited in the queue, so no permit may be taken for it.
				synctest.Wait()
				if s := rig.State(t, l); s.Used != 0 {
					t.Errorf("%+v", s)
				}
				b.Granted("the next one", b.Acquire(l, 1), time.Since(b.Start))
			}
			cancel()
			b.SleepTo(time.Duration(i)*time.Second + ms/2)
		}
		if granted == 0 {
			t.Error("nothing was granted")
		}
	})
}

func TestGrantOfACancelledCaller(t *testing.T) {
	for _, c := range []struct {
		name          string
		behind        int64
		granted, used int64
	}{
		{"goes to the next one", 6, 6, 6 + 1},
		{"goes to the next one, which needs less", 5, 5, 6 + 1},
		{"stays taken when no caller can use it", 7, 0, 6 + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				p := b.Process()
				l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
				plug := p.Wire.Hang()
				b.Try(l, 1)
				gone, behind := b.Acquire(l, 6), b.Acquire(l, c.behind)
				next := p.Wire.Hang()
				plug()
				b.SleepTo(10 * ms)
				gone.Cancel()
				b.Ended("the cancelled one", gone, false, 10*ms)
				if !errors.Is(gone.Err, context.Canceled) || !errors.Is(gone.Err, rratelimiter.ErrOutcomeUnknown) {
					t.Errorf("the cancelled one: %v", gone.Err)
				}
				next()
				synctest.Wait()
				if c.granted > 0 {
					b.Granted("the caller that is behind", behind, 10*ms)
				} else {
					b.Waits("the caller that is behind", behind)
				}
				if s := rig.State(t, l); s.Used != c.used || !s.Consistent {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}
