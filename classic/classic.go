// Package classic has the classic rate limiting algorithms. Each uses the Redis layout that many
// services already use, so Go services can share their limits. (A Smooth is an exception: it uses
// no Redis and keeps its state in the process.) All have the same methods: Allow tries once, Peek
// says what Allow would return, Acquire waits, and Charge counts use that is known only afterwards.
// Allow, Peek and Charge are those of an rratelimiter.Limiter, too.
//
//	limiter := classic.NewFixedWindow(rdb, ip+":"+route, rratelimiter.PerSecond(10))
//	result, err := limiter.Allow(ctx, 1)
//
// A constructor makes no call and keeps no state, so a limiter for each of many keys is cheap. It
// returns no error. If a parameter is invalid, the methods that take permits return the error; a
// rate of 0 permits, which refuses every request of an rratelimiter.Limiter, is ErrInvalidRate
// here. A script reads all its keys before it writes, so an error such as WRONGTYPE leaves nothing
// half-written. It also checks every number that it reads, and repairs a missing or impossible one,
// so a limiter with a broken state grants again after a while. Another client can have another
// clock or another limit. So a script accepts a time in the future, up to the bound in the
// constructor's comment, and levels, debts and most TTLs of up to ten times what this limiter can
// write.
//
// docs/algorithms.md compares their costs and guarantees. Where one limit must hold exactly, for
// Java services too, use package rratelimiter.
package classic

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// classic.go has what all algorithms share: the methods, waiting, and the checks of parameters. It
// does not depend on any algorithm.

// A Limiter is one limit with the algorithm of its constructor. It is safe for concurrent use.
type Limiter struct {
	servers *script.Topology
	name    string
	timeout time.Duration // of a call to Redis
	limit   int64         // returned as Result.Limit
	most    int64         // most permits that one request can get
	clock   func() time.Time
	err     error // invalid parameters, returned by every method
	turn    chan struct{}
	// try returns a result without Limit and Allowed, and how many permits it counted. Remaining is
	// negative in debt.
	try func(ctx context.Context, n int64, m mode) (r rratelimiter.Result, taken int64, err error)
}

// Name returns the key or name with which the limiter was made.
func (l *Limiter) Name() string { return l.name }

// Allow tries once to take n permits. If it refuses, it has taken none, and Result.RetryAfter is
// the time until a retry. If ctx ends while a call that takes permits is in flight, the error is
// ErrOutcomeUnknown together with ctx.Err(), and the call continues in the background. If the call
// timeout is over (WithCallTimeout), or Redis cannot be reached, it is ErrUnavailable, together
// with ErrOutcomeUnknown if Redis may have executed the call. A call that was not sent before that
// is never sent.
func (l *Limiter) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	r, err := l.ask(ctx, n, take)
	return r, l.wrap("allow", err)
}

// Peek returns what Allow would return now, takes no permits, and changes nothing in Redis. Only
// Result.Remaining differs: it is the number of permits that are free now, n of them included if
// Allowed. A lost reply never causes ErrOutcomeUnknown.
func (l *Limiter) Peek(ctx context.Context, n int64) (rratelimiter.Result, error) {
	r, err := l.ask(ctx, n, peek)
	return r, l.wrap("peek at", err)
}

// Charge counts n permits that were used, whether they are free or not, as Charge of an
// rratelimiter.Limiter does. It refuses nothing and does not wait. What is not free is a debt:
// until that is paid back, requests are refused.
//
// Windows, a SlidingLog and a Quota count a charge as long as any permit, however much it is, up to
// 2^53 - 1 in all: a debt ends with the window or the period. A bucket and a GCRA pay a debt back
// at their rate; there, it is at most ten times what one request can take (Result.Limit, and
// Tokens.Debt). If n is more, Charge counts up to the bound and returns the Result with
// ErrDebtBound.
//
// Result.Allowed reports whether a permit was free before. RetryAfter is the time until a permit is
// free, 0 if one is now. If n is 0, Charge counts nothing and tells the same. If n is negative, the
// error is ErrInvalidPermits. All other errors are those of Allow. A charge whose outcome is
// unknown is not repeated either.
func (l *Limiter) Charge(ctx context.Context, n int64) (rratelimiter.Result, error) {
	r, err := l.ask(ctx, n, charge)
	return r, l.wrap("charge", err)
}

// Acquire takes n permits and waits for them until ctx ends. Callers of one Limiter value are
// served in the order of their calls; callers of Allow, and of other values and processes, may
// overtake them. As in Allow, it does not wait for a call that is in flight when ctx ends or the
// call timeout is over.
func (l *Limiter) Acquire(ctx context.Context, n int64) error {
	return l.wrap("acquire from", l.acquire(ctx, n))
}

// Bounds of the time between two tries of a waiting caller. It tries after RetryAfter, within these
// bounds: a counter can be reset by another client.
const (
	shortestPause = time.Millisecond
	longestPause  = 15 * time.Second
)

func (l *Limiter) acquire(ctx context.Context, n int64) error {
	if err := l.check(n, 1, l.most); err != nil {
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
		r, err := l.ask(ctx, n, take)
		if err != nil || r.Allowed {
			return err
		}
		if err := script.Sleep(ctx, min(max(r.RetryAfter, shortestPause), longestPause)); err != nil {
			return err
		}
	}
}

func (l *Limiter) ask(ctx context.Context, n int64, m mode) (rratelimiter.Result, error) {
	least, most := int64(1), l.most
	if m == charge {
		least, most = 0, math.MaxInt64
	}
	if err := cmp.Or(l.check(n, least, most), ctx.Err()); err != nil {
		return rratelimiter.Result{}, err
	}
	if n == 0 {
		m |= peek
	}
	r, taken, err := l.try(ctx, min(n, mostExact), m)
	if err != nil {
		return rratelimiter.Result{}, err
	}
	r.Limit, r.Allowed = l.limit, taken > 0
	ready := r.Allowed // a retry need not wait
	switch {
	case m&charge != 0:
		r.Allowed, ready = r.Remaining+taken > 0, r.Remaining > 0
		r.RetryAfter = r.NextAfter
		if r.Remaining >= l.limit {
			r.ResetAfter = 0
		}
		if taken < n {
			err = fmt.Errorf("%w: %d of %d permits counted", rratelimiter.ErrDebtBound, taken, n)
		}
	case m == peek && r.Allowed:
		r.Remaining += n
	}
	r.Remaining = max(0, r.Remaining)
	r.ResetAfter = max(0, r.ResetAfter)
	r.NextAfter = max(0, min(r.NextAfter, r.ResetAfter))
	switch {
	case ready:
		r.RetryAfter = 0
	case r.RetryAfter <= 0: // the TTL of the key is below 1 ms
		r.RetryAfter = shortestPause
	}
	return r, err
}

func (l *Limiter) check(n, least, most int64) error {
	switch {
	case l.err != nil:
		return l.err
	case n < least:
		return fmt.Errorf("%w (%d)", rratelimiter.ErrInvalidPermits, n)
	case n > most:
		return fmt.Errorf("%w (%d)", rratelimiter.ErrExceedsRate, n)
	}
	return nil
}

func (l *Limiter) wrap(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q: %w", operation, l.name, err)
}

// An Option sets a property of a limiter in this process.
type Option func(*settings) error

type settings struct {
	clock   func() time.Time // nil: the default of the algorithm
	timeout time.Duration
}

// WithClock sets the clock of an algorithm, for tests. The default is time.Now, and the server's
// clock for a GCRA and a Spring bucket. TTLs always use the server's clock: a fixed window and a
// list window use no other clock.
func WithClock(now func() time.Time) Option {
	return func(s *settings) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		s.clock = now
		return nil
	}
}

// WithCallTimeout bounds the duration of one call to Redis, as rratelimiter.WithCallTimeout does.
// The default is 1 s. A call that takes permits is sent once, so a longer timeout repeats nothing.
// A Smooth makes no call.
func WithCallTimeout(d time.Duration) Option {
	return func(s *settings) error {
		if d <= 0 {
			return invalidOption("the call timeout %v is not positive", d)
		}
		s.timeout = d
		return nil
	}
}

// callTimeout is the default of WithCallTimeout.
var callTimeout = time.Second

// newLimiter returns a limiter without an algorithm. Its error is the first of faults and of the
// invalid parameters.
func newLimiter(rdb rratelimiter.Redis, name string, limit, most int64, opts []Option, faults ...error) *Limiter {
	l := &Limiter{servers: script.NewTopology(rdb), name: name, limit: limit, most: most, turn: make(chan struct{}, 1)}
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
	s := settings{clock: l.clock, timeout: callTimeout}
	for _, opt := range opts {
		err := invalidOption("an option is nil")
		if opt != nil {
			err = opt(&s)
		}
		if err != nil && l.err == nil {
			l.err = err
		}
	}
	l.clock, l.timeout = s.clock, s.timeout
}

// now returns the time in ms since the epoch.
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

// checkRate returns an error for a rate that is invalid here: types and keep-alives are Redisson's.
func checkRate(r rratelimiter.Rate) error {
	switch {
	case r.Type != rratelimiter.Overall || r.KeepAlive != 0:
		return invalidRate("%v: only permits and an interval have a meaning here", r)
	case r.Interval < time.Millisecond || r.Interval%time.Millisecond != 0:
		return invalidRate("interval %v is not a positive number of whole milliseconds", r.Interval)
	}
	return checkCount("permits", r.Permits, mostPermits)
}

const (
	mostPermits = math.MaxUint32 // of a rate, as in a record of an rratelimiter.Limiter
	// Lua's numbers are doubles, which hold each whole number up to this one. A sum of two such
	// numbers that is larger is also larger in Lua.
	mostExact = 1<<53 - 1
)

func checkCount(what string, n, most int64) error {
	if n < 1 || n > most {
		return invalidRate("%d %s, not 1 to %d", n, what, most)
	}
	return nil
}

func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
