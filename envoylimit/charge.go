package envoylimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// charge.go asks limiters that are not to grant permits: for descriptors of no hits, and for those
// whose hits were used already (postpaid).

// takes reports whether the descriptor takes its permits only if they are free.
func (a *ask) takes() bool { return a.hits > 0 && !a.postpaid }

// A counter is a limiter that can charge permits, and tell whether one is free.
type counter interface {
	Charge(ctx context.Context, n int64) (rratelimiter.Result, error)
	Peek(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// A charge asks the limiters of sums that do not take permits, all at the same time. It allows the
// request if each had a permit free before. All are charged, whatever the others answer.
type charge struct {
	sums    []*sum
	charged atomic.Bool // later calls charge nothing
	answers atomic.Pointer[[]httplimit.Answer]
}

// longest is the maximum time of a charge, which goes on after Envoy has left.
const longest = time.Second

// Allow charges the sums the first time, and asks whether permits are free each time.
func (c *charge) Allow(ctx context.Context, _ int64) (all rratelimiter.Result, err error) {
	charges := !c.charged.Swap(true)
	answers, errs, done := make([]httplimit.Answer, len(c.sums)), make([]error, len(c.sums)), make(chan struct{})
	var calls sync.WaitGroup
	for i, s := range c.sums {
		calls.Go(func() {
			r, err := s.charge(ctx, charges)
			if err != nil {
				err = fmt.Errorf("limit %q, limiter %q: %w", s.label, s.key, err)
			}
			answers[i], errs[i] = httplimit.Answer{Claim: s.claim, Result: r, Refused: !r.Allowed}, err
		})
	}
	go func() {
		calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return all, ctx.Err()
	}
	if err := errors.Join(errs...); err != nil {
		return all, err
	}
	all.Allowed = true
	for _, a := range answers {
		if all.Allowed = all.Allowed && a.Allowed; a.Refused {
			all.RetryAfter = max(all.RetryAfter, a.RetryAfter)
		}
	}
	c.answers.Store(&answers)
	return all, nil
}

// charge asks the limiter of a sum. If it charges, a debt at its bound is no error.
func (s *sum) charge(ctx context.Context, charges bool) (rratelimiter.Result, error) {
	limiter := s.claim.Limiter.(counter)
	if !charges || s.hits == 0 {
		return limiter.Peek(ctx, 1)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer cancel()
	r, err := limiter.Charge(ctx, s.hits)
	if errors.Is(err, rratelimiter.ErrDebtBound) {
		err = nil
	}
	r.NextAfter = max(r.NextAfter, r.RetryAfter) // in debt, what returns next is not free
	return r, err
}

// apart puts the claims of sums that take no permits into one, which is asked first; a claim of no
// limiter if there are none.
func apart(sums ...*sum) (httplimit.Claim, *charge) {
	c := &charge{sums: sums}
	if len(sums) == 0 {
		return httplimit.Claim{}, c
	}
	return httplimit.Claim{Name: sums[0].claim.Name, Limiter: c, Permits: 1}, c
}

// Answers returns the answers of the limiters: Policy.OnDecision gets the common one. It is nil if
// they did not answer.
func (c *charge) Answers() []httplimit.Answer {
	if all := c.answers.Load(); all != nil {
		return *all
	}
	return nil
}

// spread puts the answers of the sums in the place of their common answer.
func (c *charge) spread(d *httplimit.Decision) {
	all := c.Answers()
	if all == nil || len(d.Answers) == 0 || d.Answers[0].Limiter != httplimit.Allower(c) {
		return
	}
	answers := slices.Clone(all)
	later := d.Answers[0].RetryAfter - httplimit.Decision{Answers: answers}.RetryAfter() // Policy.Jitter
	for i := range answers {
		if a := &answers[i]; a.Refused && a.RetryAfter > 0 {
			a.RetryAfter += later
		}
	}
	d.Answers = append(answers, d.Answers[1:]...)
}
