package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// release.go is the subcommand release.

func newRelease() *cobra.Command {
	c := &common{whose: true}
	cmd := c.live(&cobra.Command{
		Use:   "release NAME N",
		Short: "Give permits back before their time, those of the oldest grants first",
		Long: `release gives N granted permits back before they expire, those of the oldest grants first. At most
the permits in use come back; it prints how many. With --client all, N permits of each client are given back.`,
		Example: "  rrl release orders 5",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("rrl release needs the name of a limiter and a number, such as: rrl release orders 5")
			}
			return nil
		},
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, args []string) error {
		name, err := s.named(args[0])
		if err != nil {
			return err
		}
		n, err := permitsOf(args[1])
		if err != nil {
			return err
		}
		states, err := s.states(ctx, name)
		if err != nil {
			return err
		}
		for _, l := range states {
			back, err := l.Release(ctx, n)
			if err != nil {
				return err
			}
			if s.json {
				err = s.Emit(struct {
					render.JSONName
					Client   string `json:"client,omitempty"`
					Released int64  `json:"released"`
				}{render.NameOf(name), l.Of, back})
			} else {
				s.Say("%s: %s given back", s.titled(l), render.Number(back, "permit"))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	c.addFlags(cmd)
	return cmd
}

// permitsOf parses a number of permits.
func permitsOf(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is not a number of permits", text)
	}
	return n, nil
}

// titled returns the name of a limiter, with its client if one is selected.
func (s *session) titled(l *connect.Limiter) string {
	text := render.Printable(l.Name())
	if l.Of != "" {
		text += " of " + render.Printable(l.Of)
	}
	return text
}
