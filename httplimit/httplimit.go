// Package httplimit guards HTTP handlers with rate limits for each client address, user, route, or any other part of a
// request. A refused request gets the response 429 Too Many Requests with the time until a retry.
//
//	addr := httplimit.ClientAddr{Trusted: proxies}
//	guard := httplimit.New(
//		httplimit.Per(client, "1s", rratelimiter.PerSecond(10), httplimit.Join(addr.Key, httplimit.Path)),
//		httplimit.Per(client, "1m", rratelimiter.PerMinute(200), httplimit.Join(addr.Key, httplimit.Path)),
//	)
//	guard.Skip = []httplimit.Rule{addr.Private, httplimit.Paths("/healthz")}
//	http.ListenAndServe(":8080", guard.Middleware(mux))
//
// A [Limit] returns the [Claim] of a request: the permits that it takes and the limiter that grants them. A request passes
// if all its limits allow it; if one refuses, the request takes nothing from the others. Any algorithm that implements
// [Allower] can decide.
//
// Limits are checked in one call if they are limiters of one [rratelimiter.Client] and, on a cluster, have names in one
// slot, which the names made by [Per] do not have. Else they are checked in their order, and permits are given back once
// one refuses: until then other requests may be refused. Algorithms that cannot take permits back, as those of the
// package classic, keep them. So the narrowest limit, which refuses most requests, should come first: those behind it are
// then not checked.
//
// A [Policy] decides what happens around the limits: the zero Policy lets requests pass when Redis does not reply within
// 100 ms, and counts them. It does not depend on HTTP.
//
// A [Transport] paces the requests that a program sends.
//
// In frameworks whose chain must be stopped explicitly, use [Guard.Check] in place of [Guard.Middleware]:
//
//	if !guard.Check(c.Writer, c.Request) {
//		c.Abort()
//	}
//
// # Which to use
//
//   - Limits: [Per] has one limiter for each key, [PerFunc] one whose rate depends on the request, [Shared] one limiter
//     for all requests. [Limit.Cost] lets a request take several permits.
//   - Keys: [ClientAddr], [Header] and [By] for the client, [Path] and [Route] for the resource; [Join] combines keys,
//     [First] uses the first one that a request has.
//   - Requests without a key: they are not limited by that limit, unless [Limit.OrElse] says otherwise.
//   - What counts only by the response: [Limit.CountIf] and [Limit.CostAfter].
//   - Requests without limits: [Guard.Skip] with [Paths], [Methods] and [ClientAddr.Private].
//   - When Redis is slow or down: [Policy.Failure] and [Policy.Bound].
//   - To see the effect of a limit before it is in force: [Policy.Shadow]; to count the outcomes: [Policy.Count].
//   - Limits in a file that operators change: the package httplimit/rules, a separate module.
//   - For gRPC servers: the package grpclimit, a separate module, has interceptors that use a Guard.
//
// docs/guide/guard-an-http-api.md in the root of the module has examples.
package httplimit

// httplimit.go handles a request, limit.go defines its claims, key.go decides which requests share a limiter, client.go
// finds the client's address, skip.go has the rules for unlimited requests, policy.go decides by the answers of the
// limits or without them, ask.go checks several limits, apart.go checks them separately where one has an invalid
// configuration, after.go corrects what a request counts by its response, away.go records which limits cannot be reached,
// local.go decides without Redis, headers.go writes the response header fields, and transport.go paces outgoing requests.

import (
	"net/http"
	"slices"
	"sync/atomic"
)

// A Guard lets requests pass or refuses them. Its fields must not change once it is in use; its limits may, by
// SetLimits. A Guard without limits lets all requests pass; so does a nil *Guard. It is safe for concurrent use and
// must not be copied.
type Guard struct {
	// Policy decides what happens around the limits; nil is a zero Policy of this guard. Guards may share one.
	// ActivePolicy returns the policy in use.
	Policy *Policy
	// Skip lists the rules for unlimited requests: a request is not limited if any of the rules is true for it.
	Skip []Rule
	// XRateLimit adds the fields X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, in permits and
	// seconds, of the limit that is nearest to refusing.
	XRateLimit bool
	// PartitionKeys adds the key of each limiter, parameter pk, to the fields RateLimit and RateLimit-Policy. Clients
	// then see the keys, so these must not contain anything secret.
	PartitionKeys bool
	// Refuse writes the response to a request that may not pass, after its header fields are set; nil writes one of
	// type application/problem+json, with status 429 or, if no limit could be checked, 503.
	Refuse func(w http.ResponseWriter, r *http.Request, d Decision)

	zero   Policy
	limits atomic.Pointer[[]Limit]
}

// New returns a guard with limits; a request passes if all of them allow it.
func New(limits ...Limit) *Guard {
	g := &Guard{}
	g.SetLimits(limits...)
	return g
}

// SetLimits replaces the limits, also while requests are handled: the old limits or the new ones decide each request.
func (g *Guard) SetLimits(limits ...Limit) {
	limits = slices.Clone(limits)
	g.limits.Store(&limits)
}

// Middleware returns a handler that passes the requests that may pass to next. It corrects what they count after the
// response (see [Limit.CountIf]).
func (g *Guard) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch d := g.check(w, r); {
		case !d.Outcome.Passed():
		case d.settles():
			serve(g.ActivePolicy(), d, next, w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Check decides on a request and sets the header fields that describe its limits. If it returns false, it has written
// the whole response, and the request must not be handled.
func (g *Guard) Check(w http.ResponseWriter, r *http.Request) bool {
	return g.check(w, r).Outcome.Passed()
}

func (g *Guard) check(w http.ResponseWriter, r *http.Request) Decision {
	if g == nil {
		return Decision{}
	}
	d := g.Decide(r)
	if !g.ActivePolicy().Shadow {
		g.describe(w.Header(), d)
	}
	switch {
	case d.Outcome.Passed():
	case g.Refuse != nil:
		g.Refuse(w, r, d)
	default:
		refuse(w, d)
	}
	return d
}

// Decide decides on a request as Check does, and writes no response. It serves protocols above HTTP, such as gRPC.
func (g *Guard) Decide(r *http.Request) Decision {
	if g == nil {
		return Decision{}
	}
	return g.ActivePolicy().Decide(r.Context(), g.claims(r)...)
}

// ActivePolicy returns the policy in use, also where the field Policy is nil. It counts the outcomes:
// guard.ActivePolicy().Count(httplimit.FailedOpen).
func (g *Guard) ActivePolicy() *Policy {
	switch {
	case g == nil:
		return &Policy{}
	case g.Policy != nil:
		return g.Policy
	}
	return &g.zero
}

func (g *Guard) claims(r *http.Request) []Claim {
	limits := g.limits.Load()
	if limits == nil || slices.ContainsFunc(g.Skip, func(rule Rule) bool { return rule(r) }) {
		return nil
	}
	claims := make([]Claim, len(*limits))
	for i, limit := range *limits {
		claims[i] = limit(r)
	}
	return claims
}
