package httplimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// A bound is a context that ends after a time, with noAnswer as its cause. Its timer starts when
// somebody waits for its end, so a decision from memory costs no timer.
type bound struct {
	context.Context // the caller's
	until           time.Time
	time            time.Duration
	answer          [1]Answer // memory for the answer of a single limit, which saves an allocation

	mu    sync.Mutex      // guards the fields below
	timed context.Context // with the timer; nil: nobody waits
	stop  context.CancelFunc
	over  bool // end was called
}

func newBound(ctx context.Context, d time.Duration) *bound {
	return &bound{Context: ctx, until: time.Now().Add(d), time: d}
}

// end ends the context, and its timer.
func (b *bound) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over = true; b.stop != nil {
		b.stop()
	}
}

// cause returns the error of a call, or the reason why the context has ended, if that is the reason
// of the error.
func (b *bound) cause(err error) error {
	if err == nil || misconfigured(err) {
		return err
	}
	if cause := context.Cause(b); errors.Is(cause, rratelimiter.ErrUnavailable) {
		return cause
	}
	return err
}

// current returns the context with the timer. If nobody has waited yet, and waits is false, it
// returns the caller's.
func (b *bound) current(waits bool) context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.timed != nil:
	case waits || b.over:
		b.timed, b.stop = context.WithDeadlineCause(b.Context, b.until, noAnswer(b.time))
		if b.over {
			b.stop()
		}
	default:
		return b.Context
	}
	return b.timed
}

func (b *bound) Deadline() (time.Time, bool) {
	if own, has := b.Context.Deadline(); has && own.Before(b.until) {
		return own, true
	}
	return b.until, true
}

func (b *bound) Done() <-chan struct{} { return b.current(true).Done() }

// Value also finds the cause of the end, for context.Cause.
func (b *bound) Value(key any) any { return b.current(false).Value(key) }

func (b *bound) Err() error {
	if err := b.current(false).Err(); err != nil || time.Now().Before(b.until) {
		return err
	}
	return b.current(true).Err()
}
