package envoylimit

import (
	"regexp"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/rratelimiter/rratelimiter/httplimit/rules"
)

// match.go finds the rule of a descriptor. It does not know limiters.

// A rule is a rule of a file, ready to be found. The domain itself is a rule for no entry.
type rule struct {
	rules.Descriptor
	label   string         // the name of the limit in responses
	pattern *regexp.Regexp // of a value with a *; nil: the value has none
	// rules for the next entry, by key and value; the value is "" if the rule has none
	exact map[[2]string]*rule
	// rules for the next entry whose value has a *, in the order of the file
	patterns []*rule
}

// newRule returns the rule of a descriptor in a file, with those below it. above is the label of
// the rule above it.
func newRule(d rules.Descriptor, above string) *rule {
	r := &rule{Descriptor: d, label: d.Key, exact: map[[2]string]*rule{}}
	if d.Value != "" {
		r.label += "=" + d.Value
	}
	if above != "" {
		r.label = above + "," + r.label
	}
	if strings.Contains(d.Value, "*") {
		r.pattern = regexp.MustCompile(`(?s)\A` + strings.ReplaceAll(regexp.QuoteMeta(d.Value), `\*`, `.*`) + `\z`)
	}
	for _, d := range d.Following {
		below := newRule(d, r.label)
		if below.pattern != nil {
			r.patterns = append(r.patterns, below)
		}
		r.exact[[2]string{d.Key, d.Value}] = below
	}
	if d.Name != "" {
		r.label = d.Name
	}
	return r
}

// next returns the rule for the next entry; nil if there is none.
func (r *rule) next(e *ratelimit.RateLimitDescriptor_Entry) *rule {
	if found := r.exact[[2]string{e.Key, e.Value}]; found != nil && e.Value != "" {
		return found
	}
	for _, p := range r.patterns {
		if p.Key == e.Key && p.pattern.MatchString(e.Value) {
			return p
		}
	}
	return r.exact[[2]string{e.Key, ""}]
}

// find returns the rule of the last entry of a descriptor, and the values of its limiter: those of
// shared rules take the place of the entries'. The rule is nil if there is none.
func (r *rule) find(entries []*ratelimit.RateLimitDescriptor_Entry) (*rule, []string) {
	values := make([]string, len(entries))
	for i, e := range entries {
		if r = r.next(e); r == nil {
			return nil, nil
		}
		values[i] = e.Value
		if r.Shared {
			values[i] = r.Value
		}
	}
	return r, values
}
