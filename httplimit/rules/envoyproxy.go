package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter"
)

// envoyproxy.go reads files of github.com/envoyproxy/ratelimit: one domain each, with other names
// of fields than domains.go has. It makes the same Domain. A file that works there works here, or
// has a fault: what would decide otherwise is refused, and what has no effect there has none here.

// A Finding says what becomes of a field in the files of envoyproxy/ratelimit.
type Finding struct {
	File    string
	Line    int    // where the field stands first, from 1
	Field   string // with its value, if that matters: "unit: month"
	Ignored bool
	Why     string
}

// The fields, and where they stand.
var (
	theirTop        = []string{"domain", "descriptors"}
	theirDescriptor = []string{
		"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric",
		"share_threshold", "metadata",
	}
	theirRate    = []string{"unit", "requests_per_unit", "unlimited", "name", "replaces"}
	theirReplace = []string{"name"}
	theirFields  = slices.Concat(theirTop, theirDescriptor, theirRate) // with repetitions
)

// theirUnits are the units with a fixed length.
var theirUnits = map[string]time.Duration{
	"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// works says what the fields do here that stand for the same thing there.
var works = map[string]string{
	"domain":            "the domain of Envoy's filter",
	"key":               "the key of an entry",
	"value":             "the value of an entry; a * stands for any text",
	"descriptors":       "rules for the next entry",
	"rate_limit":        "field rate",
	"requests_per_unit": "permits in an interval",
	"unlimited":         "rate: unlimited",
	"name":              "field name",
	"replaces":          "field replaces",
	"shadow_mode":       "field shadow: counted, and refuses no request",
	"detailed_metric":   "field detailed-metric: metrics by the values of all entries",
	"value_to_metric":   "field value-to-metric: metrics by the value of the entry",
	"share_threshold":   "field shared: all values that match the * have one limiter",
}

// isTheirs reports whether a file has the format of envoyproxy/ratelimit.
func isTheirs(document *yaml.Node) bool {
	for i := 0; i+1 < len(document.Content) && document.Kind == yaml.MappingNode; i += 2 {
		if slices.Contains(theirTop, document.Content[i].Value) {
			return true
		}
	}
	return false
}

// found adds a Finding, unless there is one for the field. Fields come in any order.
func (p *parser) found(line int, field string, ignored bool, why string) {
	same := func(f Finding) bool { return f.Field == field && f.Ignored == ignored }
	switch at := slices.IndexFunc(p.findings, same); {
	case at < 0:
		p.findings = append(p.findings, Finding{p.file, line, field, ignored, why})
	case p.findings[at].File == p.file:
		p.findings[at].Line = min(p.findings[at].Line, line)
	}
}

// theirs parses a file of envoyproxy/ratelimit.
func (p *parser) theirs(document *yaml.Node) Domain {
	fields := p.theirFields(document, "the file", theirTop)
	name := p.theirText(fields, "domain")
	if at := fields["domain"]; at == nil || at.Kind == yaml.ScalarNode && name == "" {
		p.fault(document.Line, "domain is missing or empty; %s", theirForm)
	} else {
		p.once(at.Line, "domain", name)
	}
	before := len(p.faults)
	p.names, p.replaced = map[string]bool{}, nil
	d := Domain{name, p.theirDescriptors(fields["descriptors"])}
	for _, r := range p.replaced {
		if !p.names[r.Value] {
			p.found(r.Line, "replaces "+r.Value, true, "no limit of the domain has this name")
		}
	}
	p.known(d.Descriptors)
	if name != "" {
		p.prefix(before, name)
	}
	return d
}

// theirFields returns the values of the fields that a mapping can have. Null stands for no field.
func (p *parser) theirFields(node *yaml.Node, what string, own []string) map[string]*yaml.Node {
	placed := *node // without fields that belong elsewhere
	placed.Content = nil
	all := p.merged(node)
	for i := 0; i+1 < len(all); i += 2 {
		name, value := all[i], resolved(all[i+1])
		switch known := slices.Contains(own, name.Value); {
		case value.Tag == "!!null":
		case !known && slices.Contains(theirFields, name.Value):
			p.found(name.Line, name.Value+" in "+what, true, "it has no effect there, as in envoyproxy/ratelimit")
		default:
			if works[name.Value] != "" {
				p.found(name.Line, name.Value, false, works[name.Value])
			}
			placed.Content = append(placed.Content, name, value)
		}
	}
	return p.fields(&placed, what, own, theirForm)
}

// merged returns the names and the values of the fields of a mapping, and of those that it merges
// (<<): its own have precedence, and of two others the first one. It is a fault if
// envoyproxy/ratelimit would decide otherwise. nil: no mapping, or one that is merged with itself.
func (p *parser) merged(node *yaml.Node) []*yaml.Node {
	if known, is := p.merges[node]; is || node.Kind != yaml.MappingNode {
		return known
	}
	p.merges[node] = nil
	fields := []*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Tag != mergeTag {
			fields = append(fields, node.Content[i], node.Content[i+1])
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		at, others := node.Content[i], []*yaml.Node{node.Content[i+1]}
		if at.Tag != mergeTag {
			continue
		}
		p.found(at.Line, "<<", false, "the fields of another mapping")
		if list := resolved(others[0]); list.Kind == yaml.SequenceNode {
			others = list.Content
		}
		for _, other := range others {
			more := p.merged(resolved(other))
			if more == nil {
				p.fault(at.Line, "<< must have a mapping, or a list of mappings, and not the mapping itself")
			}
			for j := 0; j+1 < len(more); j += 2 {
				name, value := more[j], more[j+1]
				own := place(fields, name.Value)
				switch {
				case own < 0:
					fields = append(fields, name, value)
				case place(node.Content[:i], name.Value) >= 0:
					p.fault(at.Line, "<< has %s, too, which stands before it: write << first", name.Value)
				case resolved(value).Kind == yaml.MappingNode && resolved(fields[own+1]).Kind == yaml.MappingNode:
					p.fault(at.Line, "<< has %s, too; envoyproxy/ratelimit would mix the two", name.Value)
				}
			}
		}
	}
	p.merges[node] = fields
	return fields
}

const mergeTag = "!!merge"

// place returns the index of the name of a field; -1 if there is no such field.
func place(fields []*yaml.Node, name string) int {
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i].Value == name {
			return i
		}
	}
	return -1
}

// theirText returns the text of a field; "" if there is no such field.
func (p *parser) theirText(fields map[string]*yaml.Node, field string) (text string) {
	if node := fields[field]; node != nil {
		text, _ = p.value(node, field)
	}
	return text
}

// theirTruth returns the value of a field that is true or false, as YAML 1.1 writes it.
func (p *parser) theirTruth(fields map[string]*yaml.Node, field string) bool {
	text := p.theirText(fields, field)
	switch {
	case slices.Contains([]string{"y", "yes", "on", "true"}, strings.ToLower(text)):
		return true
	case text != "" && !slices.Contains([]string{"n", "no", "off", "false"}, strings.ToLower(text)):
		p.fault(fields[field].Line, "%s must be true or false", field)
	}
	return false
}

// theirDescriptors parses a list of descriptors, which may be missing.
func (p *parser) theirDescriptors(node *yaml.Node) []Descriptor {
	switch {
	case node == nil:
		return nil
	case node.Kind != yaml.SequenceNode:
		p.fault(node.Line, "descriptors must be a list")
		return nil
	}
	return p.list(node, p.theirDescriptor)
}

// theirDescriptor parses one descriptor.
func (p *parser) theirDescriptor(node *yaml.Node) (d Descriptor) {
	fields := p.theirFields(node, "a descriptor", theirDescriptor)
	if fields == nil {
		return d
	}
	d.Key, d.Value = p.theirText(fields, "key"), p.theirText(fields, "value")
	switch {
	case d.Key == "":
		p.fault(node.Line, "key is missing or empty")
	case strings.Contains(d.Key, "*"):
		p.fault(fields["key"].Line, "key: a * stands for any text only in a value, not in the key %q", d.Key)
	}
	if d.Shared = p.theirTruth(fields, "share_threshold"); d.Shared && !strings.Contains(d.Value, "*") {
		at := fields["share_threshold"]
		p.fault(at.Line, "share_threshold: the value must have a *, so that several values can share a limit")
	}
	d.ValueToMetric = p.theirTruth(fields, "value_to_metric")
	if p.theirTruth(fields, "quota_mode") {
		at := fields["quota_mode"]
		p.fault(at.Line, "quota_mode is not supported: such a limit would refuse requests that it lets pass there")
	}
	if node := fields["metadata"]; node != nil {
		p.found(node.Line, "metadata", true, "responses have no metadata")
	}
	d.Following = p.theirDescriptors(fields["descriptors"])
	shadow, detailed := p.theirTruth(fields, "shadow_mode"), p.theirTruth(fields, "detailed_metric")
	if node := fields["rate_limit"]; node != nil {
		d.HasRate, d.Shadow, d.DetailedMetric = true, shadow, detailed
		p.theirRate(&d, node)
		return d
	}
	for field, set := range map[string]bool{"shadow_mode": shadow, "detailed_metric": detailed} {
		if set {
			p.found(fields[field].Line, field+" without rate_limit", true,
				"it has no effect there, as in envoyproxy/ratelimit")
		}
	}
	if len(d.Following) == 0 {
		d.HasRate = true
		p.found(node.Line, "neither rate_limit nor descriptors", false, "rate: unlimited")
	}
	return d
}

// theirRate parses the field rate_limit of a descriptor.
func (p *parser) theirRate(d *Descriptor, node *yaml.Node) {
	fields := p.theirFields(node, "rate_limit", theirRate)
	if fields == nil {
		return
	}
	if d.Name = p.theirText(fields, "name"); d.Name != "" {
		p.names[d.Name] = true
	}
	if list := fields["replaces"]; list != nil {
		d.Replaces = p.theirReplaces(list, d.Name)
	}
	unit := strings.ToLower(p.theirText(fields, "unit"))
	interval, calendar := theirUnits[unit], unit == "month" || unit == "year"
	known := interval > 0 || calendar
	if p.theirTruth(fields, "unlimited") {
		if known {
			p.fault(fields["unit"].Line, "unit: a limit is either unlimited, or has a unit")
		}
		return
	}
	permits, ok := int64(0), true
	if number := fields["requests_per_unit"]; number == nil {
		p.found(node.Line, "no requests_per_unit", false, "0: it refuses each request")
	} else if n, err := strconv.ParseUint(p.theirText(fields, "requests_per_unit"), 0, 32); err == nil {
		permits = int64(n)
	} else {
		ok = false
		p.fault(number.Line, "requests_per_unit: %q is no whole number from 0 to 4294967295", number.Value)
	}
	switch at := fields["unit"]; {
	case at == nil:
		p.fault(node.Line, "unit is missing: second, minute, hour, day, week, month or year")
	case !known:
		p.fault(at.Line, "unit: %q is none of second, minute, hour, day, week, month, year", at.Value)
	case !ok:
	case calendar:
		d.Quota = Quota{Permits: permits, Period: unit}
		if permits == 0 { // a quota has at least one
			d.Quota, d.Rate = Quota{}, rratelimiter.PerSecond(0)
		}
		days := map[string]int{"month": 30, "year": 365}[unit]
		p.found(at.Line, "unit: "+unit, false,
			fmt.Sprintf("a quota for each %s of the calendar, in UTC; there for each %d days since 1970", unit, days))
	default:
		d.Rate = rratelimiter.Rate{Permits: permits, Interval: interval}
		why := fmt.Sprintf("a sliding window: any %[1]s; there each %[1]s of the clock", unit)
		p.found(at.Line, "unit: "+unit, false, why)
	}
}

// theirReplaces parses the names of other limits.
func (p *parser) theirReplaces(list *yaml.Node, own string) (names []string) {
	if list.Kind != yaml.SequenceNode {
		p.fault(list.Line, "replaces must be a list, in which each line begins with \"- name:\"")
		return nil
	}
	for _, one := range list.Content {
		fields := p.theirFields(resolved(one), "replaces", theirReplace)
		switch name := p.theirText(fields, "name"); {
		case fields == nil: // a fault
		case name == "" || name == own:
			p.fault(one.Line, "replaces: the name is empty, or that of the limit itself")
		case !slices.Contains(names, name):
			names = append(names, name)
			p.replaced = append(p.replaced, fields["name"])
		}
	}
	return names
}

// known takes the names that no limit of the domain has out of the lists of those that are
// replaced.
func (p *parser) known(descriptors []Descriptor) {
	for i := range descriptors {
		d := &descriptors[i]
		d.Replaces = slices.DeleteFunc(d.Replaces, func(name string) bool { return !p.names[name] })
		if len(d.Replaces) == 0 {
			d.Replaces = nil
		}
		p.known(d.Following)
	}
}
