package httplimit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

func TestABoundEnds(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		caller   func(context.Context) (context.Context, context.CancelFunc)
		at       time.Duration
		err      error
		noAnswer bool // the cause
	}{
		"after its time": {at: 100 * ms, err: context.DeadlineExceeded, noAnswer: true},
		"with the caller's deadline": {
			caller: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 50*ms)
			},
			at: 50 * ms, err: context.DeadlineExceeded,
		},
		"with the caller": {
			caller: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(70*ms, cancel)
				return ctx, cancel
			},
			at: 70 * ms, err: context.Canceled,
		},
	} {
		for _, waits := range []bool{false, true} { // else the context is asked only afterwards
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					if test.caller != nil {
						ctx, cancel = test.caller(t.Context())
					}
					defer cancel()
					began := time.Now()
					b := newBound(ctx, 100*ms)
					if deadline, has := b.Deadline(); !has ||
						test.err == context.DeadlineExceeded && deadline.Sub(began) != test.at {
						t.Errorf("the deadline is in %v", deadline.Sub(began))
					}
					if waits {
						<-b.Done()
					} else {
						time.Sleep(test.at)
						synctest.Wait()
					}
					if took := time.Since(began); took != test.at || b.Err() != test.err ||
						errors.Is(context.Cause(b), rratelimiter.ErrUnavailable) != test.noAnswer {
						t.Errorf("after %v: %v, %v", took, b.Err(), context.Cause(b))
					}
					b.end()
				})
			})
		}
	}
}

// A bound that nobody waits for has no timer.
func TestABoundCostsNoTimer(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() {
		b := newBound(t.Context(), time.Hour)
		if b.Err() != nil {
			t.Error(b.Err())
		}
		b.end()
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	b := newBound(t.Context(), time.Hour)
	b.end()
	if b.Err() != context.Canceled {
		t.Errorf("after its end: %v", b.Err())
	}
	<-b.Done()
}
