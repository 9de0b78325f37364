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
	names "github.com/rratelimiter/rratelimiter/internal/keys"
)

// ask.go makes the claims of a request.

// An ask is what becomes of one descriptor of a request.
type ask struct {
	rule   *rule           // nil: no rule applies, or the descriptor has an override
	limits bool            // the descriptor has a claim
	shadow bool            // it is counted, but refuses no request
	claim  httplimit.Claim // with the rate in force
	over   bool            // it refused the request
	answer *httplimit.Answer
}

// asks returns an ask for each descriptor. The error says why the request is invalid.
func (s *Service) asks(r *ratelimitv3.RateLimitRequest) ([]ask, error) {
	switch {
	case r.GetDomain() == "":
		return nil, errors.New("the request has no domain")
	case len(r.GetDescriptors()) == 0:
		return nil, errors.New("the request has no descriptors")
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	var root *rule
	if domains := s.domains.Load(); domains != nil {
		root = (*domains)[r.Domain]
	}
	asks := make([]ask, len(r.Descriptors))
	for i, d := range r.Descriptors {
		var err error
		if asks[i], err = s.ask(root, r, d); err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
	}
	replace(asks)
	return asks, nil
}

// ask returns the ask of one descriptor. root is nil if the domain is unknown.
func (s *Service) ask(
	root *rule, r *ratelimitv3.RateLimitRequest, d *ratelimit.RateLimitDescriptor,
) (a ask, err error) {
	hits := uint64(max(1, r.HitsAddend))
	if d.HitsAddend != nil {
		hits = d.HitsAddend.Value
	}
	var opts []rratelimiter.LimiterOption
	var rate rratelimiter.Rate
	var values []string
	switch {
	case d.IsNegativeHits:
		return a, errors.New("is_negative_hits is not supported")
	case root == nil:
		return a, nil
	case d.Limit != nil:
		if rate, err = overriding(d.Limit); err != nil {
			return a, err
		}
		a.claim.Name = labelOf(d.Entries)
		for _, e := range d.Entries {
			values = append(values, e.Value)
		}
	default:
		if a.rule, values = root.find(d.Entries); a.rule == nil {
			return a, nil
		}
		rate, a.claim.Name = a.rule.Rate, a.rule.label
		if a.rule.Lease > 0 {
			opts = append(opts, rratelimiter.WithLease(a.rule.Lease))
		}
	}
	if rate == rratelimiter.Unlimited || hits == 0 {
		return a, nil
	}
	a.limits, a.shadow = true, a.rule != nil && a.rule.Shadow
	if hits > uint64(rate.Permits) {
		a.claim = httplimit.Claim{Name: a.claim.Name, Limiter: never{rate.Permits}, Permits: 1, Rate: rate}
		return a, nil
	}
	label := a.claim.Name
	a.claim = httplimit.Named(s.client, r.Domain, keyOf(d.Entries, values), rate, opts...)
	a.claim.Name, a.claim.Permits = label, int64(hits)
	return a, nil
}

// never refuses requests for more permits than the rate.
type never struct{ limit int64 }

func (n never) Allow(context.Context, int64) (rratelimiter.Result, error) {
	return rratelimiter.Result{Limit: n.limit}, nil
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
		if a := &asks[i]; a.limits && a.rule != nil && a.rule.Name != "" && slices.Contains(replaced, a.rule.Name) {
			a.limits, a.shadow = false, false
		}
	}
}

// enforced returns the claims that can refuse the request. If one refuses in any case, the others
// need not be checked.
func enforced(asks []ask) []httplimit.Claim {
	var claims, refusing []httplimit.Claim
	for i := range asks {
		switch a := &asks[i]; {
		case !a.limits || a.shadow:
		case a.claim.Limiter == never{a.claim.Rate.Permits}:
			refusing = append(refusing, a.claim)
		default:
			claims = append(claims, a.claim)
		}
	}
	if refusing != nil {
		return refusing
	}
	return claims
}

// note takes the answer for the descriptor from a decision.
func (a *ask) note(d httplimit.Decision) {
	for i := range d.Answers {
		if answer := &d.Answers[i]; a.limits && answer.Limiter == a.claim.Limiter && answer.Name == a.claim.Name {
			a.answer, a.over = answer, answer.Refused && !d.Outcome.Passed()
		}
	}
}

// overriding returns the rate of an override.
func overriding(o *ratelimit.RateLimitDescriptor_RateLimitOverride) (rratelimiter.Rate, error) {
	const day = 24 * time.Hour
	unit := map[typev3.RateLimitUnit]time.Duration{
		typev3.RateLimitUnit_SECOND: time.Second, typev3.RateLimitUnit_MINUTE: time.Minute,
		typev3.RateLimitUnit_HOUR: time.Hour,
		typev3.RateLimitUnit_DAY:  day, typev3.RateLimitUnit_MONTH: 30 * day, typev3.RateLimitUnit_YEAR: 365 * day,
	}[o.Unit]
	times := uint64(1)
	if o.UnitMultiplier != nil {
		times = uint64(o.UnitMultiplier.Value)
	}
	switch {
	case unit == 0:
		return rratelimiter.Rate{}, errors.New("limit: the unit is unknown")
	case times > uint64(math.MaxInt64/unit):
		return rratelimiter.Rate{}, errors.New("limit: the interval is longer than 292 years")
	}
	return rratelimiter.Rate{Permits: int64(o.RequestsPerUnit), Interval: time.Duration(times) * unit}, nil
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

// Label returns the domain and the keys of a limiter that a Service has made, such as
// "shop:remote_address:method": a label for metrics (promlimit.Config.Label) without the values,
// which can be many. The label of any other limiter is "".
func Label(limiter string) string {
	parts := strings.Split(limiter, ":")
	if len(parts) < 3 || parts[0] != "ratelimit" {
		return ""
	}
	last := len(parts) - 1
	label := parts[last]
	for _, entry := range parts[1:last] {
		key, _, is := strings.Cut(entry, "=")
		if !is {
			return ""
		}
		label += ":" + key
	}
	return label
}
