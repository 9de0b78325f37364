package httplimit

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// ask.go checks several limits, so that either all allow or none has counted the request.

// askAll checks limiters of one client in one call. Else it checks in order, and gives back what was granted once a
// limit refuses or fails. An error beside a refusal means that some permits could not be given back.
func (p *Policy) askAll(ctx context.Context, claims []Claim) ([]Answer, error) {
	if len(claims) == 1 { // nothing to give back
		r, err := p.try(ctx, claims[0])
		if err != nil {
			return nil, err
		}
		return []Answer{{Claim: claims[0], Result: r, Refused: !r.Allowed}}, nil
	}
	limiters, permits := together(claims)
	if limiters == nil {
		return p.askInOrder(ctx, claims)
	}
	results, err := limiters[0].Client().AllowAllN(ctx, permits, limiters...)
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, 0, len(claims))
	for i, r := range results {
		if r != (rratelimiter.Result{}) { // else it was not checked
			answers = append(answers, Answer{Claim: claims[i], Result: r, Refused: !r.Allowed && r.RetryAfter > 0})
		}
	}
	if !results[0].Allowed && !refused(answers) {
		for i := range answers { // the reply does not name the limiter that refused
			answers[i].Refused = true
		}
	}
	return answers, nil
}

// together returns the limiters and permits for one call; nil if the claims cannot be checked in one call.
func together(claims []Claim) ([]*rratelimiter.Limiter, []int64) {
	limiters, permits := make([]*rratelimiter.Limiter, len(claims)), make([]int64, len(claims))
	for i, c := range claims {
		l, ok := c.Limiter.(*rratelimiter.Limiter)
		if !ok || i > 0 && l.Client() != limiters[0].Client() {
			return nil, nil
		}
		limiters[i], permits[i] = l, c.Permits
	}
	return limiters, permits
}

func (p *Policy) askInOrder(ctx context.Context, claims []Claim) ([]Answer, error) {
	var g granted
	for _, c := range claims {
		a, back, err := p.allow(ctx, c)
		switch {
		case err != nil:
			return nil, errors.Join(err, g.giveBack(ctx))
		case a.Refused:
			err := g.giveBack(ctx)
			return append(g.answers, a), err
		}
		g.add(a, back)
	}
	return g.answers, nil
}

// A way gives permits back; nil: the limiter cannot take permits back, so they stay taken when a later limit refuses.
type way func(context.Context) error

// A releaser is a limiter that can take permits back.
type releaser interface {
	Release(ctx context.Context, n int64) (int64, error)
}

// allow checks one limit, and returns the way to give back what it granted.
func (p *Policy) allow(ctx context.Context, c Claim) (Answer, way, error) {
	var r rratelimiter.Result
	var back way
	var err error
	switch l := c.Limiter.(type) {
	case *rratelimiter.Limiter:
		var grant *rratelimiter.Grant
		if grant, r, err = l.Take(ctx, c.Permits); grant != nil {
			back = func(ctx context.Context) error {
				_, err := grant.Return(ctx, c.Permits)
				return err
			}
		}
	case releaser:
		back = func(ctx context.Context) error {
			_, err := l.Release(ctx, c.Permits)
			return err
		}
		r, err = p.try(ctx, c)
	default:
		r, err = p.try(ctx, c)
	}
	return Answer{Claim: c, Result: r, Refused: !r.Allowed}, back, err
}

// granted holds the answers of limits that were checked in order and allowed the request, and the ways to give back.
type granted struct {
	answers []Answer
	ways    []way
}

func (g *granted) add(a Answer, back way) {
	g.answers, g.ways = append(g.answers, a), append(g.ways, back)
}

// giveBack gives back what was granted, where there is a way, and updates the answers. After ctx ends it continues in
// the background for at most a second.
func (g *granted) giveBack(ctx context.Context) error {
	if len(g.answers) == 0 {
		return nil
	}
	for i, a := range g.answers {
		if g.ways[i] != nil {
			g.answers[i].Allowed, g.answers[i].Remaining, g.answers[i].ResetAfter = false, a.Remaining+a.Permits, 0
		}
	}
	undone := make(chan error, len(g.ways))
	for _, back := range g.ways {
		go func() {
			if back == nil {
				undone <- nil
				return
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			undone <- back(ctx)
		}()
	}
	var failed error
	for range g.ways {
		select {
		case err := <-undone:
			failed = errors.Join(failed, err)
		case <-ctx.Done():
			return errors.Join(failed, ctx.Err())
		}
	}
	return failed
}
