package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/manage"
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
		Short: "Set the rates of many limiters from a file; the grants of the new interval still count unless the type changes",
		Long: `apply sets the rates of limiters from a file, so that the file owns them. It does not change limiters that are not in
the file, and writes only rates that differ. The file is YAML:

  limits:
    orders: 100/s
    search:
      rate: 50/s
      per-client: true
      keep-alive: 1h
      reset: true        # forget live grants if the rate changes

By default all clients share the permits, and there is no keep-alive. A rate can say both, too: "50/s per client
keep-alive 1h". It is an error if keep-alive is given twice, or if per-client: false contradicts the rate. If anything
in the file is invalid, nothing is changed. With --diff the exit code is 2 if something differs.`,
		Example: `  rrl apply -f limits.yaml --diff
  rrl apply -f limits.yaml
  generate | rrl apply -f -`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		if file == "" {
			return errors.New("rrl apply needs -f FILE; -f - reads the standard input")
		}
		data, err := input(s.in, file)
		if err != nil {
			return err
		}
		all, err := manage.ReadLimits(data)
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

func (s *session) apply(ctx context.Context, all []manage.Wanted, diff bool) error {
	changed := 0
	for _, w := range all {
		change, err := manage.Compare(ctx, s.Server, w)
		if err != nil {
			return err
		}
		same := change.Same()
		change.Reset = change.Reset && !same
		if !same {
			changed++
			if !diff {
				if err := change.Apply(ctx, s.Server, s.clientsOf); err != nil {
					return err
				}
			}
		}
		if s.json {
			if err := s.Emit(changeOf(change)); err != nil {
				return err
			}
			continue
		}
		mark, style := "~", render.Warm
		switch {
		case same:
			mark, style = "=", render.Dim
		case change.Old == nil:
			mark, style = "+", render.Good
		}
		s.Say("%s", s.Paint(style, mark+" "+changeText(change)))
	}
	if diff && !s.json {
		s.Say("%d of %s would be changed", changed, render.Number(int64(len(all)), "limiter"))
	}
	if diff && changed > 0 {
		return exit{exitDiffers, nil}
	}
	return nil
}
