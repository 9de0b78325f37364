// Package httplimit guards HTTP handlers with rate limits for each client address, user, route, or
// any other part of a request. The response to a refused request is 429 Too Many Requests, with the
// time until a retry.
//
//	addr := httplimit.ClientAddr{Trusted: proxies}
//	guard := httplimit.New(
//		httplimit.Per(client, "1s", rratelimiter.PerSecond(10), httplimit.Join(addr.Key, httplimit.Path)),
//		httplimit.Per(client, "1m", rratelimiter.PerMinute(200), httplimit.Join(addr.Key, httplimit.Path)),
//	)
//	guard.Skip = []httplimit.Rule{addr.Private, httplimit.Paths("/healthz")}
//	http.ListenAndServe(":8080", guard.Middleware(mux))
//
// A [Limit] returns the [Claim] of a request: the number of permits that the request takes, and the
// limiter that grants them. A request passes if all its limits allow it. If one limit refuses, the
// request takes no permits from the others, or the guard gives them back if it can (see below). Any
// type that implements [Allower] can decide.
//
// One call checks all limits if all limiters are *[rratelimiter.Limiter] of one
// [rratelimiter.Client], and either this client uses a *redis.Client, or all names have a common
// hash tag (on a cluster: a common slot). Names made by [Per] have no hash tag. Otherwise the
// limits are checked in order. If one refuses, the permits of the limits before it are given back;
// until then, other requests may be refused. Limiters that have no method Release, such as those of
// the package classic, keep the permits. So put the limit first that refuses most requests: the
// limits after it are then not checked.
//
// A [Policy] decides what happens if a limit refuses, or if limits cannot be checked. The zero
// Policy lets requests pass if Redis does not reply within 100 ms, and counts them. A Policy does
// not depend on HTTP.
//
// A [Transport] limits the rate of the requests that a program sends.
//
// The modules ginlimit, echolimit and fiberlimit are middleware for gin, echo and fiber.
// [Guard.Middleware] fits net/http and the routers on it, such as chi. For any other router,
// [Guard.Admit] has an example.
//
// # Which to use
//
//   - Limits: [Per] has one limiter for each key. [PerFunc] has one limiter for each key, with a
//     rate that depends on the request. [Shared] has one limiter for all requests. With
//     [Limit.Cost], a request can take several permits.
//   - Keys: [ClientAddr], [Header] and [By] for the client, [Path], [PathIgnoreCase] and [Route]
//     for the resource. [Join] combines keys. [First] uses the first key that a request has.
//   - Requests without the key of a limit: the limit does not apply to them, unless [Limit.OrElse]
//     sets another limit.
//   - Requests whose cost depends on the response: [Limit.CountIf] and [Limit.CostAfter], and
//     [Charge] while the response is written.
//   - Requests that are never limited: [Guard.Skip] with [Paths], [Methods] and
//     [ClientAddr.Private].
//   - Scripts in web pages of other origins: [Guard.CORS].
//   - A client that exceeds its limit stays refused for a time: [Limit.Penalty].
//   - Clients that come back all at once: [Policy.Jitter].
//   - Redis is slow or down: [Policy.Failure] and [Policy.Bound].
//   - The effect of a limit before it is in force: [Limit.Shadow], or [Policy.Shadow] for all
//     limits. The number of requests by outcome: [Policy.Count].
//   - Limits in a file that operators change: the package httplimit/rules, a separate module.
//   - gRPC: the package grpclimit, a separate module, has interceptors that use a Guard, and others
//     for clients.
//   - Envoy: the package envoylimit, a separate module, is its rate limit service.
//
// docs/guide/guard-an-http-api.md in the root of the module has examples.
package httplimit

// httplimit.go handles a request. limit.go defines its claims. key.go decides which requests share
// a limiter. client.go finds the client's address. skip.go has the rules for unlimited requests.
// readings.go has the paths that servers can read in the path of a request. policy.go decides by
// the replies of the limits, or without replies. ask.go checks several limits. apart.go checks
// limits one by one. after.go and bill.go correct the permits of a request after its response.
// away.go records which limits cannot be reached. local.go decides without Redis. shadow.go checks
// limits that refuse no request. penalty.go refuses a key for a time. headers.go writes the
// response header fields. transport.go limits outgoing requests.

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter"
)

// A Guard lets requests pass or refuses them. Its fields must not change after its first use;
// SetLimits may be called at any time. A Guard without limits and a nil *Guard let all requests
// pass. A Guard is safe for concurrent use and must not be copied.
//
// Servers read some paths differently: "/static/..;/login" is "/login" for a servlet container. For
// such a path, the limits and the rules of Skip get the request as it is, and a copy of it for each
// other path that a server can read in it. A limit applies if it applies to one of them, and takes
// its permits from each limiter that they lead to. The request is skipped only if each of them is.
// docs/guide/guard-an-http-api.md has examples of paths.
//
// A guard that has limits refuses such a path if it is longer than 8 KiB (status 414), or if
// servers can read it in too many ways (status 400). The request then counts as denied, by a limit
// "path" with a rate of 0. Rules of Skip and Policy.Failure do not change this, but with
// Policy.Shadow the request passes.
type Guard struct {
	// Policy decides what happens if a limit refuses, or if limits cannot be checked. nil means a
	// zero Policy that belongs to this guard. Several guards may share a policy. ActivePolicy
	// returns the policy in use.
	Policy *Policy
	// Skip lists the rules for unlimited requests: a request is not limited if any of the rules is
	// true for it. If servers can read several paths in the request, this must hold for each of the
	// paths.
	Skip []Rule
	// XRateLimit adds the header fields X-RateLimit-Limit and X-RateLimit-Remaining (permits) and
	// X-RateLimit-Reset (seconds, as t in the field RateLimit). They describe the limit that
	// refuses for the longest time or, if none refuses, the limit with the smallest part of its
	// permits left.
	XRateLimit bool
	// PartitionKeys adds the key of each limiter as parameter pk to the fields RateLimit and
	// RateLimit-Policy. Clients then see the keys, so the keys must not contain secrets.
	PartitionKeys bool
	// CORS is for requests of scripts in web pages of other origins. Preflight requests are not
	// limited, because browsers send them by themselves. Responses to requests with an Origin let
	// scripts read the fields RateLimit, RateLimit-Policy and Retry-After
	// (Access-Control-Expose-Headers). The rest of CORS is the task of another middleware, which
	// must be outside of the guard: without its fields, scripts cannot read a refusal.
	CORS bool
	// Refuse writes the response to a request that does not pass, after the header fields are set.
	// nil writes a response of type application/problem+json: with status 429 if a limit refused,
	// with 414 or 400 if the path cannot be read (see Guard), and otherwise with 503 (the limits
	// could not be checked, or the request's context has ended).
	Refuse func(w http.ResponseWriter, r *http.Request, d Decision)

	zero   Policy
	limits atomic.Pointer[limitSet]
}

// A limitSet holds the limits of one call of SetLimits.
type limitSet struct {
	limits   []Limit
	replaced atomic.Bool // SetLimits was called again
}

// New returns a guard with limits. A request passes if all limits allow it.
func New(limits ...Limit) *Guard {
	g := &Guard{}
	g.SetLimits(limits...)
	return g
}

// SetLimits replaces the limits. It may be called while requests are handled. Either the old or the
// new limits decide on each request.
func (g *Guard) SetLimits(limits ...Limit) {
	if old := g.limits.Swap(&limitSet{limits: slices.Clone(limits)}); old != nil {
		old.replaced.Store(true)
	}
}

// Middleware returns a handler that calls next for the requests that are not refused. After the
// response, it corrects the permits that the request takes (see [Limit.CountIf]).
func (g *Guard) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch d := g.Admit(w, r); {
		case !d.Outcome.Passed():
		case d.Settles():
			serve(g.ActivePolicy(), d, next, w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// Check is Admit for guards without CountIf and CostAfter: it reports only whether the request
// passed. If it did not, the complete response is written, and the request must not be handled.
func (g *Guard) Check(w http.ResponseWriter, r *http.Request) bool {
	return g.Admit(w, r).Outcome.Passed()
}

// Admit decides on a request, and sets the header fields that describe its limits. It is what the
// middleware of a router calls. If Decision.Outcome.Passed returns false, Admit has written the
// complete response, and the request must not be handled. Otherwise the middleware calls
// [Policy.Settle] of ActivePolicy once, when it knows the status that is sent.
func (g *Guard) Admit(w http.ResponseWriter, r *http.Request) Decision {
	if g == nil {
		return Decision{}
	}
	d := g.Decide(r)
	if !g.ActivePolicy().Shadow && !d.unreadable() {
		g.describe(w.Header(), d)
		if g.CORS && len(d.Answers) > 0 && r.Header.Get("Origin") != "" {
			w.Header().Add("Access-Control-Expose-Headers", "RateLimit, RateLimit-Policy, Retry-After")
		}
	}
	switch {
	case d.Outcome.Passed():
	case g.Refuse != nil:
		g.Refuse(w, r, d)
	default:
		refuse(w, r, d)
	}
	return d
}

// Decide decides on a request as Admit does, but writes no response. Use it for protocols above
// HTTP, such as gRPC.
func (g *Guard) Decide(r *http.Request) Decision {
	if g == nil {
		return Decision{}
	}
	var few [4]Claim // on the stack
	return g.ActivePolicy().Decide(r.Context(), g.claims(few[:0], r)...)
}

// ActivePolicy returns the policy in use, also if the field Policy is nil. The policy counts the
// outcomes: guard.ActivePolicy().Count(httplimit.FailedOpen).
func (g *Guard) ActivePolicy() *Policy {
	switch {
	case g == nil:
		return &Policy{}
	case g.Policy != nil:
		return g.Policy
	}
	return &g.zero
}

// unreadable refuses the requests whose path is too long or has too many forms.
type unreadable struct{}

func (unreadable) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{}, nil
}

// unreadable reports whether the request was refused because of its path alone.
func (d Decision) unreadable() bool {
	return slices.ContainsFunc(d.Answers, func(a Answer) bool { return a.Limiter == unreadable{} })
}

// claims appends the claims of a request in all readings of its path; none if the request is
// skipped in all of them.
func (g *Guard) claims(claims []Claim, r *http.Request) []Claim {
	set := g.limits.Load()
	if set == nil || len(set.limits) == 0 || g.CORS && preflight(r) {
		return nil
	}
	all := []*http.Request{r} // on the stack, for most requests
	if !readAlike(r) {
		all = readings(r)
	}
	if all == nil {
		return append(claims, Claim{Name: "path", Limiter: unreadable{}, Rate: rratelimiter.PerSecond(0)})
	}
	if !slices.ContainsFunc(all, func(r *http.Request) bool { return !g.skips(r) }) {
		return nil
	}
	for _, limit := range set.limits {
		first := len(claims)
		for _, reading := range all {
			c := limit(reading)
			if c.empty() {
				continue
			}
			c.replaced = &set.replaced
			if i := slices.IndexFunc(claims[first:], c.repeats); i < 0 {
				claims = append(claims, c)
			} else if other := &claims[first+i]; c.stricter(*other) {
				c.Permits = max(c.Permits, other.Permits)
				*other = c
			} else {
				other.Permits = max(c.Permits, other.Permits)
			}
		}
	}
	return claims
}

// preflight reports whether a browser asks if a script may send a request.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" &&
		r.Header.Get("Access-Control-Request-Method") != ""
}

func (g *Guard) skips(r *http.Request) bool {
	return slices.ContainsFunc(g.Skip, func(rule Rule) bool { return rule(r) })
}
