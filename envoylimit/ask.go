package envoylimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
	"github.com/rratelimiter/rratelimiter/httplimit/rules"
	names "github.com/rratelimiter/rratelimiter/internal/keys"
)

// ask.go makes the claims of a request.

// An ask is what becomes of one descriptor of a request.
type ask struct {
	rule   *rule             // nil: no rule applies, or the descriptor has an override
	rate   rratelimiter.Rate // in force
	quota  rules.Quota       // in the place of the rate, if it has a period
	label  string            // the name of the limit in responses
	key    string            // of the limiter, within the domain
	hits   int64             // more than any rate if they do not fit; 0: it asks whether a permit is free
	limits bool              // the descriptor has a claim
	shadow bool              // it is counted, but refuses no request
	// its hits count in full, free or not
	postpaid bool
	sum      *sum // that the descriptor is a part of; nil: it has no claim
}

// A sum is the claim of all descriptors of a request that have the same limiter. Descriptors with
// shadow have a sum of their own.
type sum struct {
	ask    // the descriptor with the strictest rate; hits are those of all
	claim  httplimit.Claim
	over   bool // it refused the request
	answer *httplimit.Answer
}

// asks returns an ask for each descriptor, and the sums. The error says why the request is invalid.
func (s *Service) asks(r *ratelimitv3.RateLimitRequest) ([]ask, []*sum, error) {
	switch {
	case r.GetDomain() == "":
		return nil, nil, errors.New("the request has no domain")
	case len(r.GetDescriptors()) == 0:
		return nil, nil, errors.New("the request has no descriptors")
	}
	if err := r.Validate(); err != nil {
		return nil, nil, err
	}
	var root *rule
	if domains := s.domains.Load(); domains != nil {
		root = (*domains)[r.Domain]
	}
	asks := make([]ask, len(r.Descriptors))
	for i, d := range r.Descriptors {
		var err error
		if asks[i], err = askOf(root, r, d); err != nil {
			return nil, nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
	}
	replace(asks)
	sums := sumsOf(asks)
	for _, one := range sums {
		one.claim = s.claim(r.Domain, one.ask)
	}
	return asks, sums, nil
}

// askOf returns the ask of one descriptor. root is nil if the domain is unknown.
func askOf(root *rule, r *ratelimitv3.RateLimitRequest, d *ratelimit.RateLimitDescriptor) (a ask, err error) {
	hits := uint64(max(1, r.HitsAddend))
	if d.HitsAddend != nil {
		hits = d.HitsAddend.Value
	}
	a.hits = int64(min(hits, math.MaxInt64))
	var values []string
	switch {
	case d.IsNegativeHits:
		return a, errors.New("is_negative_hits is not supported")
	case root == nil:
		return a, nil
	case d.Limit != nil:
		if a.rate, a.quota, err = overriding(d.Limit); err != nil {
			return a, err
		}
		a.label = labelOf(d.Entries)
		if of, _ := root.find(d.Entries); of != nil {
			a.postpaid = of.Postpaid
		}
		for _, e := range d.Entries {
			values = append(values, e.Value)
		}
	default:
		if a.rule, values = root.find(d.Entries); a.rule == nil {
			return a, nil
		}
		a.rate, a.quota, a.label, a.shadow = a.rule.Rate, a.rule.Quota, a.rule.label, a.rule.Shadow
		a.postpaid = a.rule.Postpaid
	}
	a.limits = a.rate != rratelimiter.Unlimited || a.quota.Period != ""
	a.key = keyOf(d.Entries, values)
	return a, nil
}

// replace removes the claims of descriptors that rules of other descriptors replace.
func replace(asks []ask) {
	var replaced []string
	for _, a := range asks {
		if a.rule != nil {
			replaced = append(replaced, a.rule.Replaces...)
		}
	}
	for i := range asks {
		if a := &asks[i]; a.rule != nil && a.rule.Name != "" && slices.Contains(replaced, a.rule.Name) {
			a.limits = false
		}
	}
}

// sumsOf adds up the asks that have the same limiter.
func sumsOf(asks []ask) (sums []*sum) {
	for i := range asks {
		a := &asks[i]
		if !a.limits {
			continue
		}
		at := slices.IndexFunc(sums, func(s *sum) bool {
			return s.key == a.key && s.shadow == a.shadow && s.postpaid == a.postpaid
		})
		if at < 0 {
			a.sum = &sum{ask: *a}
			sums = append(sums, a.sum)
			continue
		}
		a.sum = sums[at]
		hits := a.sum.hits + min(a.hits, math.MaxInt64-a.sum.hits)
		if stricter(a.per(), a.sum.per()) {
			a.sum.ask = *a
		}
		a.sum.hits = hits
	}
	return sums
}

// stricter reports whether a rate has fewer permits a second than another one.
func stricter(one, other rratelimiter.Rate) bool {
	return float64(one.Permits)*float64(other.Interval) < float64(other.Permits)*float64(one.Interval)
}

// A month and a year are as long as this where quotas are compared with rates.
const (
	month = 30 * 24 * time.Hour
	year  = 365 * 24 * time.Hour
)

// per returns the rate in force, or that of the quota.
func (a *ask) per() rratelimiter.Rate {
	switch a.quota.Period {
	case "":
		return a.rate
	case "year":
		return rratelimiter.Rate{Permits: a.quota.Permits, Interval: year}
	}
	return rratelimiter.Rate{Permits: a.quota.Permits, Interval: month}
}

// A limiterKey tells the limiters of rates apart.
type limiterKey struct {
	domain, key string
	rate        rratelimiter.Rate
	lease       time.Duration
}

// claim returns the claim of a sum.
func (s *Service) claim(domain string, a ask) httplimit.Claim {
	if most := a.per().Permits; most == 0 || a.takes() && a.hits > most {
		return httplimit.Claim{Name: a.label, Limiter: never{most}, Permits: 1, Rate: a.rate}
	}
	if a.quota.Period != "" {
		counter := a.quota.Limiter(s.client, "ratelimit:"+a.key+":"+names.Escape(domain), s.quotas...)
		return httplimit.Claim{Name: a.label, Limiter: counter, Permits: a.hits}
	}
	k := limiterKey{domain, a.key, a.rate, 0}
	if a.rule != nil {
		k.lease = a.rule.Lease
	}
	c := *s.known.Get(k, func() *httplimit.Claim {
		var opts []rratelimiter.LimiterOption
		if k.lease > 0 {
			opts = append(opts, rratelimiter.WithLease(k.lease))
		}
		c := httplimit.Named(s.client, names.Escape(domain), k.key, k.rate, opts...)
		return &c
	})
	c.Name, c.Permits = a.label, a.hits
	return c
}

// never refuses requests for more permits than the rate.
type never struct{ limit int64 }

func (n never) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{Limit: n.limit}, nil
}

// never reports whether the sum refuses the request in any case.
func (s *sum) never() bool { return s.claim.Limiter == never{s.per().Permits} }

// enforced returns the claims that can refuse the request. Those that take no permits are one
// claim, which is the first. If one refuses in any case, the others that take permits are not
// checked.
func enforced(sums []*sum) ([]httplimit.Claim, *charge) {
	claims := make([]httplimit.Claim, 1, 1+len(sums))
	var refusing []httplimit.Claim
	var apartOf []*sum
	for _, s := range sums {
		switch {
		case s.shadow:
		case s.never():
			refusing = append(refusing, s.claim)
		case !s.takes():
			apartOf = append(apartOf, s)
		default:
			claims = append(claims, s.claim)
		}
	}
	if refusing != nil {
		claims = append(claims[:1], refusing...)
	}
	var charge *charge
	claims[0], charge = apart(apartOf...)
	return claims, charge
}

// note takes the answer for the sum from a decision.
func (s *sum) note(d httplimit.Decision) {
	for i := range d.Answers {
		if answer := &d.Answers[i]; answer.Limiter == s.claim.Limiter && answer.Name == s.claim.Name {
			s.answer, s.over = answer, answer.Refused && !d.Outcome.Passed()
		}
	}
}

// overriding returns the rate or the quota of an override.
func overriding(o *ratelimit.RateLimitDescriptor_RateLimitOverride) (r rratelimiter.Rate, q rules.Quota, err error) {
	unit := map[typev3.RateLimitUnit]time.Duration{
		typev3.RateLimitUnit_SECOND: time.Second, typev3.RateLimitUnit_MINUTE: time.Minute,
		typev3.RateLimitUnit_HOUR: time.Hour, typev3.RateLimitUnit_DAY: 24 * time.Hour,
		typev3.RateLimitUnit_MONTH: month, typev3.RateLimitUnit_YEAR: year,
	}[o.Unit]
	times := uint64(1)
	if o.UnitMultiplier != nil {
		times = uint64(o.UnitMultiplier.Value)
	}
	switch {
	case unit == 0:
		return r, q, errors.New("limit: the unit is unknown")
	case unit >= month && times != 1:
		return r, q, fmt.Errorf("limit: the unit %v has a unit_multiplier; write DAY for a fixed interval", o.Unit)
	case unit >= month:
		return r, rules.Quota{Permits: int64(o.RequestsPerUnit), Period: strings.ToLower(o.Unit.String())}, nil
	case times > uint64(math.MaxInt64/unit):
		return r, q, errors.New("limit: the interval is longer than 292 years")
	}
	return rratelimiter.Rate{Permits: int64(o.RequestsPerUnit), Interval: time.Duration(times) * unit}, q, nil
}

// labelOf returns the name, in responses, of a limit that has no rule.
func labelOf(entries []*ratelimit.RateLimitDescriptor_Entry) string {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return strings.Join(keys, ",")
}

// keyOf returns the entries as the key of a limiter, with these values, as httplimit.By makes keys.
func keyOf(entries []*ratelimit.RateLimitDescriptor_Entry, values []string) string {
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = names.Escape(e.Key) + "=" + names.Escape(values[i])
	}
	return strings.Join(parts, ":")
}
