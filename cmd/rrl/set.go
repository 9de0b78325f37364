package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/manage"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// set.go is the subcommand set, and the output that set and apply share.

func newSet() *cobra.Command {
	c := &common{}
	var perClient, reset bool
	var keepAlive time.Duration
	var cmd *cobra.Command
	cmd = c.live(&cobra.Command{
		Use:   "set NAME RATE",
		Short: "Set the rate of a limiter; the grants of the new interval still count unless the type changes",
		Long: `set sets the rate of a limiter, whether it had one or not. RATE is permits/interval: 100/s, 5/250ms, 1000/hour. The
units are ms, s, m, h and d, or sec, second, min, minute, hour and day. Grants that are younger than the new interval
count against the new rate, unless --reset is given or the type changes: then they are forgotten. The type (whether each
client has its own permits) and the keep-alive change only if a flag or RATE ("50/s per client keep-alive 1h") sets
them.

RATE 0 refuses every request until another rate is set. It keeps the interval, so that no grant is forgotten.

A service replaces this rate if it calls setRate at its start, or, with WithEnforcedRate, at its next request.`,
		Example: `  rrl set orders 200/s
  rrl set api 50/s --per-client --keep-alive 1h
  rrl set api 50/s --per-client=false --keep-alive 0
  rrl set api 0`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("rrl set needs the name of a limiter and a rate, such as: rrl set orders 100/s")
			}
			return nil
		},
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, args []string) error {
		name, err := s.named(args[0])
		if err != nil {
			return err
		}
		var rate rratelimiter.Rate
		if args[1] != "0" {
			if rate, err = rratelimiter.ParseRate(args[1]); err != nil {
				return errors.New(connect.Redacted(err.Error()))
			}
		}
		w := manage.Wanted{Name: name, Rate: rate, Reset: reset}
		if cmd.Flags().Changed("per-client") {
			if !perClient && rate.Type == rratelimiter.PerClient {
				return fmt.Errorf("--per-client=false, but the rate %v is per client", rate)
			}
			w.PerClient = &perClient
		}
		if cmd.Flags().Changed("keep-alive") {
			if rate.KeepAlive != 0 {
				return fmt.Errorf("--keep-alive, but the rate %v has one, too", rate)
			}
			w.KeepAlive = &keepAlive
		}
		change, err := manage.Compare(ctx, s.Server, w)
		if err != nil {
			return err
		}
		if err := change.Apply(ctx, s.Server, s.clientsOf); err != nil {
			return err
		}
		if s.json {
			return s.Emit(changeOf(change))
		}
		s.Say("%s", changeText(change))
		return nil
	})
	cmd.Flags().BoolVar(&perClient, "per-client", false,
		"each client has its own permits; =false: all clients share them")
	cmd.Flags().DurationVar(&keepAlive, "keep-alive", 0, "TTL of the limiter after its last use; 0: none")
	cmd.Flags().BoolVar(&reset, "reset", false, "forget live grants")
	c.addFlags(cmd)
	return cmd
}

// changeText returns what was, or would be, changed.
func changeText(c manage.Change) string {
	name := render.Printable(c.Name)
	forgotten := ""
	if c.Reset && c.Old != nil {
		forgotten = ", grants forgotten"
	}
	if c.Repaired > 0 && !c.Reset {
		forgotten = fmt.Sprintf(", free permits of %s adapted", render.Number(int64(c.Repaired), "client"))
	}
	switch {
	case c.Broken != "":
		return fmt.Sprintf("%s: %v, in place of one that can't be used: %s", name, c.Rate, c.Broken)
	case c.Old == nil:
		return fmt.Sprintf("%s: %v, new", name, c.Rate)
	case c.Same():
		return fmt.Sprintf("%s: %v, as before%s", name, c.Rate, forgotten)
	}
	return fmt.Sprintf("%s: %v -> %v%s", name, *c.Old, c.Rate, forgotten)
}

// jsonChange is the output of set and apply.
type jsonChange struct {
	render.JSONName
	Change string           `json:"change"` // new, changed, same
	Old    *render.JSONRate `json:"old"`    // null: no rate
	New    render.JSONRate  `json:"new"`
	Reset  bool             `json:"reset"` // grants are forgotten
}

func changeOf(c manage.Change) jsonChange {
	j := jsonChange{JSONName: render.NameOf(c.Name), Change: "changed", New: render.RateOf(c.Rate), Reset: c.Reset}
	if c.Old == nil {
		j.Change = "new"
		return j
	}
	old := render.RateOf(*c.Old)
	if j.Old = &old; c.Same() {
		j.Change = "same"
	}
	return j
}
