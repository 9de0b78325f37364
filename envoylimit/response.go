package envoylimit

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/httplimit"
)

// response.go makes the response.

// response returns the response to a request, by the decision on the descriptors that can refuse
// it.
func (s *Service) response(asks []ask, d httplimit.Decision) *ratelimitv3.RateLimitResponse {
	r := &ratelimitv3.RateLimitResponse{
		OverallCode: codeOf(!d.Outcome.Passed()),
		Statuses:    make([]*ratelimitv3.RateLimitResponse_DescriptorStatus, len(asks)),
	}
	for i := range asks {
		r.Statuses[i] = asks[i].status()
	}
	if s.policy.Shadow {
		return r
	}
	h := http.Header{}
	d.Describe(h)
	for name, values := range h {
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, &corev3.HeaderValue{Key: name, Value: values[0]})
	}
	slices.SortFunc(r.ResponseHeadersToAdd, func(a, b *corev3.HeaderValue) int { return strings.Compare(a.Key, b.Key) })
	return r
}

func codeOf(over bool) ratelimitv3.RateLimitResponse_Code {
	if over {
		return ratelimitv3.RateLimitResponse_OVER_LIMIT
	}
	return ratelimitv3.RateLimitResponse_OK
}

// status returns what the response says about the descriptor: only the code if its limit was not
// checked.
func (a *ask) status() *ratelimitv3.RateLimitResponse_DescriptorStatus {
	s := &ratelimitv3.RateLimitResponse_DescriptorStatus{}
	switch {
	case a.sum != nil && a.sum.answer != nil:
		answer := a.sum.answer
		s.Code, s.CurrentLimit = codeOf(a.sum.over), limitOf(a.sum)
		if a.rule != nil {
			s.CurrentLimit.Name = a.rule.Name
		}
		s.LimitRemaining = uint32(min(max(answer.Remaining, 0), math.MaxUint32))
		if reset := answer.Reset(); reset > 0 { // Envoy drops a fraction of a second
			s.DurationUntilReset = durationpb.New(reset)
		}
	default:
		s.Code = ratelimitv3.RateLimitResponse_OK
		if a.rule != nil && a.rule.HasRate && a.per() == rratelimiter.Unlimited {
			s.LimitRemaining = math.MaxUint32
		}
	}
	return s
}

// limitOf returns the limit of a sum in Envoy's units. An interval that is no number of seconds has
// no unit.
func limitOf(s *sum) *ratelimitv3.RateLimitResponse_RateLimit {
	rate := s.per()
	l := &ratelimitv3.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(min(rate.Permits, math.MaxUint32))}
	switch s.quota.Period {
	case "month":
		l.Unit = ratelimitv3.RateLimitResponse_RateLimit_MONTH
		return l
	case "year":
		l.Unit = ratelimitv3.RateLimitResponse_RateLimit_YEAR
		return l
	}
	for _, u := range []struct {
		unit ratelimitv3.RateLimitResponse_RateLimit_Unit
		long time.Duration
	}{
		{ratelimitv3.RateLimitResponse_RateLimit_WEEK, 7 * 24 * time.Hour},
		{ratelimitv3.RateLimitResponse_RateLimit_DAY, 24 * time.Hour},
		{ratelimitv3.RateLimitResponse_RateLimit_HOUR, time.Hour},
		{ratelimitv3.RateLimitResponse_RateLimit_MINUTE, time.Minute},
		{ratelimitv3.RateLimitResponse_RateLimit_SECOND, time.Second},
	} {
		times := rate.Interval / u.long
		if rate.Interval%u.long != 0 || times > math.MaxUint32 {
			continue
		}
		l.Unit = u.unit
		if times > 1 {
			l.UnitMultiplier = wrapperspb.UInt32(uint32(times))
		}
		break
	}
	return l
}
