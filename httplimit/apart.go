package httplimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter"
)

// apart.go checks limits one by one. If one of them has an invalid configuration, the others stay
// in force.

// askApart checks one limit after the other. It calls a limit again only after an error, so no
// limit grants twice. If a limit has an invalid configuration, the policy's failure mode decides
// for this limit only. askApart returns the error of this limit if no other limit can decide, or if
// the failure mode is FailClosed. If a limit refuses or fails, the granted permits are given back.
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
			if claims[i].known() {
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

// refusal is the answer of a limit whose rate is 0.
func refusal(c Claim) Answer { return Answer{Claim: c, Refused: true} }

// askOne checks one limit. If a claim without a known Rate needs more permits than the rate, it is
// reduced to one permit. If even one permit exceeds what the limit can grant, the limit refuses the
// request.
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
			return refusal(*c), nil
		}
		p.report(ctx, err)
		c.Permits = 1
	}
}
