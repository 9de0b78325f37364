package httplimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// ask.go knows how several limits are asked, so that either all allow or none has counted the request.

// askAll asks at once where it can: limiters of one client. Else it asks in order, and gives back what it took once one
// refuses or fails. An error beside a refusal is that some of it could not be given
// back.
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
	for _, c := range claims {
		r, err := c.Limiter.Allow(ctx, c.Permits)
		if err != nil {
			return nil, errors.Join(err, undo(ctx, answers))
		}
		if !r.Allowed {
			err := undo(ctx, answers)
			for i, a := range answers {
				if _, ok := a.Limiter.(releaser); ok {
					answers[i].Allowed, answers[i].Remaining = false, a.Remaining+a.Permits
				}
			}
			return append(answers, Answer{Claim: c, Result: r, Refused: true}), err
		}
		answers = append(answers, Answer{Claim: c, Result: r})
	}
	return answers, nil
}

// A releaser is a limiter that can take permits back. What others granted stays taken when a later limit refuses.
type releaser interface {
	Release(ctx context.Context, n int64) (int64, error)
}

// undo gives back what was taken. When ctx ends, that goes on for a second, but nobody waits for it.
func undo(ctx context.Context, answers []Answer) error {
	if len(answers) == 0 {
		return nil
	}
	undone := make(chan error, 1)
	answers = slices.Clone(answers) // the caller's may change before all is undone
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		var failed error
		for _, a := range answers {
			if l, ok := a.Limiter.(releaser); ok {
				_, err := l.Release(ctx, a.Permits)
				failed = errors.Join(failed, err)
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
