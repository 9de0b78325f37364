package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// set.go is the subcommand set, and what setting a rate means to apply as well: live grants stay counted, those of each
// client, too.

func newSet() *cobra.Command {
	c := &common{}
	var perClient, reset bool
	var keepAlive time.Duration
	var cmd *cobra.Command
	cmd = c.live(&cobra.Command{
		Use:   "set NAME RATE",
		Short: "Set the rate of a limiter; its live grants stay counted",
		Long: `set gives a limiter a rate such as 100/s, 5/250ms or 1000/h, whether it had one or not. What is granted stays counted
against the new rate, unless --reset forgets it. What is not said stays as it is: whether each client has its own
permits, and the keep-alive.

Services that set a rate themselves at every start (setRate, or WithEnforcedRate) bring theirs back.`,
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
			return errors.New(redacted(err.Error()))
		}
		w := wanted{name: name, rate: rate, reset: reset}
		if cmd.Flags().Changed("per-client") {
			w.kind = &perClient
		}
		if cmd.Flags().Changed("keep-alive") {
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
			return s.emit(change.json())
		}
		s.say("%s", change.text())
		return nil
	})
	cmd.Flags().BoolVar(&perClient, "per-client", false, "each client has permits of its own; =false: all share them")
	cmd.Flags().DurationVar(&keepAlive, "keep-alive", 0, "how long the limiter outlives its last use; 0: for ever")
	cmd.Flags().BoolVar(&reset, "reset", false, "forget what is granted")
	c.flags(cmd)
	return cmd
}

// wanted is a rate that a limiter is to have. What is nil stays as it is.
type wanted struct {
	name      string
	rate      rratelimiter.Rate
	kind      *bool // per client
	keepAlive *time.Duration
	reset     bool
}

// A change is what setting a rate changes.
type change struct {
	name     string
	old      *rratelimiter.Rate // nil: there was none
	broken   string             // why the one that is there can't be used; "": there is none, or it can
	rate     rratelimiter.Rate
	reset    bool
	repaired int // clients whose free permits were adapted
}

// compare finds out what has to be done.
func (s *session) compare(ctx context.Context, w wanted) (change, error) {
	c := change{name: w.name, rate: w.rate, reset: w.reset}
	old, err := s.limiter(w.name, "").Config(ctx)
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
	case survey.Reason(err) != noRate:
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

// change sets the rate. Of a PER_CLIENT limiter the free permits of each client are made to fit.
func (s *session) change(ctx context.Context, c *change) error {
	l := s.limiter(c.name, "")
	var options []rratelimiter.SetOption
	if !c.reset && c.rate.Type != rratelimiter.PerClient { // of that, our own state is nobody's
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
		own := s.limiter(c.name, id)
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

// text tells what was, or would be, changed.
func (c change) text() string {
	name := printable(c.name)
	forgotten := ""
	if c.reset && c.old != nil {
		forgotten = ", grants forgotten"
	}
	if c.repaired > 0 && !c.reset {
		forgotten = fmt.Sprintf(", free permits of %s adapted", number(int64(c.repaired), "client"))
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

// jsonChange is what set and apply write.
type jsonChange struct {
	jsonName
	Change string    `json:"change"` // new, changed, same
	Old    *jsonRate `json:"old"`    // null: none
	New    jsonRate  `json:"new"`
	Reset  bool      `json:"reset"` // grants are forgotten
}

func (c change) json() jsonChange {
	j := jsonChange{jsonName: nameOf(c.name), Change: "changed", New: rateOf(c.rate), Reset: c.reset}
	if c.old == nil {
		j.Change = "new"
		return j
	}
	old := rateOf(*c.old)
	if j.Old = &old; *c.old == c.rate {
		j.Change = "same"
	}
	return j
}
