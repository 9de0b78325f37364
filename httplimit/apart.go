package httplimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter"
)

// apart.go knows how limits are asked one of which is configured wrongly: each by itself, so that the others still hold.

// askApart asks one limit after the other. Those that are configured wrongly fall under the policy's failure alone; the
// error is theirs where nobody else is left to decide, or where the policy fails closed. What was granted is given back once
// one refuses or fails.
func (p *Policy) askApart(ctx context.Context, claims []Claim) ([]Answer, error) {
	var g granted
	var wrong []Claim
	var causes []error
	var places []int // of the wrong ones in the answers
	for i := range claims {
		a, back, err := p.askOne(ctx, &claims[i])
		switch {
		case err != nil && (!misconfigured(err) || p.failure() == FailClosed):
			return nil, errors.Join(append(causes, err, g.giveBack(ctx))...)
		case err != nil:
			causes = append(causes, err)
			if claims[i].local() {
				places = append(places, len(g.answers)+len(wrong))
				wrong = append(wrong, claims[i])
			}
		case a.Refused:
			p.report(ctx, append(causes, g.giveBack(ctx))...)
			return append(g.answers, a), nil
		default:
			g.add(a, back)
		}
	}
	if len(g.answers) == 0 {
		return nil, errors.Join(causes...)
	}
	if p.failure() == FailLocal {
		own, _ := p.local.ask(wrong, p.LocalShare)
		if refused(own) {
			causes = append(causes, g.giveBack(ctx))
		}
		for i, a := range own {
			g.answers = slices.Insert(g.answers, places[i], a)
		}
	}
	p.report(ctx, causes...)
	return g.answers, nil
}

// askOne asks one limit. What is more than a rate that nobody knew is cut to one permit; a limit that does not grant even
// that refuses everything.
func (p *Policy) askOne(ctx context.Context, c *Claim) (Answer, way, error) {
	for {
		a, back, err := allow(ctx, *c)
		if err == nil {
			return a, back, nil
		}
		err = fmt.Errorf("limit %q, key %q: %w", c.Name, c.Key, err)
		if !errors.Is(err, rratelimiter.ErrExceedsRate) {
			return Answer{}, nil, err
		}
		if c.Permits == 1 {
			return Answer{Claim: *c, Refused: true}, nil, nil
		}
		p.report(ctx, err)
		c.Permits = 1
	}
}
