// Package classic has the classic rate limiting algorithms, each in the Redis layout in which many services already run
// it, so that they can share it, and all on the same terms: Allow asks once, Acquire waits.
//
//	limiter := classic.NewFixedWindow(rdb, ip+":"+route, rratelimiter.PerSecond(10))
//	result, err := limiter.Allow(ctx, 1)
//
// A constructor makes no call and keeps no state, so a limiter for each key of many is cheap. It returns no error: every
// method of what it made does. Scripts read before they write, so that nothing is half-written, and trust no number that
// they find: what is none, or can't be right, is healed.
//
// Which one to choose, what each costs and what it lets through stands in docs/algorithms.md. Where one limit has to hold
// exactly, for Java services too, use package rratelimiter.
package classic

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// classic.go has what all algorithms share: how they are asked, how they wait, and what is wrong with their parameters.
// It knows nothing of any algorithm.

// A Limiter is one limit, kept by the algorithm whose constructor made it. It is safe for concurrent use.
type Limiter struct {
	rdb   rratelimiter.Redis
	name  string
	limit int64 // what Result.Limit tells
	most  int64 // what one request can ever get
	clock func() time.Time
	err   error // of the parameters
	turn  chan struct{}
	try   func(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// Name is the key or name that the limiter was made with.
func (l *Limiter) Name() string { return l.name }

// Allow asks once for n permits. Where it refuses, it has taken none, and Result.RetryAfter says when to come back. When ctx
// ends while a call that takes permits is in the air, the error is ErrOutcomeUnknown beside ctx.Err(): it goes on by itself.
func (l *Limiter) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	r, err := l.ask(ctx, n)
	return r, l.wrap("allow", err)
}

// Acquire takes n permits and waits for them until ctx ends. Callers of one Limiter value are served in the order in which
// they came; callers of Allow, and of other values and processes, may pass them. A call that is in the air when ctx ends
// is not waited for, as in Allow.
func (l *Limiter) Acquire(ctx context.Context, n int64) error {
	return l.wrap("acquire from", l.acquire(ctx, n))
}

// Waiting callers ask again when they were told to, but not at once and not after too long: a counter can be reset
// elsewhere.
const (
	shortestPause = time.Millisecond
	longestPause  = 15 * time.Second
)

func (l *Limiter) acquire(ctx context.Context, n int64) error {
	if err := l.check(n); err != nil {
		return err
	}
	// Go serves the senders that wait for a channel in their order.
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		r, err := l.ask(ctx, n)
		if err != nil || r.Allowed {
			return err
		}
		if err := pause(ctx, min(max(r.RetryAfter, shortestPause), longestPause)); err != nil {
			return err
		}
	}
}

func (l *Limiter) ask(ctx context.Context, n int64) (rratelimiter.Result, error) {
	if err := l.check(n); err != nil {
		return rratelimiter.Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return rratelimiter.Result{}, err
	}
	r, err := l.try(ctx, n)
	if err != nil {
		return rratelimiter.Result{}, err
	}
	r.Limit = l.limit
	r.Remaining = max(0, r.Remaining)
	r.ResetAfter = max(0, r.ResetAfter)
	r.RetryAfter = max(0, r.RetryAfter)
	if r.Allowed {
		r.RetryAfter = 0
	}
	return r, nil
}

func (l *Limiter) check(n int64) error {
	switch {
	case l.err != nil:
		return l.err
	case n < 1:
		return fmt.Errorf("%w: %d", rratelimiter.ErrInvalidPermits, n)
	case n > l.most:
		return fmt.Errorf("%w: %d", rratelimiter.ErrExceedsRate, n)
	}
	return nil
}

func (l *Limiter) wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", operation, l.name, err)
}

// pause sleeps, or ends with ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// An Option is a property of a limiter in this process.
type Option func(*settings) error

type settings struct {
	clock func() time.Time // nil: the usual one of the algorithm
}

// WithClock sets the clock that an algorithm goes by, for tests. The default is time.Now; a GCRA goes by the server's clock
// unless it is given another one. Life times are always by the server's clock: a fixed window and a list window go by
// nothing else.
func WithClock(now func() time.Time) Option {
	return func(s *settings) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		s.clock = now
		return nil
	}
}

// newLimiter makes a limiter that lacks its algorithm. The first fault of parameters is the one that is told.
func newLimiter(rdb rratelimiter.Redis, name string, limit, most int64, opts []Option, faults ...error) *Limiter {
	l := &Limiter{rdb: rdb, name: name, limit: limit, most: most, turn: make(chan struct{}, 1)}
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		l.err = invalidOption("the redis client is nil")
	}
	for _, fault := range faults {
		if l.err == nil {
			l.err = fault
		}
	}
	l.apply(opts)
	return l
}

func (l *Limiter) apply(opts []Option) {
	s := settings{clock: l.clock}
	for _, opt := range opts {
		err := invalidOption("an option is nil")
		if opt != nil {
			err = opt(&s)
		}
		if err != nil && l.err == nil {
			l.err = err
		}
	}
	l.clock = s.clock
}

// now is the time in ms since the epoch.
func (l *Limiter) now() int64 {
	if l.clock == nil {
		return time.Now().UnixMilli()
	}
	return l.clock().UnixMilli()
}

func invalidOption(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rratelimiter.ErrInvalidOption, fmt.Sprintf(format, args...))
}

func invalidRate(format string, args ...any) error {
	return fmt.Errorf("%w: %s", rratelimiter.ErrInvalidRate, fmt.Sprintf(format, args...))
}

// checkRate says what is wrong with a rate here: types and keep-alives are Redisson's.
func checkRate(r rratelimiter.Rate) error {
	switch {
	case r.Type != rratelimiter.Overall || r.KeepAlive != 0:
		return invalidRate("%v: only permits and an interval have a meaning here", r)
	case r.Interval < time.Millisecond || r.Interval%time.Millisecond != 0:
		return invalidRate("interval %v is not a positive number of whole milliseconds", r.Interval)
	}
	return checkCount("permits", r.Permits)
}

func checkCount(what string, n int64) error {
	if n < 1 || n > math.MaxUint32 {
		return invalidRate("%d %s, not 1 to %d", n, what, uint32(math.MaxUint32))
	}
	return nil
}

func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
