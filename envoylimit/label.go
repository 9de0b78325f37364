package envoylimit

import (
	"net/url"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// label.go makes labels for metrics from the names of limiters.

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

// Label is the function Label, with the values of entries for which rules have ValueToMetric or
// DetailedMetric: "shop:remote_address=192.0.2.1:method". Values can be many: promlimit counts
// those above Config.MostLabels as "other".
func (s *Service) Label(limiter string) string {
	label := Label(limiter)
	domains := s.domains.Load()
	if label == "" || domains == nil {
		return label
	}
	parts := strings.Split(limiter, ":")
	last := len(parts) - 1
	domain, _ := url.QueryUnescape(parts[last]) // escapes as internal/keys, but for texts that were cut
	r := (*domains)[domain]
	if r == nil {
		return label
	}
	label = parts[last]
	labels, detailed := parts[1:last], strings.Join(parts[1:last], ":")
	for i, part := range labels {
		key, value, _ := strings.Cut(part, "=")
		labels[i] = key
		if r == nil {
			continue
		}
		e := &ratelimit.RateLimitDescriptor_Entry{}
		e.Key, _ = url.QueryUnescape(key)
		e.Value, _ = url.QueryUnescape(value)
		if r = r.next(e); r != nil && r.ValueToMetric {
			labels[i] = part
		}
	}
	if r != nil && r.DetailedMetric {
		return label + ":" + detailed
	}
	return label + ":" + strings.Join(labels, ":")
}
