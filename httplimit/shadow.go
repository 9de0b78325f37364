package httplimit

import (
	"context"
	"net/http"
	"slices"
)

// shadow.go checks limits that refuse no request.

// Shadow returns the same limit, but it refuses no request, to see its effect before it is in
// force. The limit takes permits, and is checked after the other limits, by one more call, for the
// requests that these let pass. If it refuses a request, the outcome is [Shadowed], and
// Policy.OnDeny is called. Such a limit has no header fields. If it cannot be checked, requests
// pass, and Policy.OnError is called. Its name must differ from those of the other limits, because
// limits with one name and key share a limiter. With [Limit.Penalty], penalties begin, and would be
// in force in a process in which the limit is not in shadow. [Policy.Shadow] is for all limits at
// once.
func (l Limit) Shadow() Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.shadow = true
		return claim
	}
}

// split returns the claims that can refuse the request, and the others. With Policy.Shadow, none
// can, and all are checked alike.
func (p *Policy) split(claims []Claim) (enforced, shadowed []Claim) {
	first := slices.IndexFunc(claims, func(c Claim) bool { return c.shadow })
	if p.Shadow || first < 0 {
		return claims, nil
	}
	enforced = slices.Clone(claims[:first])
	for _, c := range claims[first:] {
		if c.shadow {
			shadowed = append(shadowed, c)
		} else {
			enforced = append(enforced, c)
		}
	}
	return enforced, shadowed
}

// shadow checks limits that cannot refuse the request, which passes.
func (p *Policy) shadow(ctx context.Context, claims []Claim, d *Decision) {
	answers, err := p.check(ctx, claims, false)
	d.Answers = append(d.Answers, answers...)
	switch alone := d.Outcome == Unlimited; { // no other limit applies to the request
	case err != nil && alone:
		d.Err, d.Outcome = err, FailedOpen
		if ctx.Err() != nil {
			d.Outcome = Gone
		}
	case err != nil && ctx.Err() != nil:
	case misconfigured(err):
		p.report(ctx, err)
	case err != nil:
		p.tell(ctx, err)
	case d.Outcome == AllowedLocally && refused(answers):
		d.Outcome = ShadowedLocally
	case refused(answers):
		d.Outcome = Shadowed
	case alone:
		d.Outcome = Allowed
	}
}
