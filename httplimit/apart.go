package httplimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter"
)

// apart.go checks limits one by one where one has an invalid configuration, so that the others still hold.

// askApart checks one limit after the other. The policy's failure mode decides for a limit with an invalid
// configuration alone; askApart returns the error of that limit if no other limit is left to decide, or if the policy
// fails closed. Granted permits are given back once a limit refuses or fails.
func (p *Policy) askApart(ctx context.Context, claims []Claim) ([]Answer, error) {
	var g granted
	var wrong []Claim
	var causes []error
	var places []int // indexes in the answers of the claims in wrong
	for i := range claims {
		a, err := p.askOne(ctx, &claims[i])
		switch {
		case err != nil && (!misconfigured(err) || p.failure() == FailClosed):
			return nil, errors.Join(append(causes, err, g.giveBack(ctx))...)
		case err != nil:
			causes = append(causes, err)
			if claims[i].local() {
				places = append(places, len(g)+len(wrong))
				wrong = append(wrong, claims[i])
			}
		case a.Refused:
			p.report(ctx, append(causes, g.giveBack(ctx))...)
			return append(g, a), nil
		default:
			g = append(g, a)
		}
	}
	if len(g) == 0 {
		return nil, errors.Join(causes...)
	}
	if p.failure() == FailLocal {
		own, _ := p.local.ask(wrong, p.LocalShare)
		if refused(own) {
			causes = append(causes, g.giveBack(ctx))
		}
		for i, a := range own {
			g = slices.Insert(g, places[i], a)
		}
	}
	p.report(ctx, causes...)
	return g, nil
}

// askOne checks one limit. A claim for more permits than a rate that was not known is cut to one permit; a limit that
// does not grant even that refuses the request.
func (p *Policy) askOne(ctx context.Context, c *Claim) (Answer, error) {
	for {
		a, err := p.allow(ctx, *c)
		if err == nil {
			return a, nil
		}
		err = fmt.Errorf("limit %q, key %q: %w", c.Name, c.Key, err)
		if !errors.Is(err, rratelimiter.ErrExceedsRate) {
			return Answer{}, err
		}
		if c.Permits == 1 {
			return Answer{Claim: *c, Refused: true}, nil
		}
		p.report(ctx, err)
		c.Permits = 1
	}
}
