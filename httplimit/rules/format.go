package rules

import (
	"bytes"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter"
)

// format.go writes domains as a file: what envoyproxy.go has read, in the format of this project.

// Format returns the section domains of a file. ParseFile reads the same domains from it.
func Format(domains []Domain) ([]byte, error) {
	sections := &yaml.Node{Kind: yaml.MappingNode}
	for _, d := range domains {
		rules := &yaml.Node{}
		if err := rules.Encode(written(d.Descriptors)); err != nil {
			return nil, err
		}
		name := &yaml.Node{}
		name.SetString(d.Name)
		sections.Content = append(sections.Content, name, rules)
	}
	var text bytes.Buffer
	e := yaml.NewEncoder(&text)
	e.SetIndent(2)
	if err := e.Encode(map[string]*yaml.Node{"domains": sections}); err != nil {
		return nil, err
	}
	return text.Bytes(), e.Close()
}

// A line has the fields of a Descriptor as text.
type line struct {
	Key           string   `yaml:"key"`
	Value         string   `yaml:"value,omitempty"`
	Rate          string   `yaml:"rate,omitempty"`
	Postpaid      bool     `yaml:"postpaid,omitempty"`
	Shadow        bool     `yaml:"shadow,omitempty"`
	Shared        bool     `yaml:"shared,omitempty"`
	Lease         string   `yaml:"lease,omitempty"`
	Name          string   `yaml:"name,omitempty"`
	Replaces      []string `yaml:"replaces,omitempty,flow"`
	Detailed      bool     `yaml:"detailed-metric,omitempty"`
	ValueToMetric bool     `yaml:"value-to-metric,omitempty"`
	Following     []line   `yaml:"descriptors,omitempty"`
}

// written returns the lines of descriptors.
func written(descriptors []Descriptor) []line {
	lines := make([]line, len(descriptors))
	for i, d := range descriptors {
		lines[i] = line{
			Key: d.Key, Value: d.Value, Rate: d.RateText(), Postpaid: d.Postpaid, Shadow: d.Shadow,
			Shared:        d.Shared,
			Name:          d.Name,
			Replaces:      d.Replaces,
			Detailed:      d.DetailedMetric,
			ValueToMetric: d.ValueToMetric,
			Following:     written(d.Following),
		}
		if d.Lease > 0 {
			lines[i].Lease = d.Lease.String()
		}
	}
	return lines
}

// RateText returns the rate or the quota as in a file; "" without one.
func (d Descriptor) RateText() string {
	switch {
	case !d.HasRate:
		return ""
	case d.Quota.Period != "":
		return d.Quota.String()
	case d.Rate == rratelimiter.Unlimited:
		return unlimited
	}
	return d.Rate.String()
}
