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
	var pattern string
	cmd := c.live(&cobra.Command{
		Use:        "rm {NAME... | --match PATTERN}",
		SuggestFor: []string{"delete", "del", "remove"},
		Short:      "Remove limiters, with the state of all clients",
		Long: `rm removes limiters: the rate, the grants, and the state of all clients, for which it searches all keys. It
asks first, unless --yes is given. With --match it does not ask: without --yes it only lists what it would remove. A
key of another Redis type belongs to another program: it stays, and rm reports it. With --match, a hash that has other
fields beside those of a limiter stays, too: rm removes it only by its name.

Services with WithRate or WithEnforcedRate create the limiter again at their next request. Calls of all
others fail until trySetRate or setRate is called again.`,
		Example: `  rrl rm orders --yes
  rrl rm --match 'api:*'`,
		Args:              orPattern(&pattern, someNames),
		ValidArgsFunction: c.completeMore,
	}, func(ctx context.Context, s *session, args []string) error {
		names, err := s.chosen(ctx, args, pattern)
		if err != nil {
			return err
		}
		agree := s.agreeToRemove
		switch {
		case yes:
			agree = func(context.Context, *removal) (bool, error) { return true, nil }
		case pattern != "":
			agree = func(_ context.Context, r *removal) (bool, error) { return false, s.listRemoval(r) }
		}
		if pattern != "" {
			limiters := agree
			agree = func(ctx context.Context, r *removal) (bool, error) {
				if len(r.fields) > 0 {
					return false, s.listKept(r)
				}
				return limiters(ctx, r)
			}
		}
		if err := s.rm(ctx, names, agree); err != nil {
			return err
		}
		if pattern != "" && !yes && !s.json {
			s.Say("Nothing was changed. --yes does it.")
		}
		return nil
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do it without asking")
	addPattern(cmd, &pattern)
	c.addFlags(cmd)
	return cmd
}

// A removal is a limiter that can be removed.
type removal struct {
	name    string
	rate    string   // or why it has none
	clients []string // with state
	fields  []string // of another program, in the same hash
}

// String describes it in one line.
func (r *removal) String() string {
	text := fmt.Sprintf("%s (%s)", render.Printable(r.name), r.rate)
	if len(r.clients) > 0 {
		text += ", with the state of " + render.Number(int64(len(r.clients)), "client")
	}
	if len(r.fields) > 0 {
		text += ", with " + fieldsText(r.fields)
	}
	return text
}

// rm removes the limiters that agree approves.
func (s *session) rm(ctx context.Context, names []string, agree func(context.Context, *removal) (bool, error)) error {
	var absent []string
	for _, name := range names {
		r, err := s.removal(ctx, name)
		if err != nil {
			return err
		}
		there := r != nil
		if there {
			agreed, err := agree(ctx, r)
			if err != nil {
				return err
			}
			if !agreed {
				continue
			}
			if there, err = s.remove(ctx, r); err != nil {
				return err
			}
		}
		if !there {
			absent = append(absent, render.Printable(name))
		}
	}
	if len(absent) > 0 {
		return fmt.Errorf("there is no limiter %s", strings.Join(absent, ", nor "))
	}
	return nil
}

func (s *session) agreeToRemove(ctx context.Context, r *removal) (bool, error) {
	if err := s.agree(ctx, fmt.Sprintf("Remove %v?", r)); err != nil {
		return false, fmt.Errorf("%s was not removed: %w", render.Printable(r.name), err)
	}
	return true, nil
}

// removal returns what is to be removed of a limiter; nil if there is nothing. It fails if another
// program uses the key.
func (s *session) removal(ctx context.Context, name string) (*removal, error) {
	l := s.Limiter(name, "")
	there, err := l.Exists(ctx)
	if err != nil {
		return nil, err
	}
	if there {
		own, err := survey.IsLimiter(ctx, s.Redis, name)
		if err != nil {
			return nil, err
		}
		if !own {
			return nil, fmt.Errorf("the key %s belongs to another program: it was not removed", render.Printable(name))
		}
	}
	rate, err := l.Config(ctx)
	r := &removal{name: name, rate: rate.String()}
	if there {
		fields, err := survey.OtherFields(ctx, s.Redis, name)
		if err != nil {
			return nil, err
		}
		r.fields = fields[0]
	}
	if err != nil {
		if !survey.Tolerable(err) {
			return nil, err
		}
		r.rate = survey.Reason(err)
	}
	if r.clients, err = s.clientsOf(ctx, name); err != nil {
		return nil, err
	}
	if !there && len(r.clients) == 0 {
		view, err := survey.Read(ctx, l, false, 0)
		if err != nil || view.Empty() {
			return nil, err
		}
	}
	return r, nil
}

// jsonRemoved is the output of rm for a limiter.
type jsonRemoved struct {
	render.JSONName
	Removed bool     `json:"removed"`        // false in a list of what would be removed
	Clients int      `json:"clients"`        // clients whose state was removed, or would be
	Left    []string `json:"left,omitempty"` // keys that stay, since another program uses them
	// of another program, in the same hash; with any, --match does not remove it
	OtherFields []string `json:"other_fields,omitempty"`
}

// listRemoval writes what would be removed.
func (s *session) listRemoval(r *removal) error {
	if s.json {
		return s.Emit(jsonRemoved{JSONName: render.NameOf(r.name), Clients: len(r.clients)})
	}
	s.Say("%v", r)
	return nil
}

// listKept writes that a limiter stays.
func (s *session) listKept(r *removal) error {
	if s.json {
		return s.Emit(jsonRemoved{JSONName: render.NameOf(r.name), OtherFields: r.fields})
	}
	s.Say("%s: kept, because it has %s; rrl rm %s removes it", render.Printable(r.name), fieldsText(r.fields),
		render.ShellName(r.name))
	return nil
}

// remove removes a limiter, and reports whether there was one. It does not change keys of another
// program.
func (s *session) remove(ctx context.Context, r *removal) (bool, error) {
	gone, err := manage.Remove(ctx, s.Server, r.name, r.clients)
	if err != nil {
		return false, err
	}
	if !gone.Any {
		if len(gone.Left) > 0 {
			return false, fmt.Errorf("there is no limiter %s: %s", render.Printable(r.name), usedElsewhere(gone.Left))
		}
		return false, nil
	}
	if s.json {
		return true, s.Emit(jsonRemoved{render.NameOf(r.name), true, gone.Clients, keysOf(gone.Left), r.fields})
	}
	text := render.Printable(r.name) + ": removed"
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
