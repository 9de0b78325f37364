package manage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// file.go reads the file of rrl apply.

// typeErrors returns the text of all fields that have values of other types, in one line.
func typeErrors(err error) error {
	all := (*yaml.LoadErrors)(nil)
	if !errors.As(err, &all) {
		return err
	}
	texts := make([]string, len(all.Errors))
	for i, one := range all.Errors {
		texts[i] = fmt.Sprintf("line %d: %s", one.Mark.Line, one.Message)
	}
	return errors.New(strings.Join(texts, "; "))
}

// limit is an entry of the file. A nil field is not set beside the rate.
type limit struct {
	Rate      string  `yaml:"rate"`
	PerClient *bool   `yaml:"per-client"`
	KeepAlive *string `yaml:"keep-alive"`
	Reset     bool    `yaml:"reset"`
}

// ReadLimits reads the file, in its order. Errors name the line.
func ReadLimits(data []byte) ([]Wanted, error) {
	var file, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	switch err := documents.Decode(&file); {
	case err == io.EOF || err == nil && len(file.Content) == 0:
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, err
	}
	switch err := documents.Decode(&more); {
	case err == nil:
		return nil, fmt.Errorf("line %d: the file has a second document: all entries must be in one", more.Line)
	case err != io.EOF:
		return nil, err
	}
	top := file.Content[0]
	if top.Kind != yaml.MappingNode || len(top.Content) != 2 || top.Content[0].Value != "limits" {
		return nil, fmt.Errorf(
			"line %d: the entries must be under limits, the only key at the top; see rrl apply --help", top.Line,
		)
	}
	entries := top.Content[1]
	if entries.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: limits must have an entry for each limiter, such as orders: 100/s",
			entries.Line)
	}
	var all []Wanted
	seen := map[string]int{}
	for i := 0; i < len(entries.Content); i += 2 {
		key, value := entries.Content[i], entries.Content[i+1]
		var name string
		if err := key.Decode(&name); err != nil || key.Kind != yaml.ScalarNode || key.Tag == "!!null" {
			return nil, fmt.Errorf("line %d: this is not a name", key.Line)
		}
		if seen[name] > 0 {
			return nil, fmt.Errorf("line %d: %s is there already, in line %d",
				key.Line, render.Printable(name), seen[name])
		}
		seen[name] = key.Line
		w, err := readLimit(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", key.Line, render.Printable(name), err)
		}
		w.Name = name
		all = append(all, w)
	}
	return all, nil
}

func readLimit(node *yaml.Node) (w Wanted, err error) {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	var l limit
	switch node.Kind {
	case yaml.ScalarNode:
		l.Rate = node.Value
	case yaml.MappingNode:
		for i := 0; i < len(node.Content); i += 2 {
			switch field := node.Content[i].Value; field {
			case "rate", "per-client", "keep-alive", "reset", "<<":
			default:
				return w, fmt.Errorf("unknown field %q: rate, per-client, keep-alive and reset are known", field)
			}
		}
		if err := node.Decode(&l); err != nil {
			return w, typeErrors(err)
		}
	default:
		return w, errors.New("neither a rate nor fields")
	}
	rate, err := rratelimiter.ParseRate(l.Rate)
	if err != nil {
		return w, err
	}
	if l.KeepAlive != nil {
		keepAlive, err := time.ParseDuration(*l.KeepAlive)
		if err != nil {
			return w, fmt.Errorf("keep-alive %q is not a duration, such as 1h", *l.KeepAlive)
		}
		if rate.KeepAlive != 0 {
			return w, fmt.Errorf(
				"line %d: keep-alive is given twice: the rate %q has one, too", lineOf(node, "keep-alive"), l.Rate,
			)
		}
		rate.KeepAlive = keepAlive
	}
	if l.PerClient != nil {
		if !*l.PerClient && rate.Type == rratelimiter.PerClient {
			return w, fmt.Errorf(
				"line %d: per-client is false, but the rate %q is per client", lineOf(node, "per-client"), l.Rate,
			)
		}
		if *l.PerClient {
			rate.Type = rratelimiter.PerClient
		}
	}
	if rate, err = rratelimiter.ParseRate(rate.String()); err != nil { // check the whole rate
		return w, err
	}
	perClient := rate.Type == rratelimiter.PerClient
	return Wanted{Rate: rate, PerClient: &perClient, KeepAlive: &rate.KeepAlive, Reset: l.Reset}, nil
}

// lineOf returns the line of a field of an entry, or of the entry if the field comes from elsewhere
// (<<).
func lineOf(entry *yaml.Node, field string) int {
	for i := 0; i < len(entry.Content); i += 2 {
		if entry.Content[i].Value == field {
			return entry.Content[i].Line
		}
	}
	return entry.Line
}
