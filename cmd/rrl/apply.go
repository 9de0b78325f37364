package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// apply.go is the subcommand apply: a file owns the rates of many limiters.

// exitDiffers is the exit code of apply --diff if something differs.
const exitDiffers = 2

func newApply() *cobra.Command {
	c := &common{}
	var file string
	var diff bool
	cmd := c.live(&cobra.Command{
		Use:   "apply -f FILE",
		Short: "Set the rates of many limiters from a file; live grants stay counted",
		Long: `apply sets the rates of limiters from a file, so that the file owns them. Limiters that are not in the file, and rates that
are equal already, stay unchanged. The file is YAML:

  limits:
    orders: 100/s
    search:
      rate: 50/s
      per-client: true
      keep-alive: 1h
      reset: true        # forget live grants if the rate changes

By default all clients share the permits, and there is no keep-alive. A rate such as "50/s per client keep-alive 1h" sets
both; a field that contradicts it is an error. Nothing is changed unless the whole file is valid. Exit code 2 with --diff
if something differs.`,
		Example: `  rrl apply -f limits.yaml --diff
  rrl apply -f limits.yaml
  generate | rrl apply -f -`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		if file == "" {
			return errors.New("-f names the file; - is the standard input")
		}
		data, err := input(s.in, file)
		if err != nil {
			return err
		}
		all, err := readLimits(data)
		if err != nil {
			if file == "-" {
				file = "the standard input"
			}
			return fmt.Errorf("%s: %w", file, err)
		}
		return s.apply(ctx, all, diff)
	})
	cmd.Flags().StringVarP(&file, "file", "f", "", "the `file`; - is the standard input")
	cmd.Flags().BoolVar(&diff, "diff", false, "only print what would be changed")
	c.addFlags(cmd)
	return cmd
}

func (s *session) apply(ctx context.Context, all []wanted, diff bool) error {
	changed := 0
	for _, w := range all {
		change, err := s.compare(ctx, w)
		if err != nil {
			return err
		}
		same := change.old != nil && *change.old == change.rate
		change.reset = change.reset && !same
		if !same {
			changed++
			if !diff {
				if err := s.change(ctx, &change); err != nil {
					return err
				}
			}
		}
		if s.json {
			if err := s.Emit(change.json()); err != nil {
				return err
			}
			continue
		}
		mark, style := "~", render.Warm
		switch {
		case same:
			mark, style = "=", render.Dim
		case change.old == nil:
			mark, style = "+", render.Good
		}
		s.Say("%s", s.Paint(style, mark+" "+change.text()))
	}
	if diff && !s.json {
		s.Say("%d of %s would be changed", changed, render.Number(int64(len(all)), "limiter"))
	}
	if diff && changed > 0 {
		return exit{exitDiffers, nil}
	}
	return nil
}

// oneLine returns an error of YAML without its line breaks.
func oneLine(err error) error {
	if all := (*yaml.TypeError)(nil); errors.As(err, &all) {
		return errors.New(strings.Join(all.Errors, "; "))
	}
	return err
}

// limit is an entry of the file. A nil field is not set beside the rate.
type limit struct {
	Rate      string  `yaml:"rate"`
	PerClient *bool   `yaml:"per-client"`
	KeepAlive *string `yaml:"keep-alive"`
	Reset     bool    `yaml:"reset"`
}

// readLimits reads the file, in its order. Errors name the line.
func readLimits(data []byte) ([]wanted, error) {
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
		return nil, fmt.Errorf("line %d: a second document: all entries must stand in one", more.Line)
	case err != io.EOF:
		return nil, err
	}
	top := file.Content[0]
	if top.Kind != yaml.MappingNode || len(top.Content) != 2 || top.Content[0].Value != "limits" {
		return nil, fmt.Errorf("line %d: the entries must stand under limits, and nothing beside it; see rrl apply --help", top.Line)
	}
	entries := top.Content[1]
	if entries.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: limits must have an entry for each limiter, such as orders: 100/s", entries.Line)
	}
	var all []wanted
	seen := map[string]int{}
	for i := 0; i < len(entries.Content); i += 2 {
		key, value := entries.Content[i], entries.Content[i+1]
		var name string
		if err := key.Decode(&name); err != nil || key.Kind != yaml.ScalarNode || key.Tag == "!!null" {
			return nil, fmt.Errorf("line %d: this is no name", key.Line)
		}
		if seen[name] > 0 {
			return nil, fmt.Errorf("line %d: %s is there already, in line %d", key.Line, render.Printable(name), seen[name])
		}
		seen[name] = key.Line
		w, err := readLimit(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", key.Line, render.Printable(name), err)
		}
		w.name = name
		all = append(all, w)
	}
	return all, nil
}

func readLimit(node *yaml.Node) (w wanted, err error) {
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
			return w, oneLine(err)
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
			return w, fmt.Errorf("keep-alive %q is no duration, such as 1h", *l.KeepAlive)
		}
		if rate.KeepAlive != 0 {
			return w, fmt.Errorf("line %d: keep-alive is given twice: the rate %q has one, too", lineOf(node, "keep-alive"), l.Rate)
		}
		rate.KeepAlive = keepAlive
	}
	if l.PerClient != nil {
		if !*l.PerClient && rate.Type == rratelimiter.PerClient {
			return w, fmt.Errorf("line %d: per-client is false, but the rate %q is per client", lineOf(node, "per-client"), l.Rate)
		}
		if *l.PerClient {
			rate.Type = rratelimiter.PerClient
		}
	}
	if rate, err = rratelimiter.ParseRate(rate.String()); err != nil { // check the whole rate
		return w, err
	}
	perClient := rate.Type == rratelimiter.PerClient
	return wanted{rate: rate, kind: &perClient, keepAlive: &rate.KeepAlive, reset: l.Reset}, nil
}

// lineOf returns the line of a field of an entry, or of the entry if the field comes from elsewhere (<<).
func lineOf(entry *yaml.Node, field string) int {
	for i := 0; i < len(entry.Content); i += 2 {
		if entry.Content[i].Value == field {
			return entry.Content[i].Line
		}
	}
	return entry.Line
}
