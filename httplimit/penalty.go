package httplimit

import (
	"context"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// penalty.go refuses a key for a time after its limit has refused it.

// Penalty returns the same limit, but a key that it refuses stays refused until the time is over,
// in all processes. The penalty begins with the first refusal. Requests during the penalty take no
// permits and do not extend it. RetryAfter is what remains of it.
//
// The penalty of a key is the permit of another limiter, "ratelimit:KEY:NAME:penalty", with a rate
// of one permit per penalty. "rrl reset" of this limiter ends the penalty. Java services do not
// know it. One more call for each request asks this limiter, before all limits, so a limit with a
// penalty costs two calls. If the call that begins a penalty fails, Policy.OnError is called, and
// the next refusal begins the penalty. With FailLocal, a process that decides by itself imposes
// none.
//
// Penalty panics if the time is less than a millisecond.
func (l Limit) Penalty(client *rratelimiter.Client, lasts time.Duration) Limit {
	rate := rratelimiter.Rate{Permits: 1, Interval: lasts}
	mustBeValid(Named(client, "penalty", "", rate))
	known := &recent{}
	return func(r *http.Request) Claim {
		claim := l(r)
		if !claim.empty() {
			claim.penalty, _ = named(client, claim.Name+":penalty", claim.Key, rate, known).Limiter.(*rratelimiter.Limiter)
		}
		return claim
	}
}

// penalized returns the answer of a claim whose key has a penalty; none if no key has one.
func penalized(ctx context.Context, claims []Claim) ([]Answer, error) {
	for _, c := range claims {
		if c.penalty == nil {
			continue
		}
		r, err := c.penalty.Peek(ctx, 1)
		if err != nil {
			return nil, err
		}
		if !r.Allowed {
			r.Limit = c.Rate.Permits
			return []Answer{{Claim: c, Result: r, Refused: true}}, nil
		}
	}
	return nil, nil
}

// penalize begins the penalties of limits that have refused.
func (p *Policy) penalize(ctx context.Context, answers []Answer) {
	for i := range answers {
		a := &answers[i]
		if a.penalty == nil || !a.Refused || a.RetryAfter == 0 { // 0: the rate is 0, nobody has exceeded it
			continue
		}
		r, err := a.penalty.Allow(ctx, 1)
		if err != nil {
			p.tell(ctx, err)
			continue
		}
		if r.Allowed { // otherwise another request has begun it
			r.RetryAfter = r.ResetAfter
		}
		a.RetryAfter = max(a.RetryAfter, r.RetryAfter)
	}
}
