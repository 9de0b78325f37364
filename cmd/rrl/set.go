package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// set.go is the subcommand set, and the functions that set and apply share: live grants stay counted, those of each
// client, too.

func newSet() *cobra.Command {
	c := &common{}
	var perClient, reset bool
	var keepAlive time.Duration
	var cmd *cobra.Command
	cmd = c.live(&cobra.Command{
		Use:   "set NAME RATE",
		Short: "Set the rate of a limiter; its live grants stay counted",
		Long: `set sets the rate of a limiter, such as 100/s, 5/250ms or 1000/h, whether it had one or not. Live grants stay counted
against the new rate, unless --reset forgets them. Without their flags, the type (whether each client has its own permits)
and the keep-alive stay as they are.

Services that set a rate themselves at every start (setRate, or WithEnforcedRate) set theirs again.`,
		Example: `  rrl set orders 200/s
  rrl set api 50/s --per-client --keep-alive 1h
  rrl set api 50/s --per-client=false --keep-alive 0`,
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
		rate, err := rratelimiter.ParseRate(args[1])
		if err != nil {
			return errors.New(connect.Redacted(err.Error()))
		}
		w := wanted{name: name, rate: rate, reset: reset}
		if cmd.Flags().Changed("per-client") {
			if !perClient && rate.Type == rratelimiter.PerClient {
				return fmt.Errorf("--per-client=false, but the rate %v is per client", rate)
			}
			w.kind = &perClient
		}
		if cmd.Flags().Changed("keep-alive") {
			if rate.KeepAlive != 0 {
				return fmt.Errorf("--keep-alive, but the rate %v has one, too", rate)
			}
			w.keepAlive = &keepAlive
		}
		change, err := s.compare(ctx, w)
		if err != nil {
			return err
		}
		if err := s.change(ctx, &change); err != nil {
			return err
		}
		if s.json {
			return s.Emit(change.json())
		}
		s.Say("%s", change.text())
		return nil
	})
	cmd.Flags().BoolVar(&perClient, "per-client", false, "each client has its own permits; =false: all clients share them")
	cmd.Flags().DurationVar(&keepAlive, "keep-alive", 0, "TTL of the limiter after its last use; 0: none")
	cmd.Flags().BoolVar(&reset, "reset", false, "forget live grants")
	c.addFlags(cmd)
	return cmd
}

// wanted is the rate to set. A nil field stays unchanged.
type wanted struct {
	name      string
	rate      rratelimiter.Rate
	kind      *bool // per client
	keepAlive *time.Duration
	reset     bool
}

// A change is the effect of setting a rate.
type change struct {
	name     string
	old      *rratelimiter.Rate // nil: there was no rate
	broken   string             // why the existing rate can't be used; "": it can, or there is none
	rate     rratelimiter.Rate
	reset    bool
	repaired int // number of clients whose free permits were adjusted
}

// compare returns the change that a rate needs.
func (s *session) compare(ctx context.Context, w wanted) (change, error) {
	c := change{name: w.name, rate: w.rate, reset: w.reset}
	old, err := s.Limiter(w.name, "").Config(ctx)
	switch {
	case err == nil:
		c.old = &old
		if w.kind == nil && w.rate.Type == rratelimiter.Overall {
			c.rate.Type = old.Type
		}
		if w.keepAlive == nil && w.rate.KeepAlive == 0 {
			c.rate.KeepAlive = old.KeepAlive
		}
	case !errors.Is(err, rratelimiter.ErrNotInitialized):
		return c, err
	case survey.Reason(err) != survey.NoRate:
		c.broken = survey.Reason(err)
	}
	if w.kind != nil {
		c.rate.Type = rratelimiter.Overall
		if *w.kind {
			c.rate.Type = rratelimiter.PerClient
		}
	}
	if w.keepAlive != nil {
		c.rate.KeepAlive = *w.keepAlive
	}
	return c, nil
}

// change sets the rate. Of a PER_CLIENT limiter it adjusts the free permits of each client.
func (s *session) change(ctx context.Context, c *change) error {
	l := s.Limiter(c.name, "")
	var options []rratelimiter.SetOption
	if !c.reset && c.rate.Type != rratelimiter.PerClient { // of such a limiter, this client has no state
		options = append(options, rratelimiter.KeepState())
	}
	if err := l.SetRate(ctx, c.rate, options...); err != nil {
		return err
	}
	if c.rate.Type != rratelimiter.PerClient {
		return nil
	}
	ids, err := l.Clients(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		own := s.Limiter(c.name, id)
		mend := own.Repair
		if c.reset {
			mend = own.Reset
		}
		done, err := mend(ctx)
		if err != nil {
			return fmt.Errorf("the rate is set, but not for all clients: %w", err)
		}
		if done.Changed {
			c.repaired++
		}
	}
	return nil
}

// text returns what was, or would be, changed.
func (c change) text() string {
	name := render.Printable(c.name)
	forgotten := ""
	if c.reset && c.old != nil {
		forgotten = ", grants forgotten"
	}
	if c.repaired > 0 && !c.reset {
		forgotten = fmt.Sprintf(", free permits of %s adapted", render.Number(int64(c.repaired), "client"))
	}
	switch {
	case c.broken != "":
		return fmt.Sprintf("%s: %v, in place of one that can't be used: %s", name, c.rate, c.broken)
	case c.old == nil:
		return fmt.Sprintf("%s: %v, new", name, c.rate)
	case *c.old == c.rate:
		return fmt.Sprintf("%s: %v, as before%s", name, c.rate, forgotten)
	}
	return fmt.Sprintf("%s: %v -> %v%s", name, *c.old, c.rate, forgotten)
}

// jsonChange is the output of set and apply.
type jsonChange struct {
	render.JSONName
	Change string           `json:"change"` // new, changed, same
	Old    *render.JSONRate `json:"old"`    // null: no rate
	New    render.JSONRate  `json:"new"`
	Reset  bool             `json:"reset"` // grants are forgotten
}

func (c change) json() jsonChange {
	j := jsonChange{JSONName: render.NameOf(c.name), Change: "changed", New: render.RateOf(c.rate), Reset: c.reset}
	if c.old == nil {
		j.Change = "new"
		return j
	}
	old := render.RateOf(*c.old)
	if j.Old = &old; *c.old == c.rate {
		j.Change = "same"
	}
	return j
}
