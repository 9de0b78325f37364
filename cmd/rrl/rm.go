package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// rm.go is the subcommand rm.

func newRm() *cobra.Command {
	c := &common{}
	var yes bool
	cmd := c.live(&cobra.Command{
		Use:        "rm NAME...",
		SuggestFor: []string{"delete", "del", "remove"},
		Short:      "Remove limiters, with the state of all clients",
		Long: `rm removes a limiter: its rate, its grants, and the state of each client of a PER_CLIENT limiter, for which it goes
through all keys. It asks first; --yes is the answer. A key of another program is left alone. Services that set the rate
themselves make the limiter anew; all others fail until somebody sets a rate.`,
		Example:           "  rrl rm orders --yes",
		Args:              someNames,
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		var absent []string
		for _, arg := range args {
			name, err := s.named(arg)
			if err != nil {
				return err
			}
			found, err := s.rm(ctx, name, yes)
			if err != nil {
				return err
			}
			if !found {
				absent = append(absent, printable(name))
			}
		}
		if len(absent) > 0 {
			return fmt.Errorf("there is no limiter %s", strings.Join(absent, ", nor "))
		}
		return nil
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	c.flags(cmd)
	return cmd
}

// rm removes a limiter, and tells whether there was one. What another program keeps under the name is not touched.
func (s *session) rm(ctx context.Context, name string, yes bool) (bool, error) {
	l := s.limiter(name, "")
	there, err := l.Exists(ctx)
	if err != nil {
		return false, err
	}
	if there {
		own, err := s.isLimiter(ctx, name)
		if err != nil {
			return false, err
		}
		if !own {
			return false, fmt.Errorf("the key %s is another program's, no limiter: it was not removed", printable(name))
		}
	}
	rate, err := l.Config(ctx)
	what := fmt.Sprintf("%v", rate)
	if err != nil {
		if !tolerable(err) {
			return false, err
		}
		what = survey.Reason(err)
	}
	ids, err := l.Clients(ctx)
	if err != nil {
		return false, err
	}
	if !there && len(ids) == 0 {
		if there, err = s.holds(ctx, l); err != nil || !there {
			return false, err
		}
	}
	if !yes {
		clients := ""
		if len(ids) > 0 {
			clients = ", with the state of " + number(int64(len(ids)), "client")
		}
		if err := s.agree(ctx, fmt.Sprintf("Remove %s (%s)%s?", printable(name), what, clients)); err != nil {
			return false, err
		}
	}
	found, err := l.Delete(ctx)
	if err != nil {
		return false, err
	}
	clients := 0
	for _, id := range ids {
		there, err := s.limiter(name, id).Delete(ctx)
		if err != nil {
			return false, err
		}
		if there {
			clients++
		}
	}
	if !found && clients == 0 {
		return false, nil
	}
	if s.json {
		return true, s.emit(struct {
			jsonName
			Removed bool `json:"removed"`
			Clients int  `json:"clients"` // whose state went, too
		}{nameOf(name), true, clients})
	}
	s.say("%s: removed", printable(name))
	return true, nil
}

// holds tells whether Redis has anything of a limiter, be it grants alone.
func (s *session) holds(ctx context.Context, l *rratelimiter.Limiter) (bool, error) {
	if there, err := l.Exists(ctx); there || err != nil {
		return there, err
	}
	view, err := survey.Read(ctx, l, false, 0)
	return err == nil && (view.Keys[1].Type != "none" || view.Keys[2].Type != "none"), err
}

// someNames takes the names of limiters, one at least.
func someNames(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New(cmd.CommandPath() + " needs the name of a limiter; see " + cmd.CommandPath() + " --help")
	}
	return nil
}
