package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// names.go selects the limiters of a command that takes several: by their names, or by --match.

// allNamed parses names.
func (s *session) allNamed(args []string) (names []string, err error) {
	for _, arg := range args {
		name, err := s.named(arg)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// addPattern adds the flag --match.
func addPattern(cmd *cobra.Command, pattern *string) {
	cmd.Flags().
		StringVar(pattern, "match", "",
			"all limiters whose name matches `PATTERN` (as in Redis: * ? [a-z]), in place of a NAME")
}

// orPattern accepts a pattern, or else the arguments that names accepts.
func orPattern(pattern *string, names cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case !cmd.Flags().Changed("match"):
			return names(cmd, args)
		case *pattern == "":
			return errors.New("--match is empty: is a variable not set? All limiters match '*'")
		case len(args) > 0:
			return errors.New("--match takes the place of a NAME: put the pattern in quotes, so that the shell leaves it alone")
		}
		return nil
	}
}

// chosen returns the names of the arguments or, with a pattern, the limiters that match it.
func (s *session) chosen(ctx context.Context, args []string, pattern string) ([]string, error) {
	if pattern == "" {
		return s.allNamed(args)
	}
	pattern, err := s.named(pattern)
	if err != nil {
		return nil, err
	}
	p := s.progress(ctx)
	defer p.done()
	names, err := survey.Limiters(ctx, s.Redis, pattern, p.step)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no limiter matches %s", render.Printable(pattern))
	}
	return names, err
}
