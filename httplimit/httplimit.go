// Package httplimit guards HTTP handlers with limits: so many requests a second for a client address, a user, a route, or
// whatever else a request shows. Refused requests are answered with 429 Too Many Requests and told when to come back.
//
//	addr := httplimit.ClientAddr{Trusted: proxies}
//	guard := httplimit.New(
//		httplimit.Per(client, "1s", rratelimiter.PerSecond(10), httplimit.Join(addr.Key, httplimit.Path)),
//		httplimit.Per(client, "1m", rratelimiter.PerMinute(200), httplimit.Join(addr.Key, httplimit.Path)),
//	)
//	guard.Skip = []httplimit.Rule{addr.Private, httplimit.Paths("/healthz")}
//	http.ListenAndServe(":8080", guard.Middleware(mux))
//
// A [Limit] says what a request takes from which limiter, its [Claim]. A request passes if all its limits allow it; one
// that a limit refuses takes nothing from the others. Any algorithm can decide that has the method of [Allower].
//
// For that, limits are asked in one step, if they are limiters of one [rratelimiter.Client], and on a cluster have names of
// one slot, as [Per] does not make them. Else they are asked in their order, and what was taken is given back once one
// refuses: until then others may be refused for it. Algorithms that have no way to give back, as those of the package
// classic, keep it. So the narrowest limit, which refuses most, should come first: those behind it are then not asked.
//
// A [Policy] says what happens around the limits: the zero Policy lets requests pass when Redis gives no answer within
// 100 ms, and counts them. It knows nothing of HTTP.
//
// gRPC servers have interceptors that go by a Guard in the package grpclimit, a module of its own.
//
// Frameworks whose chain must be told to stop use [Guard.Check] in place of [Guard.Middleware]:
//
//	if !guard.Check(c.Writer, c.Request) {
//		c.Abort()
//	}
//
// What each file knows: httplimit.go the way of a request, limit.go what it takes and from whom, key.go which requests
// share a limiter, client.go whose request it is, skip.go which requests are free, policy.go what comes of the limits'
// answers or their absence, ask.go how several limits are asked, apart.go how they are asked where one is configured
// wrongly, local.go how to do without Redis, headers.go what the client is told.
package httplimit

import (
	"net/http"
	"slices"
	"sync/atomic"
)

// A Guard lets requests pass or refuses them. Its fields must not change once it is in use; its limits may, by SetLimits.
// A Guard without limits lets everything pass. It is safe for concurrent use and must not be copied.
type Guard struct {
	// Policy is what happens around the limits; nil is a zero Policy of the guard's own. Guards may share one. ActivePolicy
	// gives the one that counts.
	Policy *Policy
	// Skip lists requests that are free: those that any of the rules is true for.
	Skip []Rule
	// XRateLimit adds the fields X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, in permits and seconds,
	// of the limit that is nearest to refusing.
	XRateLimit bool
	// PartitionKeys adds the key of each limiter, parameter pk, to the fields RateLimit and RateLimit-Policy. Clients then
	// see how requests are told apart, so the keys should hold nothing that they must not know.
	PartitionKeys bool
	// Refuse writes the answer to a request that may not pass, after its header fields are set; nil writes one of type
	// application/problem+json, with status 429 or, where no limit could be asked, 503.
	Refuse func(w http.ResponseWriter, r *http.Request, d Decision)

	zero   Policy
	limits atomic.Pointer[[]Limit]
}

// New makes a guard with limits, which all must allow a request.
func New(limits ...Limit) *Guard {
	g := &Guard{}
	g.SetLimits(limits...)
	return g
}

// SetLimits replaces the limits, also while requests come in: each request is decided by the old ones or by the new ones.
func (g *Guard) SetLimits(limits ...Limit) {
	limits = slices.Clone(limits)
	g.limits.Store(&limits)
}

// Middleware lets next handle the requests that may pass.
func (g *Guard) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.Check(w, r) {
			next.ServeHTTP(w, r)
		}
	})
}

// Check decides on a request and sets the header fields that tell the client of its limits. When it answers false it has
// written the whole answer, and nobody may handle the request any more.
func (g *Guard) Check(w http.ResponseWriter, r *http.Request) bool {
	d := g.Decide(r)
	if !g.ActivePolicy().Shadow {
		g.describe(w.Header(), d)
	}
	if d.Outcome.Passed() {
		return true
	}
	if g.Refuse != nil {
		g.Refuse(w, r, d)
	} else {
		refuse(w, d)
	}
	return false
}

// Decide decides on a request as Check does, and tells nobody. It serves protocols above HTTP, such as gRPC.
func (g *Guard) Decide(r *http.Request) Decision {
	return g.ActivePolicy().Decide(r.Context(), g.claims(r)...)
}

// ActivePolicy is the policy that the guard goes by, also where its field Policy is nil. It tells the outcomes:
// guard.ActivePolicy().Count(httplimit.FailedOpen).
func (g *Guard) ActivePolicy() *Policy {
	if g.Policy != nil {
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
