package classic

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Smooth is one of Guava's two rate limiters, in this process alone: that of NewSmoothBursty or
// that of NewSmoothWarmingUp. Its waits are equal to Guava's to the microsecond.
//
// Model: one permit comes every 1 / rate. A request does not wait for its own permits, but until
// the permits of all earlier requests have come (reserve-ahead). So even a large request is served
// at once after an idle time, and none is ever too large. While there are no requests, permits are
// stored. A SmoothBursty stores the permits of one second; stored permits cost no wait. A
// SmoothWarmingUp stores permits as it cools down. The more permits are stored, the longer each
// takes, up to three times the usual time. So the rate rises to its full height during the warm-up
// period.
//
// Cost: none in Redis; about a microsecond and no memory.
//
// Weakness: it limits only its own process. In any time t, a SmoothBursty serves at most rate x (1
// s + t), plus one request of any size; a SmoothWarmingUp at most rate x t plus one request.
//
// A Smooth is safe for concurrent use.
type Smooth struct {
	err    error
	clock  func() time.Time
	start  time.Time
	warmUp float64 // microseconds; 0: bursty

	mu        sync.Mutex
	rate      float64 // permits a second
	interval  float64 // microseconds a permit, when warm
	stored    float64
	most      float64 // maximum of stored permits
	threshold float64 // stored permits above it are slow
	slope     float64 // additional microseconds for each permit above it
	next      int64   // time of the next request, in microseconds since start
}

// coldFactor is the factor by which a permit takes longer when a limiter is cold: Guava's.
const coldFactor = 3.0

// NewSmoothBursty returns a limiter that stores up to a second's permits (Guava:
// RateLimiter.create(permitsPerSecond)).
func NewSmoothBursty(perSecond float64, opts ...Option) *Smooth {
	return newSmooth(perSecond, 0, nil, opts)
}

// NewSmoothWarmingUp returns a limiter that warms up over a period of at least a microsecond
// (Guava: RateLimiter.create(permitsPerSecond, warmupPeriod)).
func NewSmoothWarmingUp(perSecond float64, warmUp time.Duration, opts ...Option) *Smooth {
	var fault error
	if warmUp < time.Microsecond {
		fault = invalidOption("the warm-up period %v is shorter than a microsecond", warmUp)
	}
	return newSmooth(perSecond, warmUp, fault, opts)
}

func newSmooth(perSecond float64, warmUp time.Duration, fault error, opts []Option) *Smooth {
	base := Limiter{clock: time.Now, err: fault}
	base.apply(opts)
	s := &Smooth{err: base.err, clock: base.clock, warmUp: float64(warmUp.Microseconds())}
	if err := checkPerSecond(perSecond); s.err == nil {
		s.err = err
	}
	if s.err == nil {
		s.start = s.clock()
		s.set(perSecond)
	}
	return s
}

func checkPerSecond(rate float64) error {
	if !(rate > 0) || math.IsInf(rate, 0) {
		return invalidRate("%v permits a second", rate)
	}
	return nil
}

// Rate returns the permits a second.
func (s *Smooth) Rate() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rate
}

// Stored returns the permits that are stored now.
func (s *Smooth) Stored() float64 {
	if s.err != nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(s.micros())
	return s.stored
}

// SetRate changes the rate while the limiter is in use. Stored permits change in proportion;
// callers that wait, and the next request, are served as under the old rate.
func (s *Smooth) SetRate(perSecond float64) error {
	err := s.err
	if err == nil {
		err = checkPerSecond(perSecond)
	}
	if err != nil {
		return smoothError("set rate of", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(s.micros())
	s.set(perSecond)
	return nil
}

// set computes the fields from the rate. Products are converted before they are added, so that no
// machine fuses the two operations and rounds differently from Java.
func (s *Smooth) set(perSecond float64) {
	s.rate, s.interval = perSecond, 1e6/perSecond
	old := s.most
	if s.warmUp == 0 {
		s.most = perSecond // of one second
	} else {
		cold := s.interval * coldFactor
		s.threshold = 0.5 * s.warmUp / s.interval
		s.most = s.threshold + 2.0*s.warmUp/(s.interval+float64(cold))
		s.slope = (float64(cold) - s.interval) / (s.most - s.threshold)
	}
	switch {
	case old != 0:
		s.stored = s.stored * s.most / old
	case s.warmUp != 0:
		s.stored = s.most // cold at first
	}
}

// micros returns the microseconds since start.
func (s *Smooth) micros() int64 { return int64(s.clock().Sub(s.start) / time.Microsecond) }

// settle stores the permits that have come since the next free time, if that has passed.
func (s *Smooth) settle(now int64) {
	if now <= s.next {
		return
	}
	each := s.interval
	if s.warmUp != 0 {
		each = s.warmUp / s.most
	}
	s.stored = min(s.most, s.stored+float64(now-s.next)/each)
	s.next = now
}

// Reserve takes n permits and returns how long the caller must wait before it uses them. They can't
// be given back.
func (s *Smooth) Reserve(n int64) (time.Duration, error) {
	if err := s.check(n, 1); err != nil {
		return 0, smoothError("reserve from", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve(n, s.micros()), nil
}

// reserve serves a request at the next free time, and advances that.
func (s *Smooth) reserve(n, now int64) time.Duration {
	s.settle(now)
	at := s.next
	spent := min(float64(n), s.stored)
	cost := s.slow(spent) + int64(float64((float64(n)-spent)*s.interval))
	if s.next > math.MaxInt64-cost {
		s.next = math.MaxInt64
	} else {
		s.next += cost
	}
	s.stored -= spent
	return micros(max(0, at-now))
}

// slow returns the time for that many stored permits, in microseconds: the area under a line that
// is flat to the threshold and rises from there.
func (s *Smooth) slow(permits float64) int64 {
	if s.warmUp == 0 {
		return 0
	}
	var took int64
	if above := s.stored - s.threshold; above > 0 {
		taken := min(above, permits)
		sum := s.each(above) + s.each(above-taken)
		took = int64(float64(taken*sum) / 2)
		permits -= taken
	}
	return took + int64(float64(s.interval*permits))
}

// each returns the time for one permit at a number of stored permits above the threshold, in
// microseconds.
func (s *Smooth) each(above float64) float64 { return s.interval + float64(above*s.slope) }

// Allow takes n permits, however many, if a request can be served now without a wait (Guava:
// tryAcquire). If ctx has ended, it takes none and returns ctx.Err().
func (s *Smooth) Allow(ctx context.Context, n int64) (rratelimiter.Result, error) {
	if err := cmp.Or(s.check(n, 1), ctx.Err()); err != nil {
		return rratelimiter.Result{}, smoothError("allow", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allow(n), nil
}

// Peek returns what Allow would return now, and takes no permits. Only Result.Remaining differs: it
// is the number of permits that are stored now.
func (s *Smooth) Peek(ctx context.Context, n int64) (rratelimiter.Result, error) {
	if err := cmp.Or(s.check(n, 1), ctx.Err()); err != nil {
		return rratelimiter.Result{}, smoothError("peek at", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(s.micros())
	stored, next := s.stored, s.next
	r := s.allow(n)
	s.stored, s.next = stored, next
	r.Remaining = int64(stored)
	return r, nil
}

// Charge counts n permits that were used, as Reserve does, but nobody waits for them.
// Result.Allowed reports whether a request could be served without a wait before, and RetryAfter is
// the wait of the next request. That is at most the time of ten seconds' permits (of ten permits if
// that is longer): if n is more, Charge counts up to this bound and returns the Result with
// ErrDebtBound. If n is 0, it counts nothing. If ctx has ended, it counts none and returns
// ctx.Err().
func (s *Smooth) Charge(ctx context.Context, n int64) (rratelimiter.Result, error) {
	if err := cmp.Or(s.check(n, 0), ctx.Err()); err != nil {
		return rratelimiter.Result{}, smoothError("charge", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.micros()
	s.settle(now)
	allowed := s.next <= now
	room := s.stored + times*max(1, s.rate) - float64(s.next-now)/s.interval
	taken := int64(min(float64(n), max(0, room)))
	s.reserve(taken, now)
	r := s.result(now)
	r.Allowed = allowed
	if taken < n {
		return r, smoothError("charge", fmt.Errorf("%w: %d of %d permits counted", rratelimiter.ErrDebtBound, taken, n))
	}
	return r, nil
}

func (s *Smooth) allow(n int64) rratelimiter.Result {
	now := s.micros()
	wait := micros(max(0, s.next-now))
	if wait == 0 {
		s.reserve(n, now)
	}
	r := s.result(now)
	r.Allowed, r.RetryAfter = wait == 0, wait
	return r
}

// result returns a result in which RetryAfter is the wait of the next request.
func (s *Smooth) result(now int64) rratelimiter.Result {
	r := rratelimiter.Result{Limit: int64(s.rate), Remaining: int64(s.stored)}
	each := s.interval
	if s.warmUp != 0 {
		each = s.warmUp / s.most
	}
	busy := max(0, s.next-now)
	r.RetryAfter = micros(busy)
	r.ResetAfter = micros(busy + int64((s.most-s.stored)*each))
	if r.NextAfter = micros(busy); busy == 0 {
		r.NextAfter = min(micros(int64(math.Ceil((math.Floor(s.stored)+1-s.stored)*each))), r.ResetAfter)
	}
	return r
}

// Acquire takes n permits and waits until they may be used (Guava: acquire, which can't be
// interrupted). If ctx ends during the wait, the permits are spent; if it ended before the call,
// they are not.
func (s *Smooth) Acquire(ctx context.Context, n int64) error {
	if err := ctx.Err(); err != nil {
		return smoothError("acquire from", err)
	}
	wait, err := s.Reserve(n)
	if err == nil && wait > 0 {
		err = script.Sleep(ctx, wait)
	}
	return smoothError("acquire from", err)
}

func (s *Smooth) check(n, least int64) error {
	if s.err != nil {
		return s.err
	}
	if n < least {
		return fmt.Errorf("%w (%d)", rratelimiter.ErrInvalidPermits, n)
	}
	return nil
}

func smoothError(operation string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s a smooth limiter: %w", operation, err)
}

func micros(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}
