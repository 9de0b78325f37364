package httplimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/recent"
)

// limit.go defines the claims of a request: permits and limiter. policy.go decides on claims.

// An Allower decides whether n permits may be taken now. *rratelimiter.Limiter implements it. Allow
// must return when ctx ends.
type Allower interface {
	Allow(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// A Claim describes the permits that a request takes from one limiter.
type Claim struct {
	Name string // name of the limit, in responses and decisions
	Key  string // distinguishes the limiters of the limit; "" if the limit has only one
	// decides; nil or a nil *rratelimiter.Limiter: the request is not limited
	Limiter Allower
	Permits int64 // number of permits that the request takes; 0 means the default 1
	// rate of the limiter, if known; without it, RateLimit-Policy has no window, and FailLocal
	// cannot decide
	Rate rratelimiter.Rate

	Unit string // what a permit stands for, in RateLimit-Policy; "": a request (see Limit.Unit)

	shadow  bool                                 // from Limit.Shadow
	penalty *penalty                             // from Limit.Penalty; nil: none
	countIf func(status int, h http.Header) bool // from Limit.CountIf; nil: the request counts
	zero    bool                                 // Limit.Cost returned 0
	after   bool                                 // from Limit.CostAfter
	// of Limit.CostAfter; nil: the request costs what Charge told
	cost func(status int, h http.Header) int64

	// true after Guard.SetLimits has replaced the limit; nil: the claim is not from a guard
	replaced *atomic.Bool
}

// A Limit returns the claim of a request. A Claim without a Limiter means that this limit does not
// apply to the request. The zero Claim also means that the request has no key (see OrElse).
type Limit func(r *http.Request) Claim

// Per limits the requests of each key to a rate. Each key has its own limiter, made by Named:
// "ratelimit:KEY:NAME". If key is nil, all requests share the limiter "ratelimit:NAME". If key
// returns "" for a request, the request has no key, and the limit does not apply to it: use
// [Limit.OrElse] to limit such requests. If the rate is [rratelimiter.Unlimited], the limit applies
// to no request. A rate of 0 permits refuses every request.
//
// Limits with the same name and key use the same limiter, also in other guards and services, and
// should have the same rate. So choose a name that describes what is limited, or the interval. If
// several limits of one request have the same name and key but different rates, the strictest one
// counts, and this is reported as a configuration error.
//
// opts are further options of the limiters, such as rratelimiter.WithLease or
// rratelimiter.WithDenyCache. Per panics if the rate or an option is invalid, such as a lease of
// more than a tenth of the interval: no request could be checked.
func Per(
	client *rratelimiter.Client, name string, rate rratelimiter.Rate, key Key, opts ...rratelimiter.LimiterOption,
) Limit {
	if rate != rratelimiter.Unlimited {
		mustBeValid(Named(client, name, "", rate, opts...))
	}
	return PerFunc(client, name, func(*http.Request) rratelimiter.Rate { return rate }, key, opts...)
}

// Err returns the error with which the limiter of the claim answers every request, because it was
// made with an invalid rate or option: ErrInvalidRate or ErrInvalidOption. Otherwise it returns
// nil. It makes no call to Redis. It knows the limiters of packages rratelimiter and classic, and
// others that have a method Peek.
func (c Claim) Err() error {
	l, peeks := c.Limiter.(peeker)
	if !peeks || c.empty() {
		return nil
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Peek(ended, 1)
	if errors.Is(err, rratelimiter.ErrInvalidRate) || errors.Is(err, rratelimiter.ErrInvalidOption) {
		return err
	}
	return nil
}

// mustBeValid panics if a limiter can answer no request.
func mustBeValid(c Claim) {
	if err := c.Err(); err != nil {
		panic(fmt.Sprintf("httplimit: limit %q: %v", c.Name, err))
	}
}

// PerFunc is Per with a rate that depends on the request, for example on its route, or on the plan
// of its tenant. [rratelimiter.Unlimited] means that the request is not limited. A rate of 0
// permits, such as rratelimiter.PerSecond(0), means that it is refused, also while Redis cannot be
// reached. At any time, all requests with the same key should have the same rate. A new rate is in
// force from the next request on, and earlier grants still count. rate is not called for a request
// without a key. PerFunc cannot check the rates: Policy.Failure applies to a request with an
// invalid one.
func PerFunc(
	client *rratelimiter.Client,
	name string,
	rate func(*http.Request) rratelimiter.Rate,
	key Key,
	opts ...rratelimiter.LimiterOption,
) Limit {
	known := &limiters{}
	return func(r *http.Request) Claim {
		value := ""
		if key != nil {
			if value = key(r); value == "" {
				return Claim{}
			}
		}
		rate := rate(r)
		if rate == rratelimiter.Unlimited {
			return Claim{Name: name, Key: value}
		}
		return named(client, name, value, rate, known, opts...)
	}
}

// OrElse returns a limit that applies other to the requests without a key: the requests for which l
// returns a Claim that has no Name and no Limiter. If a request has a key and the rate Unlimited,
// other does not apply to it.
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

// Named returns a claim for one permit of the limiter "ratelimit:KEY:NAME", or "ratelimit:NAME" if
// key is "". The rate replaces a different rate in Redis. Unless the rate has a KeepAlive, the
// limiter expires two intervals after its last use, but not before one minute, so that the keys of
// former clients do not stay in Redis. If the interval is more than 146 years, the limiter expires
// after one interval. opts are further options of the limiter, such as rratelimiter.WithLease.
func Named(
	client *rratelimiter.Client, name, key string, rate rratelimiter.Rate, opts ...rratelimiter.LimiterOption,
) Claim {
	return named(client, name, key, rate, nil, opts...)
}

// named is Named with the limiters that are known; nil: none is.
func named(
	client *rratelimiter.Client, name, key string, rate rratelimiter.Rate, known *limiters,
	opts ...rratelimiter.LimiterOption,
) Claim {
	if rate.KeepAlive == 0 {
		// twice more than 146 years overflows, and is negative
		rate.KeepAlive = max(rate.Interval, 2*rate.Interval, time.Minute)
	}
	c := Claim{Name: name, Key: key, Permits: 1, Rate: rate}
	c.Limiter = known.Get(limiterKey{key, rate}, func() *rratelimiter.Limiter {
		return client.RateLimiter(limiterName(name, key),
			append([]rratelimiter.LimiterOption{rratelimiter.WithEnforcedRate(rate)}, opts...)...)
	})
	return c
}

// A limiterKey tells the limiters of a limit apart.
type limiterKey struct {
	key  string
	rate rratelimiter.Rate
}

type limiters = recent.Values[limiterKey, rratelimiter.Limiter]

// limiterName returns the name of the limiter of a limit and a key.
func limiterName(name, key string) string {
	if key == "" {
		return "ratelimit:" + name
	}
	return "ratelimit:" + key + ":" + name
}

// Shared returns a limit whose requests all share one limiter, of any algorithm. Java services may
// use the same limiter if it is a *rratelimiter.Limiter. The Claim has no Rate, so RateLimit-Policy
// has no window (w), and FailLocal lets the requests pass while Redis is away: a
// *rratelimiter.Limiter with rratelimiter.WithFallback decides instead. Shared panics if a
// *rratelimiter.Limiter has an invalid option. With [Limit.Penalty], it cannot be combined with
// [Limit.CountIf] or [Limit.CostAfter] (ErrInvalidOption at each check): use Per or PerFunc.
func Shared(name string, limiter Allower) Limit {
	mustBeValid(Claim{Name: name, Limiter: limiter})
	return func(*http.Request) Claim { return Claim{Name: name, Limiter: limiter, Permits: 1} }
}

// Cost returns the same limit, but each request takes the number of permits that the function
// returns. If this number is less than 1, the limit does not apply to the request, not even with a
// penalty of its key (Penalty). But with CostAfter, a request that costs 0 passes only if a permit
// is free, and takes none.
func (l Limit) Cost(permits func(*http.Request) int64) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		if claim.Limiter == nil {
			return claim
		}
		claim.Permits = permits(r)
		claim.zero = claim.Permits == 0
		if claim.Permits < 0 {
			claim.Limiter = nil
		}
		return claim
	}
}

// Unit returns the same limit, whose permits stand for something else than requests, mostly with
// Cost or CostAfter. The field RateLimit-Policy names it, as parameter qu: "content-bytes" is a
// unit of the IETF's draft; others, such as "tokens", are a service's own.
func (l Limit) Unit(name string) Limit {
	return func(r *http.Request) Claim {
		claim := l(r)
		claim.Unit = name
		return claim
	}
}
