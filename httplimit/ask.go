package httplimit

import (
	"context"
	"errors"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/hook"
)

// ask.go knows how several limits are asked, so that either all allow or none has counted the request.

// askAll asks at once where it can: limiters of one client. Else it asks in order, and gives back what it took once one
// refuses or fails. An error beside a refusal is that some of it could not be given back.
func askAll(ctx context.Context, claims []Claim) ([]Answer, error) {
	if len(claims) == 1 { // nothing can have to go back
		r, err := claims[0].Limiter.Allow(ctx, claims[0].Permits)
		if err != nil {
			return nil, err
		}
		return []Answer{{Claim: claims[0], Result: r, Refused: !r.Allowed}}, nil
	}
	limiters, permits := together(claims)
	if limiters == nil {
		return askInOrder(ctx, claims)
	}
	results, err := limiters[0].Client().AllowAllN(ctx, permits, limiters...)
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, 0, len(claims))
	for i, r := range results {
		if r != (rratelimiter.Result{}) { // else it was not asked
			answers = append(answers, Answer{Claim: claims[i], Result: r, Refused: !r.Allowed && r.RetryAfter > 0})
		}
	}
	if !results[0].Allowed && !refused(answers) {
		for i := range answers { // nobody says who it was
			answers[i].Refused = true
		}
	}
	return answers, nil
}

// together gives the limiters that can be asked at once, and for how much, if all can.
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

func askInOrder(ctx context.Context, claims []Claim) ([]Answer, error) {
	var g granted
	for _, c := range claims {
		a, back, err := allow(ctx, c)
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

// A way gives permits back; nil: there is none, so they stay taken when a later limit refuses.
type way func(context.Context) error

// A releaser is a limiter that can take permits back.
type releaser interface {
	Release(ctx context.Context, n int64) (int64, error)
}

// allow asks one limit, and tells how to give back what it took.
func allow(ctx context.Context, c Claim) (Answer, way, error) {
	var r rratelimiter.Result
	var back way
	var err error
	switch l := c.Limiter.(type) {
	case *rratelimiter.Limiter:
		var result any
		result, back, err = hook.Allow(ctx, l, c.Permits)
		r = result.(rratelimiter.Result)
	case releaser:
		back = func(ctx context.Context) error {
			_, err := l.Release(ctx, c.Permits)
			return err
		}
		r, err = c.Limiter.Allow(ctx, c.Permits)
	default:
		r, err = l.Allow(ctx, c.Permits)
	}
	return Answer{Claim: c, Result: r, Refused: !r.Allowed}, back, err
}

// granted is what limits granted that are asked one after the other, and how it goes back.
type granted struct {
	answers []Answer
	ways    []way
}

func (g *granted) add(a Answer, back way) {
	g.answers, g.ways = append(g.answers, a), append(g.ways, back)
}

// giveBack gives back what was granted, as far as there is a way, and makes the answers say so. When ctx ends, that goes on for
// a second, but nobody waits for it.
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
