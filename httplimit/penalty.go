package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/recent"
)

// penalty.go refuses a key for a time after its limit has refused one of its requests in the end.
// Policy.check is the only place that begins penalties.

// Penalty returns the same limit, but a key is refused for a time, in all processes, after the
// limit has refused one of its requests in the end: when the request may wait no longer
// (Policy.Wait), and because of permits that count. Requests during the penalty take no permits, do
// not wait, and do not extend it. RetryAfter is the longer of two times: what remains of the
// penalty, and until the limit has the permits. So a client that obeys it is not penalized again.
//
// The penalty of a key is the permit of another limiter, "ratelimit:KEY:NAME:penalty", with a rate
// of one permit per penalty. "rrl reset" of this limiter ends the penalty. Java services do not
// know it. One more call for each request asks it, before all limits. If one call cannot check all
// limits (see the package), put the limit with the penalty last: a request takes the permits of the
// limits before it for a moment, even if a later limit refuses it.
//
// With [Limit.CountIf] or [Limit.CostAfter], it cannot be combined with [Shared].
// docs/options.md#of-a-guard-limitpenalty-beside-the-rest says what it does beside other options.
// Penalty panics if the time is less than a millisecond.
func (l Limit) Penalty(client *rratelimiter.Client, lasts time.Duration) Limit {
	rate := rratelimiter.Rate{Permits: 1, Interval: lasts}
	mustBeValid(Named(client, "penalty", "", rate))
	type limitKey struct{ name, key string }
	known := &recent.Values[limitKey, penalty]{}
	return func(r *http.Request) Claim {
		claim := l(r)
		if !claim.unlimited() {
			claim.penalty = known.Get(limitKey{claim.Name, claim.Key}, func() *penalty {
				return newPenalty(client, rate, claim)
			})
		}
		return claim
	}
}

// A penalty is that of one key.
type penalty struct {
	client  *rratelimiter.Client
	rate    rratelimiter.Rate // one permit per penalty
	cache   []rratelimiter.LimiterOption
	limiter *rratelimiter.Limiter // without a rate of its own: Redis has one once a penalty has begun

	mu sync.Mutex // guards the fields below
	// what remained of the penalty when it was last asked for; 0: there was none
	left time.Duration
	free int64 // permits that the limit is known to have since then
}

func newPenalty(client *rratelimiter.Client, rate rratelimiter.Rate, c Claim) *penalty {
	p := &penalty{client: client, rate: rate}
	if l, ours := c.Limiter.(*rratelimiter.Limiter); ours && l.DenyCache() > 0 {
		p.cache = []rratelimiter.LimiterOption{rratelimiter.WithDenyCache(l.DenyCache())}
	}
	p.limiter = client.RateLimiter(limiterName(c.Name+":penalty", c.Key), p.cache...)
	return p
}

// penalized returns the answers of the claims whose keys have a penalty; none if no key has one.
func (p *Policy) penalized(ctx context.Context, claims []Claim) (answers []Answer, err error) {
	for _, c := range claims {
		if c.penalty == nil || c.decidesLocally() {
			continue
		}
		if c.penalty.limiter.Health().Away {
			return nil, fmt.Errorf("limit %q: %w", c.Name, rratelimiter.ErrUnavailable)
		}
		r, err := c.penalty.limiter.Peek(ctx, 1)
		switch {
		case errors.Is(err, rratelimiter.ErrNotInitialized), err == nil && r.Allowed:
			c.penalty.lasts(0)
		case err != nil:
			return nil, err
		default:
			r.Limit, r.RetryAfter = c.Rate.Permits, max(r.RetryAfter, p.wait(ctx, c, r.RetryAfter))
			answers = append(answers, Answer{Claim: c, Result: r, Refused: true})
		}
	}
	return answers, nil
}

// decidesLocally reports whether the process decides on the claim while Redis is away.
func (c Claim) decidesLocally() bool {
	l, ours := c.Limiter.(*rratelimiter.Limiter)
	return ours && l.Health().Decides || c.penalty.limiter.Health().Decides
}

// wait returns the time until the limit of a penalized claim has its permits. left is what remains
// of the penalty.
func (p *Policy) wait(ctx context.Context, c Claim, left time.Duration) time.Duration {
	l, can := c.Limiter.(peeker)
	if free := c.penalty.lasts(left); !can || c.needs() <= free {
		return 0
	}
	r, err := l.Peek(ctx, c.needs())
	if errors.Is(err, rratelimiter.ErrExceedsRate) && c.Permits > 1 {
		r, err = l.Peek(ctx, 1) // as askOne asks for one permit then
	}
	switch {
	case err != nil:
		p.tell(ctx, err)
	case r.Allowed:
		c.penalty.has(c.needs())
	}
	return r.RetryAfter
}

// lasts notes what remains of the penalty, and returns how many permits the limit is known to have:
// none if the penalty is another one.
func (p *penalty) lasts(left time.Duration) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if left == 0 || left > p.left {
		p.free = 0
	}
	p.left = left
	return p.free
}

// has notes that the limit has permits. Nobody takes them during the penalty.
func (p *penalty) has(permits int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = max(p.free, permits)
}

// penalize begins the penalties of limits that have refused a request in the end.
func (p *Policy) penalize(ctx context.Context, answers []Answer) {
	if !slices.ContainsFunc(answers, func(a Answer) bool { return a.Refused && a.penalty != nil }) {
		return
	}
	bounded := p.bounded(ctx)
	defer bounded.end()
	for i := range answers {
		a := &answers[i]
		// a RetryAfter of 0: the rate is 0, nobody has exceeded it
		if a.penalty == nil || !a.Refused || a.decidesLocally() || a.RetryAfter == 0 {
			continue
		}
		left, err := a.begin(bounded)
		if err != nil {
			p.tell(ctx, err)
		}
		a.RetryAfter = max(a.RetryAfter, left)
	}
}

// begin begins the penalty of a claim that was refused, if what counted exceeds the limit. It
// returns what remains of the penalty.
func (c Claim) begin(ctx context.Context) (time.Duration, error) {
	if counted := c.counted(); counted != nil {
		if r, err := counted.Peek(ctx, c.needs()); err != nil || r.Allowed {
			return 0, err
		}
	}
	own := Named(c.penalty.client, c.Name+":penalty", c.Key, c.penalty.rate, c.penalty.cache...)
	r, err := own.Limiter.Allow(ctx, 1)
	if r.Allowed { // otherwise another request has begun it
		return r.ResetAfter, err
	}
	return r.RetryAfter, err
}

// counted returns the limiter that has what counted of a limit whose permits can be given back
// after the response; nil if the limit has no penalty, or if all that it grants counts.
func (c Claim) counted() *rratelimiter.Limiter {
	if c.penalty == nil || !c.returns() {
		return nil
	}
	var opts []rratelimiter.LimiterOption
	if l, ours := c.Limiter.(*rratelimiter.Limiter); ours {
		opts = append(opts, rratelimiter.WithMaxDebt(l.MaxDebt()))
	}
	l, _ := Named(c.penalty.client, c.Name+":counted", c.Key, c.Rate, opts...).Limiter.(*rratelimiter.Limiter)
	return l
}

// countForPenalty tells the penalty of the limit that a request counts n permits: as many as the
// request took if they are free, and what was charged beyond them in any case.
func (c Claim) countForPenalty(ctx context.Context, n int64) error {
	counted := c.counted()
	if counted == nil || n == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), correcting)
	defer cancel()
	var errs [2]error
	if took := min(n, c.Permits); took > 0 {
		_, errs[0] = counted.AcquireUpTo(bounded, took)
	}
	if n > c.Permits {
		_, errs[1] = counted.Charge(bounded, n-c.Permits)
	}
	return errors.Join(errs[:]...)
}

// returns reports whether permits of the claim can be given back after the response.
func (c Claim) returns() bool {
	_, can := c.Limiter.(releaser)
	return can && c.settles()
}

// invalid returns what is wrong with the options of a claim; nil if nothing is.
func (c Claim) invalid() error {
	if _, can := c.Limiter.(charger); c.after && !can {
		return fmt.Errorf("limit %q: %w: CostAfter needs a limiter with the method Charge", c.Name, rratelimiter.ErrInvalidOption)
	}
	if c.penalty == nil || !c.returns() || c.known() {
		return nil
	}
	return fmt.Errorf("limit %q: %w: with CountIf or CostAfter, a penalty needs the rate of the limit: "+
		"use Per or PerFunc", c.Name, rratelimiter.ErrInvalidOption)
}

// failing fails each check with an error.
type failing struct{ error }

func (f failing) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{}, f.error
}
