package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
)

// A Grant holds the permits that [Limiter.Take], [Limiter.TakeUpTo] or [Client.TakeAll] took from
// one limiter. It is safe for concurrent use. A nil Grant, that of a refused request, holds no
// permits.
//
// In these cases permits cannot be given back, and return when their interval is over:
//   - The reply of the call was lost, so there is no Grant. (If only ctx ended, and the reply
//     arrives later, the permits are given back in the background.)
//   - The process ended without calling Return. A Grant cannot be stored.
type Grant struct {
	limiter *Limiter
	from    [1]dispatch.Source // Ask.Sources is a slice of it

	mu      sync.Mutex // guards the fields below
	left    int64
	charged int64 // permits that Settle has charged
}

// Take is Allow with a Grant, which can give the permits back: for example when the work does not
// happen, or needs fewer permits. If Result.Allowed is false, the Grant is nil. If ctx ends while
// the call is in flight, the error wraps both ctx.Err() and ErrOutcomeUnknown, and the permits that
// the call takes are given back in the background.
func (l *Limiter) Take(ctx context.Context, n int64) (*Grant, Result, error) {
	g := &Grant{limiter: l, left: n}
	result, err := l.request(ctx, "take from", dispatch.Ask{N: n, Detail: true, Sources: g.from[:]})
	if err != nil || !result.Allowed {
		return nil, result, err
	}
	return g, result, nil
}

// TakeUpTo is AcquireUpTo with a Grant: it takes as many permits as are free now, at most n.
// [Grant.Permits] returns their number. If none are free, the Grant is nil. If ctx ends while the
// call is in flight, the error wraps both ctx.Err() and ErrOutcomeUnknown, and the permits that the
// call takes are given back in the background.
func (l *Limiter) TakeUpTo(ctx context.Context, n int64) (*Grant, error) {
	g := &Grant{limiter: l}
	var err error
	if g.left, err = l.upTo(ctx, "take free permits of", n, g.from[:]); g.left == 0 {
		return nil, err
	}
	return g, err
}

// TakeAll is AllowAllN with a Grant for each limiter: it takes permits[i] of limiters[i], from all
// limiters or from none. Each Grant can be given back separately, in full or in part, and all
// together by [GrantAll.Return]. For example, a call of a language model takes one permit of a
// limit of requests per minute and as many tokens as it can cost, and gives back the tokens that it
// did not use.
//
// The grants and the results are in the order of the limiters. A limiter that is listed twice has a
// Grant at each place. If one limiter refuses, the slice of grants is nil. The results and the
// errors are the same as those of AllowAllN. If ctx ends while a call is in flight, the permits
// that the call takes are given back in the background.
func (c *Client) TakeAll(ctx context.Context, permits []int64, limiters ...*Limiter) (GrantAll, []Result, error) {
	grants := make(GrantAll, len(limiters))
	results, err := c.askAll(ctx, "take all", dispatch.Ask{}, permits, limiters, grants)
	if len(results) == 0 || !results[0].Allowed {
		return nil, results, err
	}
	return grants, results, nil
}

// Permits returns the number of permits that can still be given back with Return. Each call of
// Return lowers it by n, even if fewer permits came back. If Return fails with an error other than
// ErrOutcomeUnknown, the permits that did not come back are added again.
func (g *Grant) Permits() int64 {
	if g == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.left
}

// Return gives back n permits of the grant, at most as many as Permits returns, and returns how
// many came back. Permits that are already free do not come back again: their interval is over, or
// they were freed by Release, Reset, Delete, or SetRate without KeepState. But if this client has
// later grants with the time of this one, Return frees their permits then.
//
// Return takes the permits out of records that this client wrote with the time of this grant. A
// record can hold several grants of the same time. The permits of the other grants become free at
// the same time as before. If the process granted the permits locally (WithFallback), Return frees
// the permits that the process granted last. [Limiter.Release] removes the oldest permits of all
// clients instead.
//
// If the call that took the permits was retried, the network may still deliver its first attempt.
// After Return that attempt takes all permits of the call again, if they are free, for one interval
// and for no caller.
//
// If n is 0 or the grant is nil, Return does nothing. If n is negative, the error is
// ErrInvalidPermits. If the reply is lost, the error is ErrOutcomeUnknown: the permits may have
// come back, and no later Return gives them back.
func (g *Grant) Return(ctx context.Context, n int64) (int64, error) {
	if g == nil {
		return 0, nil
	}
	if n < 0 {
		return 0, wrap(returning, g.limiter.name, fmt.Errorf("%w (%d)", ErrInvalidPermits, n))
	}
	g.mu.Lock()
	n = min(n, g.left)
	g.left -= n
	g.mu.Unlock()
	return g.giveBack(ctx, n)
}

// returning is the operation of giveBack, in its errors.
const returning = "return to"

// giveBack gives back n permits, which no longer count as left.
func (g *Grant) giveBack(ctx context.Context, n int64) (int64, error) {
	if n == 0 {
		return 0, nil
	}
	returned, err := g.limiter.core.Undo(ctx, n, g.from[0])
	if err != nil && !errors.Is(err, ErrOutcomeUnknown) {
		g.mu.Lock()
		g.left += n - returned
		g.mu.Unlock()
	}
	return returned, wrap(returning, g.limiter.name, err)
}

// Settle makes the permits of the grant those that were used: what was taken and not used comes
// back, as by [Grant.Return], and what was used beyond it is charged, as by [Limiter.Charge]. For
// example, a call of a language model takes an estimate of its tokens, and settles when the answer
// has been read.
//
// Settle can be called several times, each time with all that was used so far: it gives back or
// charges the difference. Permits that Return has given back before do not count as taken. Permits
// that were charged do not come back. Once the interval of the grant is over, nothing comes back,
// and what is charged counts from then on.
//
// If used is negative, or positive for a nil grant, the error is ErrInvalidPermits. The other
// errors are those of Return or of Charge. With ErrOutcomeUnknown or ErrDebtBound no later Settle
// charges these permits again; after another error it does.
func (g *Grant) Settle(ctx context.Context, used int64) error {
	const operation = "settle"
	if g == nil {
		if used != 0 {
			return fmt.Errorf("%s a nil grant: %w (%d)", operation, ErrInvalidPermits, used)
		}
		return nil
	}
	if used < 0 {
		return wrap(operation, g.limiter.name, fmt.Errorf("%w (%d)", ErrInvalidPermits, used))
	}
	g.mu.Lock()
	more := used - g.left - g.charged
	back := min(g.left, max(0, -more))
	g.left -= back
	g.charged += max(0, more)
	g.mu.Unlock()
	if more <= 0 {
		_, err := g.giveBack(ctx, back)
		return err
	}
	_, err := g.limiter.Charge(ctx, more)
	if err != nil && !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrDebtBound) {
		g.mu.Lock()
		g.charged -= more
		g.mu.Unlock()
	}
	return err
}

// A GrantAll holds the grants of several limiters, such as those of [Client.TakeAll].
type GrantAll []*Grant

// Return gives back all permits of all grants, by calls that run at the same time, and returns how
// many came back, of all limiters together. The error joins those of all calls. See [Grant.Return].
func (all GrantAll) Return(ctx context.Context) (int64, error) {
	var returned atomic.Int64
	err := all.each(func(_ int, g *Grant) error {
		n, err := g.Return(ctx, g.Permits())
		returned.Add(n)
		return err
	})
	return returned.Load(), err
}

// Settle makes the permits of each grant those that were used, used[i] of the grant i, by calls
// that run at the same time. The error joins those of all calls. See [Grant.Settle]. The slices
// must have the same length, else the error is ErrInvalidPermits and nothing is settled.
func (all GrantAll) Settle(ctx context.Context, used []int64) error {
	if len(used) != len(all) {
		return fmt.Errorf("settle all: %w: %d numbers for %d grants", ErrInvalidPermits, len(used), len(all))
	}
	return all.each(func(i int, g *Grant) error { return g.Settle(ctx, used[i]) })
}

// each makes the calls of all grants at the same time, and joins their errors.
func (all GrantAll) each(call func(i int, g *Grant) error) error {
	errs := make([]error, len(all))
	var calls sync.WaitGroup
	for i, g := range all {
		calls.Go(func() { errs[i] = call(i, g) })
	}
	calls.Wait()
	return errors.Join(errs...)
}
