// Package adapt gives a limiter the methods by which other libraries call theirs: Wait, as
// golang.org/x/time/rate has it, Limit, for the interceptors of go-grpc-middleware, and those of
// the interface RateLimiter in client-go's util/flowcontrol, for clients of Kubernetes. Each call
// takes one permit.
//
//	config := &rest.Config{RateLimiter: adapt.New(limiter)} // all controllers together keep to one rate
//
// The package imports none of these libraries.
package adapt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// ErrRefused is the error of Limit if too few permits are free.
var ErrRefused = errors.New("too many requests")

// A Limiter takes single permits of a *rratelimiter.Limiter. It is safe for concurrent use.
type Limiter struct{ limiter *rratelimiter.Limiter }

// New returns the methods for a limiter, which must not be nil.
func New(limiter *rratelimiter.Limiter) *Limiter { return &Limiter{limiter} }

// Wait waits for a permit until ctx ends. Its errors are those of [rratelimiter.Limiter.Acquire].
func (l *Limiter) Wait(ctx context.Context) error { return l.limiter.Acquire(ctx, 1) }

// Limit returns nil if a permit is free. Otherwise it returns an error that wraps ErrRefused, with
// the time until a retry in its text, or an error of [rratelimiter.Limiter.Allow]. The interceptors
// of go-grpc-middleware refuse a call after either.
func (l *Limiter) Limit(ctx context.Context) error {
	r, err := l.limiter.Allow(ctx, 1)
	if err == nil && !r.Allowed {
		err = fmt.Errorf("%w: retry after %v", ErrRefused, r.RetryAfter)
	}
	return err
}

// TryAccept takes a permit if one is free. It returns false if none is free, or if the limiter
// returns an error.
func (l *Limiter) TryAccept() bool {
	ok, err := l.limiter.TryAcquire(context.Background(), 1)
	return ok && err == nil
}

// Accept waits for a permit. Since it cannot return an error, it logs the errors of the limiter
// with slog, and tries again 1 s later. So it does not return while Redis cannot be reached, unless
// the limiter has rratelimiter.WithFallback. Prefer Wait, which client-go calls for requests.
func (l *Limiter) Accept() {
	for {
		err := l.limiter.Acquire(context.Background(), 1)
		if err == nil {
			return
		}
		slog.Warn("a caller of Accept waits, because no permit could be taken",
			"limiter", l.limiter.Name(), "error", err)
		time.Sleep(time.Second)
	}
}

// Stop has no effect, as in the limiters of client-go.
func (l *Limiter) Stop() {}

// QPS returns the permits per second of the rate in Redis. It returns 0 if there is no rate, or if
// Redis cannot be reached.
func (l *Limiter) QPS() float32 {
	rate, err := l.limiter.Config(context.Background())
	if err != nil {
		return 0
	}
	return float32(float64(rate.Permits) / rate.Interval.Seconds())
}
