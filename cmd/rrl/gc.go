package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/manage"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// gc.go is the subcommand gc: it removes the state of former clients of PER_CLIENT limiters.

func newGc() *cobra.Command {
	c := &common{}
	var idle time.Duration
	var yes bool
	cmd := c.live(&cobra.Command{
		Use:   "gc",
		Short: "Remove the state of former clients of PER_CLIENT limiters",
		Long: `A client of a PER_CLIENT limiter has two keys of its own. Those of Redisson clients have no TTL and stay when the client
has ended. gc removes them if the last grant expired more than --idle ago, or if there is no record of a grant. If the
configuration of the limiter is missing, its interval is unknown, and gc assumes 31 days: the grants count if the
service sets the rate again. Keys of Go clients expire by themselves.

Such keys only say that all permits of the client are free, and missing keys mean the same. So nothing is lost if the
client returns, and no client needs to be stopped. If another program uses one of the two keys, both stay, and gc
reports it. Both also stay if the free permits are not stored as a whole number. gc searches all keys by SCAN, which
does not block Redis. Without --yes it only prints what it would remove.`,
		Example: `  rrl gc
  rrl gc --idle 24h --yes`,
		Args: noArgs,
	}, func(ctx context.Context, s *session, _ []string) error {
		if idle < 0 {
			return errors.New("--idle must not be negative")
		}
		return s.gc(ctx, idle, yes)
	})
	cmd.Flags().DurationVar(&idle, "idle", time.Hour, "minimum time without a grant, after the last grant has expired")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of printing what would be done")
	c.addFlags(cmd)
	return cmd
}

// jsonCollected is the output of gc for each pair of keys to remove.
type jsonCollected struct {
	render.JSONName
	Client  string   `json:"client"`
	Limiter bool     `json:"limiter"`        // whether a limiter of the name exists
	Removed bool     `json:"removed"`        // false in a dry run, or if it stays: see left
	Left    []string `json:"left,omitempty"` // keys of another program; with any, the whole pair stays
}

func (s *session) gc(ctx context.Context, idle time.Duration, yes bool) error {
	p := s.progress(ctx)
	keys, err := survey.StateKeys(ctx, s.Redis, p.step)
	p.done()
	if err != nil {
		return err
	}
	found, err := manage.Leftovers(ctx, s.Server, keys, idle, !yes)
	if err != nil {
		return err
	}
	gone := 0
	for _, one := range found {
		if len(one.Left) == 0 {
			gone++
		}
		if s.json {
			removed := yes && one.Left == nil
			if err := s.Emit(jsonCollected{
				render.NameOf(one.Name),
				one.Client,
				one.Limiter,
				removed,
				keysOf(one.Left),
			}); err != nil {
				return err
			}
			continue
		}
		text := render.Printable(one.Name) + " of " + render.Printable(one.Client)
		if !one.Limiter {
			text += ", without a limiter"
		}
		if len(one.Left) > 0 {
			text += ": kept, because " + usedElsewhere(one.Left)
		}
		s.Say("%s", text)
	}
	if s.json {
		return nil
	}
	switch {
	case gone == 0:
		s.Say("nothing to remove")
	case yes:
		s.Say("Removed the state of %s.", render.Number(int64(gone), "client"))
	default:
		s.Say("The state of %s can go. Nothing was changed. --yes does it.", render.Number(int64(gone), "client"))
	}
	return nil
}
