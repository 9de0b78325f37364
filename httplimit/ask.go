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

// together gives the limiters that can be asked at once, and for how much, if there are several and all can.
func together(claims []Claim) ([]*rratelimiter.Limiter, []int64) {
	if len(claims) < 2 {
		return nil, nil
	}
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
	answers := make([]Answer, 0, len(claims))
	var ways []way
	for _, c := range claims {
		r, back, err := allow(ctx, c)
		if err != nil {
			return nil, errors.Join(err, undo(ctx, ways))
		}
		if !r.Allowed {
			err := undo(ctx, ways)
			for i, a := range answers {
				if ways[i] != nil {
					answers[i].Allowed, answers[i].Remaining = false, a.Remaining+a.Permits
				}
			}
			return append(answers, Answer{Claim: c, Result: r, Refused: true}), err
		}
		answers, ways = append(answers, Answer{Claim: c, Result: r}), append(ways, back)
	}
	return answers, nil
}

// A way gives permits back; nil: there is none, so they stay taken when a later limit refuses.
type way func(context.Context) error

// A releaser is a limiter that can take permits back.
type releaser interface {
	Release(ctx context.Context, n int64) (int64, error)
}

// allow asks one limit, and tells how to give back what it took.
func allow(ctx context.Context, c Claim) (rratelimiter.Result, way, error) {
	if l, ok := c.Limiter.(*rratelimiter.Limiter); ok {
		r, back, err := hook.Allow(ctx, l, c.Permits)
		return r.(rratelimiter.Result), back, err
	}
	var back way
	if l, ok := c.Limiter.(releaser); ok {
		back = func(ctx context.Context) error {
			_, err := l.Release(ctx, c.Permits)
			return err
		}
	}
	r, err := c.Limiter.Allow(ctx, c.Permits)
	return r, back, err
}

// undo gives back what was taken. When ctx ends, that goes on for a second, but nobody waits for it.
func undo(ctx context.Context, ways []way) error {
	if len(ways) == 0 {
		return nil
	}
	undone := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		var failed error
		for _, back := range ways {
			if back != nil {
				failed = errors.Join(failed, back(ctx))
			}
		}
		undone <- failed
	}()
	select {
	case err := <-undone:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
