package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter"
)

// domains.go parses the section domains of a file: limits for Envoy and other clients of its rate
// limit service, which the module envoylimit serves. A request of such a client has a domain, and
// descriptors, each of which is a list of entries.

// A Domain is a domain in a file: the rules of one configuration of Envoy's rate limit filter.
type Domain struct {
	Name        string
	Descriptors []Descriptor
}

// A Descriptor is a rule for descriptors whose next entry has a key and, if the rule has a Value,
// that value. The package envoylimit says how it finds the rule of a descriptor.
type Descriptor struct {
	Key   string
	Value string // "": any value; a * in it stands for any text
	// of a descriptor that ends with this entry; rratelimiter.Unlimited if HasRate is false, too
	Rate    rratelimiter.Rate
	HasRate bool // false: the rule is only for descriptors with further entries
	// The quota, if the rate is for a month or a year: Rate is not used then, and HasRate is true.
	// It cannot be combined with Lease.
	Quota  Quota
	Shadow bool // the descriptor is counted, but refuses no request
	// The hits of the descriptor were used already: they count in full, free or not. It cannot be
	// combined with Lease.
	Postpaid bool
	Shared   bool // all values that match Value share one limiter
	// Of rratelimiter.WithLease; 0: none. It cannot be combined with Postpaid, or with Quota.
	Lease time.Duration
	Name  string // in responses, and for Replaces of other rules; "": none
	// the label of metrics has the value of the entry, or, with DetailedMetric, of all entries
	ValueToMetric, DetailedMetric bool
	// names of rules that do not apply to a request to which this rule applies
	Replaces  []string
	Following []Descriptor // rules for the next entry
}

const (
	unlimited       = "unlimited"
	mostDescriptors = 10_000 // in a file: an alias can contain itself
)

// schema.json has the same
var descriptorFields = []string{
	"key", "value", "rate", "postpaid", "shadow", "shared", "lease", "name", "replaces", "value-to-metric",
	"detailed-metric",
	"descriptors",
}

// domains parses the section domains.
func (p *parser) domains(node *yaml.Node) []Domain {
	domains := []Domain{}
	p.named(node, "domains", func(name, value *yaml.Node) {
		p.names, p.replaced = map[string]bool{}, nil
		domains = append(domains, Domain{name.Value, p.descriptors(value, aDomain)})
		for _, r := range p.replaced {
			if !p.names[r.Value] {
				p.fault(r.Line, "replaces: no descriptor of the domain has the name %q", r.Value)
			}
		}
	})
	return domains
}

// descriptors parses a list of descriptors. what names the thing that must have them. A domain can
// have an empty list: then only descriptors with a rate of their own are limited.
func (p *parser) descriptors(node *yaml.Node, what string) []Descriptor {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 && what != aDomain {
		p.fault(node.Line, "%s must have a list of descriptors, each of which begins with \"- key:\"", what)
		return nil
	}
	return p.list(node, p.descriptor)
}

const aDomain = "a domain"

// list parses the elements of a list of descriptors.
func (p *parser) list(node *yaml.Node, each func(*yaml.Node) Descriptor) (all []Descriptor) {
	seen := map[[2]string]int{}
	for _, one := range node.Content {
		if p.count++; p.count > mostDescriptors {
			if p.count == mostDescriptors+1 {
				p.fault(one.Line, "the file has more than %d descriptors", mostDescriptors)
			}
			return nil
		}
		line := one.Line
		d := each(resolved(one))
		same := [2]string{d.Key, d.Value}
		if first := seen[same]; first > 0 && d.Key != "" {
			p.fault(line, "%s: a descriptor with this key and value is in line %d already", d.shown(), first)
		} else {
			seen[same] = line
		}
		all = append(all, d)
	}
	return all
}

// shown returns how a text of a Fault names the descriptor.
func (d Descriptor) shown() string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "=" + d.Value
}

// descriptor parses one descriptor.
func (p *parser) descriptor(node *yaml.Node) (d Descriptor) {
	fields := p.fields(node, "a descriptor", descriptorFields, envoyForm)
	if fields == nil {
		return d
	}
	text := func(field string) (value string) {
		if node := fields[field]; node != nil {
			var ok bool
			if value, ok = p.value(node, field); ok && value == "" {
				p.fault(node.Line, "%s is empty", field)
			}
		}
		return value
	}
	truth := func(field string) bool { return fields[field] != nil && p.truth(fields[field], field) }
	if d.Key = text("key"); fields["key"] == nil {
		p.fault(node.Line, "a descriptor has no field \"key\"")
	}
	d.Value, d.Name, d.Shadow, d.Shared = text("value"), text("name"), truth("shadow"), truth("shared")
	d.Postpaid, d.ValueToMetric, d.DetailedMetric = truth("postpaid"), truth("value-to-metric"),
		truth("detailed-metric")
	if node := fields["rate"]; node != nil {
		if d.HasRate = true; ofCalendar(node) {
			d.Quota = p.permits(node, "rate")
		} else {
			d.Rate = p.rateOrUnlimited(node)
		}
	}
	if node := fields["lease"]; node != nil {
		d.Lease = p.lease(node, d.Rate)
	}
	if node := fields["replaces"]; node != nil {
		d.Replaces = p.replaces(node, d.Name)
	}
	if node := fields["descriptors"]; node != nil {
		d.Following = p.descriptors(node, "descriptors")
	}
	p.complete(d, fields, node.Line)
	return d
}

// complete checks the fields of a descriptor together.
func (p *parser) complete(d Descriptor, fields map[string]*yaml.Node, line int) {
	if d.Name != "" {
		p.names[d.Name] = true
	}
	if d.Shared && !strings.Contains(d.Value, "*") {
		p.fault(fields["shared"].Line, "shared: the value must have a *, so that several values can share a limiter")
	}
	if !d.HasRate && fields["descriptors"] == nil {
		p.fault(line, "%s: it has neither a rate nor descriptors; to set no limit, write \"rate: unlimited\"",
			d.shown())
	}
	if d.Postpaid && d.Lease > 0 {
		p.fault(fields["lease"].Line, "lease: a limit with postpaid takes no permits ahead, so it has no lease")
	}
	for _, field := range []string{"postpaid", "shadow", "name", "replaces", "detailed-metric"} {
		if node := fields[field]; node != nil && !d.HasRate {
			p.fault(node.Line, "%s needs a rate in the same descriptor", field)
		}
	}
}

// lease parses a lease, which limiters of each rate must be able to have.
func (p *parser) lease(node *yaml.Node, rates ...rratelimiter.Rate) time.Duration {
	lease := p.duration(node, "lease")
	if lease == 0 {
		return 0
	}
	for _, rate := range rates {
		if rate == rratelimiter.Unlimited {
			p.fault(node.Line, "lease: it needs a rate, and not one for a month or a year")
			continue
		}
		p.validRate(node.Line, fmt.Sprintf("lease: with the rate %v", rate), rate, rratelimiter.WithLease(lease))
	}
	return lease
}

// duration parses a field with a time. It is 0 if it has a fault.
func (p *parser) duration(node *yaml.Node, field string) time.Duration {
	text, ok := p.value(node, field)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d%time.Millisecond != 0 {
		p.fault(node.Line, "%s: %q is not a positive number of whole milliseconds, such as 100ms", field, text)
		return 0
	}
	return d
}

// replaces parses the names of other descriptors. Domain checks that they exist.
func (p *parser) replaces(node *yaml.Node, own string) (names []string) {
	for _, v := range p.values(node, "replaces") {
		if v.Value == own || slices.Contains(names, v.Value) {
			p.fault(v.Line, "replaces: %q is the descriptor itself, or is in the list twice", v.Value)
			continue
		}
		names = append(names, v.Value)
		p.replaced = append(p.replaced, v)
	}
	return names
}
