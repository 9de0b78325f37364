package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
)

// A Grant is what [Limiter.Take], [Limiter.TakeUpTo], or [Client.TakeAll] from one limiter, took. Its methods may be called
// at the same time.
//
// Some permits cannot be given back. They return when their interval is over:
//   - those of a call without a Grant, since its reply was lost (ErrOutcomeUnknown);
//   - those of a process that ended without Return: a Grant cannot be stored.
type Grant struct {
	limiter *Limiter
	from    dispatch.Source

	mu   sync.Mutex // guards left
	left int64
}

// Take is Allow with a handle, to give back what it took: for example when the work that the permits were for does not
// happen, or costs less than it could. Where Result.Allowed is false, the Grant is nil. If ctx ends while the call is in
// flight, the error is ErrOutcomeUnknown, too, and what the call is granted is given back in the background.
func (l *Limiter) Take(ctx context.Context, n int64) (*Grant, Result, error) {
	g := &Grant{limiter: l, left: n}
	result, err := l.request(ctx, "take from", dispatch.Ask{N: n, Detail: true, Source: &g.from})
	if err != nil || !result.Allowed {
		return nil, result, err
	}
	return g, result, nil
}

// TakeUpTo is AcquireUpTo with a handle: it takes as many permits as are free now, at most n. [Grant.Permits] returns how
// many. If none are free, the Grant is nil. If ctx ends while the call is in flight, the error is ErrOutcomeUnknown, too,
// and what the call is granted is given back in the background.
func (l *Limiter) TakeUpTo(ctx context.Context, n int64) (*Grant, error) {
	g := &Grant{limiter: l}
	var err error
	if g.left, err = l.upTo(ctx, "take up to from", n, &g.from); g.left == 0 {
		return nil, err
	}
	return g, err
}

// TakeAll is AllowAllN with a handle for each limiter: it takes permits[i] of limiters[i], from all of them or from none.
// Each Grant is given back by itself, in full or in part. For example, a call of a language model takes one of its
// requests per minute and as many tokens as it can cost, and gives back the tokens that it did not use.
//
// The grants and the results are in the order of the limiters. A limiter that is listed twice has a Grant at each place.
// If one limiter refuses, the grants are nil, and the results are those of AllowAllN. So are the errors, with one
// difference: if ctx ends while a call is in flight, what the call is granted is given back in the background.
func (c *Client) TakeAll(ctx context.Context, permits []int64, limiters ...*Limiter) ([]*Grant, []Result, error) {
	grants := make([]*Grant, len(limiters))
	results, err := c.askAll(ctx, "take all", permits, limiters, grants)
	if len(results) == 0 || !results[0].Allowed {
		return nil, results, err
	}
	return grants, results, nil
}

// Permits returns how many permits were granted and not given back, whether or not their interval is over.
func (g *Grant) Permits() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left
}

// Return gives n permits of the grant back, at most those of Permits, and returns how many came back. Permits that are
// free already do not come back again: those whose interval is over, and those that Release, Reset, Delete, or SetRate
// without KeepState have freed. Unlike [Limiter.Release], which gives back the oldest permits of anybody, it gives back
// permits that were granted at the time of this grant, so the others return when they would have. n = 0 does nothing;
// n < 0 is ErrInvalidPermits. If the reply is lost the error is ErrOutcomeUnknown: the permits may have come back, and
// are not given back again.
func (g *Grant) Return(ctx context.Context, n int64) (int64, error) {
	const operation = "return to"
	if n < 0 {
		return 0, wrap(operation, g.limiter.name, fmt.Errorf("%w: %d", ErrInvalidPermits, n))
	}
	g.mu.Lock()
	n = min(n, g.left)
	g.left -= n
	g.mu.Unlock()
	if n == 0 {
		return 0, nil
	}
	returned, err := g.limiter.core.Undo(ctx, n, g.from)
	if err != nil && !errors.Is(err, ErrOutcomeUnknown) {
		g.mu.Lock()
		g.left += n - returned
		g.mu.Unlock()
	}
	return returned, wrap(operation, g.limiter.name, err)
}

// Health is what this process knows, without a call, about reaching the Redis node of a limiter.
type Health struct {
	Away    bool          // the node cannot be reached, or cannot grant permits (see WithFallback)
	Decides bool          // this process decides in its place (WithFallback)
	Silence time.Duration // for how long the last call but those of AllowAll and AcquireUpTo has had no reply; 0: it has one
}

// Health returns the health of the limiter's node. It does not block, and is cheap enough for each request. While the node
// is away, a probe is sent in the background now and then, as long as Health is called.
func (l *Limiter) Health() Health { return Health(l.core.Health()) }
