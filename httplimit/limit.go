package httplimit

import (
	"context"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// limit.go defines the claims of a request: permits and limiter. policy.go decides on them.

// An Allower decides whether n permits may be taken now. A *rratelimiter.Limiter is one. Allow must return when ctx ends.
type Allower interface {
	Allow(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// A Claim has the permits that a request takes from one limiter.
type Claim struct {
	Name    string            // of the limit, in responses and in decisions
	Key     string            // distinguishes the limiters of the limit; "" if there is only one
	Limiter Allower           // decides; nil, also a nil *rratelimiter.Limiter: the request is not limited
	Permits int64             // what the request takes; 0 counts as 1
	Rate    rratelimiter.Rate // the limiter's rate, if known: without one there is no window in RateLimit-Policy, and no local fallback

	countIf func(status int, h http.Header) bool  // of Limit.CountIf; nil: the request counts
	cost    func(status int, h http.Header) int64 // of Limit.CostAfter; nil: the request costs Permits
}

// A Limit returns the claim of a request. A Claim without a Limiter means that this limit does not apply to the
// request; the zero Claim, that the request has no key either (see OrElse).
type Limit func(r *http.Request) Claim

// Per limits the requests of each key to a rate. Each key has its own limiter, made by Named: "ratelimit:KEY:NAME", or
// "ratelimit:NAME" for all requests together if key is nil. A request without a key, for which the function returns "",
// is not limited by this limit: use [Limit.OrElse] to limit such requests, too. A rate without permits, such as the zero
// Rate, limits nothing.
//
// Limits with the same name and key are one limit, also in other guards and services, and should have one rate; so a
// name should say what is limited, or for how long. If one request has different rates for a name and key, the first
// one counts, and the others are reported as a configuration error.
func Per(client *rratelimiter.Client, name string, rate rratelimiter.Rate, key Key) Limit {
	return PerFunc(client, name, func(*http.Request) rratelimiter.Rate { return rate }, key)
}

// PerFunc is Per for a rate that depends on the request, for example on its route, or on the plan of its tenant. A rate
// without permits means that the request is not limited. Requests of one key should have one rate at a time; a new rate
// is in force from the next request on, and live grants stay counted. rate is not called for a request without a key.
func PerFunc(client *rratelimiter.Client, name string, rate func(*http.Request) rratelimiter.Rate, key Key) Limit {
	return func(r *http.Request) Claim {
		value := ""
		if key != nil {
			if value = key(r); value == "" {
				return Claim{}
			}
		}
		rate := rate(r)
		if rate.Permits == 0 {
			return Claim{Name: name, Key: value}
		}
		return Named(client, name, value, rate)
	}
}

// OrElse returns a limit that applies other to the requests without a key. Those are the requests for which l returns a
// Claim with neither a Name nor a Limiter. A request whose rate has no permits has a key, and stays unlimited.
//
//	httplimit.Per(client, "key", rratelimiter.PerMinute(600), httplimit.Header("X-API-Key")).
//		OrElse(httplimit.Per(client, "anonymous", rratelimiter.PerMinute(10), addr.Key))
func (l Limit) OrElse(other Limit) Limit {
	return func(r *http.Request) Claim {
		if claim := l(r); claim.Name != "" || claim.Limiter != nil {
			return claim
		}
		return other(r)
	}
}

// Named returns a claim of one permit of the limiter "ratelimit:KEY:NAME", or "ratelimit:NAME" if key is "". The given
// rate replaces a different stored one. Unless the rate has a KeepAlive, the limiter expires two intervals after its
// last use, and after a minute at least, so that the keys of former clients don't stay. An interval of more than 146
// years counts once.
func Named(client *rratelimiter.Client, name, key string, rate rratelimiter.Rate) Claim {
	if rate.KeepAlive == 0 {
		rate.KeepAlive = max(rate.Interval, 2*rate.Interval, time.Minute) // twice more than 146 years overflows, and is negative
	}
	full := "ratelimit:"
	if key != "" {
		full += key + ":"
	}
	return Claim{
		Name: name, Key: key, Rate: rate,
		Limiter: client.RateLimiter(full+name, rratelimiter.WithEnforcedRate(rate)),
	}
}

// Shared lets all requests share one limiter of any algorithm; Java services may use the same limiter.
func Shared(name string, limiter Allower) Limit {
	return func(*http.Request) Claim { return Claim{Name: name, Limiter: limiter} }
}

// Cost returns the same limit for requests that take more than one permit each. A request that takes less than one
// permit is not limited.
func (l Limit) Cost(permits func(*http.Request) int64) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		if claim.Limiter == nil {
			return claim
		}
		claim.Permits = permits(r)
		if claim.Permits <= 0 {
			claim.Limiter = nil
		}
		return claim
	}
}
