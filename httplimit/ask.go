package httplimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// ask.go checks several limits. Either all of them allow the request, or none of them counts it.

// askAll checks limiters of one client in one call. If one call cannot check the limits, or if one
// of them has an invalid configuration, askApart checks them.
func (p *Policy) askAll(ctx *bound, claims []Claim) ([]Answer, error) {
	settles := slices.ContainsFunc(claims, Claim.settles)
	if len(claims) == 1 && !settles { // nothing to give back
		r, err := p.try(ctx, claims[0])
		switch {
		case errors.Is(err, rratelimiter.ErrExceedsRate) && claims[0].Permits == 1:
			return []Answer{refusal(claims[0])}, nil
		case errors.Is(err, rratelimiter.ErrExceedsRate):
			return p.askApart(ctx, claims)
		case err != nil:
			return nil, err
		}
		ctx.answer[0] = Answer{Claim: claims[0], Result: r, Refused: !r.Allowed}
		return ctx.answer[:], nil
	}
	limiters, permits := together(claims)
	if len(claims) == 1 || limiters == nil {
		return p.askApart(ctx, claims)
	}
	var grants []*rratelimiter.Grant
	var results []rratelimiter.Result
	var err error
	if client := limiters[0].Client(); settles {
		grants, results, err = client.TakeAll(ctx, permits, limiters...)
	} else {
		results, err = client.AllowAllN(ctx, permits, limiters...)
	}
	switch {
	case misconfigured(err):
		if slices.ContainsFunc(claims[1:], claims[0].shares) { // the claims may exceed the rate only together
			p.report(ctx, err)
		}
		return p.askApart(ctx, claims)
	case err != nil:
		return nil, err
	}
	answers := make([]Answer, 0, len(claims))
	for i, r := range results {
		if r != (rratelimiter.Result{}) { // a zero Result: the limiter was not checked
			answers = append(answers, Answer{Claim: claims[i], Result: r, Refused: !r.Allowed && r.RetryAfter > 0})
		}
	}
	for i, grant := range grants {
		answers[i].back = wayOf(grant)
		answers[i].bill = p.bill(claims[i], answers[i].back)
	}
	if !results[0].Allowed && !refused(answers) {
		for i := range answers { // the reply does not name the limiter that refused
			answers[i].Refused = true
		}
	}
	return answers, nil
}

// together returns the limiters and permits for one call. It returns nil if one call cannot check
// the claims, or if one takes no permit.
func together(claims []Claim) ([]*rratelimiter.Limiter, []int64) {
	limiters, permits := make([]*rratelimiter.Limiter, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		l, ok := c.Limiter.(*rratelimiter.Limiter)
		if !ok || i > 0 && l.Client() != limiters[0].Client() || c.Permits == 0 {
			return nil, nil
		}
		limiters[i], permits[i] = l, c.Permits
	}
	return limiters, permits
}

// A way gives back n of the permits of an answer. It is nil if the limiter cannot take permits
// back, or granted none.
type way func(ctx context.Context, n int64) error

// wayOf returns the way to give a grant back.
func wayOf(grant *rratelimiter.Grant) way {
	return func(ctx context.Context, n int64) error {
		_, err := grant.Return(ctx, n)
		return err
	}
}

// A releaser is a limiter that can take permits back.
type releaser interface {
	Release(ctx context.Context, n int64) (int64, error)
}

// A peeker is a limiter that tells what it would answer, and takes nothing.
type peeker interface {
	Peek(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// allow checks one limit. The answer has the way to give back the granted permits.
func (p *Policy) allow(ctx context.Context, c Claim) (Answer, error) {
	var r rratelimiter.Result
	var back way
	var err error
	if l, ours := c.Limiter.(*rratelimiter.Limiter); ours && c.Permits > 0 {
		var grant *rratelimiter.Grant
		if grant, r, err = c.takeFrom(ctx, l); grant != nil {
			back = wayOf(grant)
		}
	} else {
		r, err = p.try(ctx, c)
		if l, can := c.Limiter.(releaser); can && r.Allowed && c.Permits > 0 {
			back = func(ctx context.Context, n int64) error {
				_, err := l.Release(ctx, n)
				return err
			}
		}
	}
	a := Answer{Claim: c, Result: r, Refused: !r.Allowed, back: back}
	if err == nil && r.Allowed {
		a.bill = p.bill(c, back)
	}
	return a, err
}

// takeFrom takes the permits of a claim from its limiter. If some may come back after the response,
// also in other processes, the limiter must not answer from its deny cache.
func (c Claim) takeFrom(
	ctx context.Context, l *rratelimiter.Limiter,
) (*rratelimiter.Grant, rratelimiter.Result, error) {
	if !c.settles() || l.DenyCache() == 0 {
		return l.Take(ctx, c.Permits)
	}
	grants, results, err := l.Client().TakeAll(ctx, []int64{c.Permits}, l) // does not use it
	switch {
	case err != nil:
		return nil, rratelimiter.Result{}, err
	case grants == nil:
		return nil, results[0], nil
	}
	return grants[0], results[0], nil
}

// correcting is the maximum time of a call that gives permits back, or charges them.
const correcting = time.Second

// granted holds the answers of limits that were checked in order and allowed the request.
type granted []Answer

// giveBack gives back the permits of all answers that have a way, and updates the answers. After
// ctx ends, it continues in the background for at most the time correcting.
func (g granted) giveBack(ctx context.Context) error {
	undone, calls := make(chan error, len(g)), 0
	for i, a := range g {
		g[i].Allowed = a.Allowed && a.back == nil && a.Permits > 0
		if a.back == nil {
			continue
		}
		g[i].Remaining, g[i].NextAfter, g[i].ResetAfter = a.Remaining+a.Permits, 0, 0
		calls++
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), correcting)
			defer cancel()
			undone <- a.back(ctx, a.Permits)
		}()
	}
	var failed error
	for range calls {
		select {
		case err := <-undone:
			failed = errors.Join(failed, err)
		case <-ctx.Done():
			return errors.Join(failed, ctx.Err())
		}
	}
	return failed
}
