package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/manage"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
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
		Long: `rm removes limiters: the rate, the grants, and the state of all clients, for which it searches all keys. It
asks first, unless --yes is given. A key of another Redis type belongs to another program: it stays, and rm reports it.

Services with WithRate or WithEnforcedRate create the limiter again at their next request. Calls of all
others fail until trySetRate or setRate is called again.`,
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
				absent = append(absent, render.Printable(name))
			}
		}
		if len(absent) > 0 {
			return fmt.Errorf("there is no limiter %s", strings.Join(absent, ", nor "))
		}
		return nil
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	c.addFlags(cmd)
	return cmd
}

// rm removes a limiter, and returns whether there was one. It does not change keys of another program.
func (s *session) rm(ctx context.Context, name string, yes bool) (bool, error) {
	l := s.Limiter(name, "")
	there, err := l.Exists(ctx)
	if err != nil {
		return false, err
	}
	if there {
		own, err := survey.IsLimiter(ctx, s.Redis, name)
		if err != nil {
			return false, err
		}
		if !own {
			return false, fmt.Errorf("the key %s belongs to another program: it was not removed", render.Printable(name))
		}
	}
	rate, err := l.Config(ctx)
	what := fmt.Sprintf("%v", rate)
	if err != nil {
		if !survey.Tolerable(err) {
			return false, err
		}
		what = survey.Reason(err)
	}
	ids, err := l.Clients(ctx)
	if err != nil {
		return false, err
	}
	if !there && len(ids) == 0 {
		view, err := survey.Read(ctx, l, false, 0)
		if err != nil || view.Empty() {
			return false, err
		}
	}
	if !yes {
		clients := ""
		if len(ids) > 0 {
			clients = ", with the state of " + render.Number(int64(len(ids)), "client")
		}
		shown := render.Printable(name)
		if err := s.agree(ctx, fmt.Sprintf("Remove %s (%s)%s?", shown, what, clients)); err != nil {
			return false, fmt.Errorf("%s was not removed: %w", shown, err)
		}
	}
	gone, err := manage.Remove(ctx, s.Server, name, ids)
	if err != nil {
		return false, err
	}
	if !gone.Any {
		if len(gone.Left) > 0 {
			return false, fmt.Errorf("there is no limiter %s: %s", render.Printable(name), usedElsewhere(gone.Left))
		}
		return false, nil
	}
	if s.json {
		return true, s.Emit(struct {
			render.JSONName
			Removed bool     `json:"removed"`
			Clients int      `json:"clients"`        // clients whose state was removed
			Left    []string `json:"left,omitempty"` // keys that stay, since another program uses them
		}{render.NameOf(name), true, gone.Clients, keysOf(gone.Left)})
	}
	text := render.Printable(name) + ": removed"
	if len(gone.Left) > 0 {
		text += ", but " + usedElsewhere(gone.Left)
	}
	s.Say("%s", text)
	return true, nil
}

// usedElsewhere returns a text that another program uses keys.
func usedElsewhere(keys []survey.Foreign) string {
	var texts []string
	for _, key := range keys {
		texts = append(texts, key.String())
	}
	return "another program uses a key: " + strings.Join(texts, "; ")
}

// keysOf returns the names of such keys.
func keysOf(keys []survey.Foreign) (names []string) {
	for _, key := range keys {
		names = append(names, render.NameOf(key.Key).Name)
	}
	return names
}

// someNames accepts the names of one or more limiters.
func someNames(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New(cmd.CommandPath() + " needs the name of a limiter; see " + cmd.CommandPath() + " --help")
	}
	return nil
}
