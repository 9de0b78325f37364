package httplimit

import (
	"context"
	"net/http"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/response"
)

// after.go corrects the permits that a request takes, after its response.

// CountIf returns the same limit, but a request counts only if f returns true for its response: for
// example only failed logins. Each request takes its permits before it is handled, so the requests
// that are handled at the same time cannot exceed the rate. If f returns false, the permits are
// given back after the response, in the background.
//
// f gets the status of the response, and the header after the handler has returned, with fields
// that were set too late to be sent. The status is 500 if the handler panics before it writes, and
// 101 if it takes over the connection. f must return quickly, and may be called concurrently.
// [Guard.Middleware] calls f, and so do ginlimit, echolimit and fiberlimit; after [Guard.Check],
// [Guard.Admit] and [Guard.Decide], [Policy.Settle] does.
//
// Permits return only when their interval is over if the response takes longer, if the process ends
// first, if Redis does not reply within 1 s (Policy.OnError gets the error), if this process
// granted them (FailLocal), and if the limiter has no method Release, as in package classic. A deny
// cache then has penalties only. With [Limit.Penalty], it cannot be combined with [Shared].
func (l Limit) CountIf(f func(status int, h http.Header) bool) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.countIf = f
		return claim
	}
}

// CostAfter returns the same limit for requests whose cost in permits is known only after the
// response: for example the tokens of a language model. f is called as in CountIf, and returns the
// cost. If f is nil, the cost is what the handler has told by [Charge]. If f returns a number below
// 0, it is the same, but at least what the request took before.
//
// The request took its permits (one, or the result of Cost) before. If the cost is lower, the
// difference is given back as in CountIf, but not what Charge has charged. If it is higher, the
// difference is charged, free or not, and the response is not delayed: until this debt is paid
// back, later requests wait or are refused (see rratelimiter.Limiter.Charge and
// rratelimiter.WithMaxDebt). If Cost returns 0, the request takes nothing before, passes if a
// permit is free, and has its limits checked one by one.
//
// The limiter must have the method Charge, as those of the packages rratelimiter and classic have,
// or each check fails with ErrInvalidOption. With [Limit.Penalty], it cannot be combined with
// [Shared]. docs/options.md has FailLocal and other pairs.
func (l Limit) CostAfter(f func(status int, h http.Header) int64) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.after, claim.cost = true, f
		return claim
	}
}

// settles reports whether the number of permits of a claim depends on the response.
func (c Claim) settles() bool { return c.countIf != nil || c.after }

// final returns the cost of the claim's request in permits, after its response. If it is not known,
// the cost is what the handler has told, but at least n.
func (c Claim) final(status int, h http.Header) (n int64, known bool) {
	switch {
	case c.countIf != nil && !c.countIf(status, h):
		return 0, true
	case !c.after:
		return c.Permits, true
	case c.cost == nil:
		return 0, false
	}
	if n = c.cost(status, h); n < 0 {
		return c.Permits, false
	}
	return n, true
}

// Settles reports whether the request took permits whose number depends on its response. If it
// returns false, [Policy.Settle] has no effect, and need not be called.
func (d Decision) Settles() bool {
	return slices.ContainsFunc(d.Answers, func(a Answer) bool { return a.bill != nil && a.Allowed })
}

// Settle corrects the permits that a request took, after its response: see [Limit.CountIf] and
// [Limit.CostAfter]. [Guard.Middleware] calls Settle. After [Guard.Admit], [Guard.Decide] and
// [Policy.Decide], call Settle once for each Decision that let a request pass, also if its handler
// panics. status is the one that is sent: a handler can return an error that the router turns into
// a response later. Settle calls the functions of the limits and returns. It then corrects the
// permits in the background. Each call has at most 1 s, even if ctx ends.
func (p *Policy) Settle(ctx context.Context, d Decision, status int, h http.Header) {
	for _, a := range d.Answers {
		if a.bill != nil && a.Allowed {
			n, known := a.final(status, h)
			a.bill.settle(ctx, n, known)
		}
	}
}

// serve handles a request, and corrects its permits after the response.
func serve(p *Policy, d Decision, next http.Handler, w http.ResponseWriter, r *http.Request) {
	seen := &response.Recorder{ResponseWriter: w}
	status := http.StatusInternalServerError // if next panics
	defer func() {
		if seen.Status != 0 {
			status = seen.Status
		}
		p.Settle(r.Context(), d, status, w.Header())
	}()
	inner := r
	if ctx := NewContext(r.Context(), d); ctx != r.Context() {
		inner = r.WithContext(ctx)
		defer func() { r.Pattern = inner.Pattern }() // set by a ServeMux, for handlers outside
	}
	next.ServeHTTP(seen, inner)
	status = http.StatusOK
}
