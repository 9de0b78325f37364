package httplimit

import (
	"context"
	"net/http"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// limit.go knows what a request takes, and from which limiter. It knows nothing of what happens then.

// An Allower decides whether n permits may be taken now. A *rratelimiter.Limiter is one. Allow must return when ctx ends.
type Allower interface {
	Allow(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// A Claim is what a request takes from one limiter.
type Claim struct {
	Name    string            // of the limit, to clients and to who is told of decisions
	Key     string            // which of the limit's limiters it is; "" where there is only one
	Limiter Allower           // decides; nil, also of a *rratelimiter.Limiter: the request is not limited
	Permits int64             // what the request takes; 0 counts as 1
	Rate    rratelimiter.Rate // the limiter's rate, if known: without one there is no window in RateLimit-Policy, and no local fallback
}

// A Limit gives the claim of a request. A Claim without a Limiter means that this limit does not bound the request.
type Limit func(r *http.Request) Claim

// Per limits the requests of each key to a rate. Each key has a limiter of its own, as Named makes it: "ratelimit:KEY:NAME",
// or "ratelimit:NAME" for all requests together where key is nil. A rate without permits, such as the zero Rate, limits
// nothing.
//
// Limits of one name and key are one limit, also in other guards and services, and should have one rate; so a name should say
// what is limited, or for how long. Where one request meets different rates of a name and key, the first one counts, and the
// others are reported as a fault of the configuration.
func Per(client *rratelimiter.Client, name string, rate rratelimiter.Rate, key Key) Limit {
	return PerFunc(client, name, func(*http.Request) rratelimiter.Rate { return rate }, key)
}

// PerFunc is Per for a rate that depends on the request: on its route, say, or on the plan of its tenant. A rate without
// permits means that the request is not limited. Requests of one key should have one rate at a time; a new one is in force
// from the next request on, and what was granted stays counted.
func PerFunc(client *rratelimiter.Client, name string, rate func(*http.Request) rratelimiter.Rate, key Key) Limit {
	return func(r *http.Request) Claim {
		rate := rate(r)
		if rate.Permits == 0 {
			return Claim{Name: name}
		}
		value := ""
		if key != nil {
			value = key(r)
		}
		return Named(client, name, value, rate)
	}
}

// Named claims one permit of the limiter "ratelimit:KEY:NAME", or "ratelimit:NAME" where key is "". The limiter keeps to
// the rate given, also where it had another one before. Unless the rate has a KeepAlive, the limiter lives for two
// intervals after its last use, and for a minute at least, so that the keys of clients who came once don't stay.
func Named(client *rratelimiter.Client, name, key string, rate rratelimiter.Rate) Claim {
	if rate.KeepAlive == 0 {
		rate.KeepAlive = max(2*rate.Interval, time.Minute)
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

// Shared lets all requests share one limiter: of any algorithm, or one that Java services use, too.
func Shared(name string, limiter Allower) Limit {
	return func(*http.Request) Claim { return Claim{Name: name, Limiter: limiter} }
}

// Cost is the same limit for requests that take more than one permit each. A request that takes none, or fewer, is not
// limited.
func (l Limit) Cost(permits func(*http.Request) int64) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.Permits = permits(r)
		if claim.Permits <= 0 {
			claim.Limiter = nil
		}
		return claim
	}
}
