package rls

import (
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// fields.go replaces the header fields of responses.

// named returns the header fields with these names for the limit, what remains of it, and the
// seconds until its reset, of the descriptor that is nearest to its limit; none if no limit was
// checked.
func named(names []string, r *ratelimitv3.RateLimitResponse) (fields []*corev3.HeaderValue) {
	var nearest *ratelimitv3.RateLimitResponse_DescriptorStatus
	for _, s := range r.Statuses {
		if s.CurrentLimit != nil && (nearest == nil || over(s) && !over(nearest) ||
			over(s) == over(nearest) && s.LimitRemaining < nearest.LimitRemaining) {
			nearest = s
		}
	}
	if nearest == nil {
		return nil
	}
	reset := (nearest.DurationUntilReset.AsDuration() + time.Second - 1) / time.Second
	for i, value := range []uint64{
		uint64(nearest.CurrentLimit.RequestsPerUnit), uint64(nearest.LimitRemaining), uint64(reset),
	} {
		fields = append(fields, &corev3.HeaderValue{Key: names[i], Value: strconv.FormatUint(value, 10)})
	}
	return fields
}

func over(s *ratelimitv3.RateLimitResponse_DescriptorStatus) bool {
	return s.Code == ratelimitv3.RateLimitResponse_OVER_LIMIT
}
