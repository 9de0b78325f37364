// Package envoylimit is a rate limit service for Envoy: the gRPC service
// envoy.service.ratelimit.v3.RateLimitService, on limiters that Go and Java programs share. The
// command rrl rls serves it.
//
//	service := envoylimit.New(client, nil)
//	err := rules.WatchDomains(ctx, "envoy.yaml", rules.Config{}, service.SetDomains)
//	if err != nil {
//		log.Fatal(err) // one line for each error in the file: envoy.yaml:7: ...
//	}
//	server := grpc.NewServer()
//	ratelimitv3.RegisterRateLimitServiceServer(server, service)
//	server.Serve(listener)
//
// A request of Envoy has a domain and descriptors. A descriptor is a list of entries, each with a
// key and a value. The file has rules for the descriptors of each domain (rules.Descriptor).
// docs/guide/serve-envoy.md in the root of the module has an example, and compares this service
// with that of github.com/envoyproxy/ratelimit.
//
// # Which rule
//
// The rule of a descriptor is found entry by entry. The rules of the domain are for the first
// entry, and the descriptors below a rule are for the next entry. Of the rules for an entry, with
// its key, this one applies:
//
//   - the rule with the value of the entry;
//   - else the first rule whose value has a * and matches, where * stands for any text, also none;
//   - else the rule without a value.
//
// A descriptor is limited if the rule of its last entry has a rate. A descriptor without such a
// rule is not limited, and neither is a request for an unknown domain.
//
// # Which limiter
//
// The limiter of a descriptor is that of httplimit.Named, with the domain as its name and the
// entries as its key. The entries (remote_address, 192.0.2.1) and (method, GET) in the domain shop
// have the limiter
//
//	ratelimit:remote_address=192.0.2.1:method=GET:shop
//
// Java has the same limiter by redisson.getRateLimiter with this name. Keys and values are escaped
// as in httplimit.By. If the rule is shared, its value takes the place of the entry's: all values
// that match have one limiter.
//
// # What a request does
//
// Either all descriptors of a request are granted their permits, or the request is over the limit
// and takes none (rratelimiter.Client.AllowAll; httplimit says when one call checks them). In a
// response that is OVER_LIMIT, the descriptors that refused have the code OVER_LIMIT. Exceptions:
//
//   - shadow: the descriptor of the rule is counted by itself, and refuses no request. Its code is
//     OK. Its figures are in the response, but not in the header fields.
//   - replaces: if the rule applies to a descriptor of the request, descriptors with rules of these
//     names are not limited.
//   - a rate for a month or a year is a quota of the calendar in UTC (classic.Quota): its permits
//     return together when the month or the year ends.
//   - limit: an override in the descriptor is its rate, in the place of the rule. The domain must
//     be known. MONTH and YEAR are quotas, too, and have no unit_multiplier. All clients should
//     send the same override for the same entries, since each new rate is set in Redis.
//   - hits_addend: the descriptor takes this number of permits, 1 without it. If the number is more
//     than the rate, the request is over the limit. A descriptor whose own hits_addend is 0 takes
//     none, and is over the limit if no permit is free. Its time is the time until one is.
//   - postpaid: the hits of the descriptor were used already, as those of a rate limit of Envoy
//     with apply_on_stream_done. They count in full, free or not (rratelimiter.Limiter.Charge),
//     also if another descriptor refuses the request, and if Envoy waits no longer. The descriptor
//     is over the limit if no permit was free before. An override is the rate of such a descriptor,
//     too.
//   - descriptors with postpaid or without hits are asked first. If one refuses, the others take
//     nothing, and have only their code. Policy.OnDecision gets one answer for them, whose Limiter
//     has a method Answers() []httplimit.Answer.
//   - several descriptors with the same limiter: it is asked once, for the sum of their permits,
//     and its answer is that of each of them. If they give it different rates, the one with the
//     fewest permits a second counts, with 30 days for a month and 365 for a year. Descriptors with
//     shadow are not part of the sum of others: they have their own.
//   - is_negative_hits is an INVALID_ARGUMENT, as is a request that Envoy's own validation refuses.
//
// Envoy gets the header fields RateLimit, RateLimit-Policy and Retry-After for its client, as
// httplimit writes them. Times are whole seconds, rounded up, because Envoy drops fractions. A
// request that can never pass has no time, and no Retry-After.
package envoylimit

import (
	"context"
	"sync"
	"sync/atomic"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	"github.com/rratelimiter/rratelimiter/internal/recent"
	"github.com/rratelimiter/rratelimiter/internal/response"
)

// envoylimit.go handles a request. match.go finds the rule of a descriptor, ask.go makes its claim,
// charge.go asks limiters that grant no permits, and response.go makes the response.

// A Service is the rate limit service. It is safe for concurrent use.
type Service struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	client *rratelimiter.Client
	quotas []classic.Option // of limiters of quotas
	// for descriptors that refuse requests, and for those of rules with shadow
	policy, shadow *httplimit.Policy
	domains        atomic.Pointer[map[string]*rule]
	known          recent.Values[limiterKey, httplimit.Claim]
}

// New returns a service without domains, which limits nothing. client makes the limiters. Its
// options apply, such as rratelimiter.WithLimiterDefaults(rratelimiter.WithDenyCache(10_000)).
//
// The policy decides what happens if limits cannot be checked. With httplimit.FailClosed, the error
// is UNAVAILABLE, and Envoy decides by its setting failure_mode_deny. With Shadow, no request is
// refused. nil means FailClosed within 100 ms, and the name "envoy" in metrics. Further fields of
// the policy do what httplimit says. A policy without an Observer gets that of client.
func New(client *rratelimiter.Client, policy *httplimit.Policy) *Service {
	if policy == nil {
		policy = &httplimit.Policy{Name: "envoy", Failure: httplimit.FailClosed}
	}
	if policy.Observer == nil {
		policy.Observer = client.Observer()
	}
	return &Service{client: client, policy: policy, shadow: &httplimit.Policy{
		Name: policy.Name, Observer: policy.Observer, Bound: policy.Bound, Shadow: true, OnDeny: policy.OnDeny,
		OnError: policy.OnError, OnDecision: policy.OnDecision, Logger: policy.Logger,
	}}
}

// SetDomains replaces the domains. It may be called while requests are handled: either the old or
// the new domains decide on each request. If the rate of a limiter changes, earlier grants still
// count.
func (s *Service) SetDomains(domains []rules.Domain) {
	all := make(map[string]*rule, len(domains))
	for _, d := range domains {
		all[d.Name] = newRule(rules.Descriptor{Following: d.Descriptors}, "")
	}
	s.domains.Store(&all)
}

// closed says in the log what becomes of requests whose limits cannot be checked.
const closed = "requests get UNAVAILABLE, and Envoy lets them pass unless failure_mode_deny is set"

// ShouldRateLimit decides on a request. The error is a status:
//   - INVALID_ARGUMENT if the request has no domain, no descriptors, or what the package does not
//     support;
//   - UNAVAILABLE if the limits could not be checked, and the policy fails closed;
//   - CANCELLED or DEADLINE_EXCEEDED if ctx has ended.
func (s *Service) ShouldRateLimit(
	ctx context.Context, r *ratelimitv3.RateLimitRequest,
) (*ratelimitv3.RateLimitResponse, error) {
	asks, sums, err := s.asks(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	var shadows sync.WaitGroup
	for _, one := range sums {
		if one.shadow {
			shadows.Go(func() { one.note(s.watch(ctx, one)) })
		}
	}
	claims, charge := enforced(sums)
	d := s.policy.Decide(response.WithClosed(ctx, closed), claims...)
	charge.spread(&d)
	shadows.Wait()
	switch d.Outcome {
	case httplimit.FailedClosed:
		return nil, status.Error(codes.Unavailable, "the rate limits cannot be checked")
	case httplimit.Gone:
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	for _, one := range sums {
		if !one.shadow {
			one.note(d)
		}
	}
	return s.response(asks, d), nil
}

// watch asks the limiter of a sum that refuses no request.
func (s *Service) watch(ctx context.Context, one *sum) httplimit.Decision {
	if one.takes() || one.never() {
		return s.shadow.Decide(ctx, one.claim)
	}
	claim, charge := apart(one)
	d := s.shadow.Decide(ctx, claim)
	charge.spread(&d)
	return d
}
