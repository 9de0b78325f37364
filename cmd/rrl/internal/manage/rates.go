// Package manage sets the rates of limiters, and removes limiters and keys that former clients
// left. It does not parse commands and prints nothing.
package manage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// rates.go sets rates.

// Wanted is the rate to set. A nil field stays unchanged, and so does the interval if that of the
// rate is 0.
type Wanted struct {
	Name      string
	Rate      rratelimiter.Rate
	PerClient *bool
	KeepAlive *time.Duration
	Reset     bool // forget live grants
}

// A Change is the effect of setting a rate.
type Change struct {
	Name     string
	Old      *rratelimiter.Rate // nil: there was no rate
	Broken   string             // why the existing rate can't be used; "": it can, or there is none
	Rate     rratelimiter.Rate
	Reset    bool
	Repaired int // number of clients whose free permits were adjusted
}

// Compare returns the change that a rate needs.
func Compare(ctx context.Context, s *connect.Server, w Wanted) (Change, error) {
	c := Change{Name: w.Name, Rate: w.Rate, Reset: w.Reset}
	l := s.Limiter(w.Name, "")
	old, err := l.Config(ctx)
	switch {
	case err == nil:
		c.Old = &old
	case !errors.Is(err, rratelimiter.ErrNotInitialized):
		return c, err
	case survey.Reason(err) != survey.NoRate:
		c.Broken = survey.Reason(err)
		if old, err = readable(ctx, l); err != nil {
			return c, err
		}
	}
	if w.Rate.Interval == 0 {
		if old.Interval == 0 {
			return c, fmt.Errorf("%s has no interval yet: give one, such as 0/s", render.Printable(w.Name))
		}
		c.Rate.Interval = old.Interval
	}
	if w.PerClient == nil && w.Rate.Type == rratelimiter.Overall {
		c.Rate.Type = old.Type
	}
	if w.KeepAlive == nil && w.Rate.KeepAlive == 0 {
		c.Rate.KeepAlive = old.KeepAlive
	}
	if w.PerClient != nil {
		c.Rate.Type = rratelimiter.Overall
		if *w.PerClient {
			c.Rate.Type = rratelimiter.PerClient
		}
	}
	if w.KeepAlive != nil {
		c.Rate.KeepAlive = *w.KeepAlive
	}
	return c, nil
}

// readable returns the type and the keep-alive of a configuration that can't be used, as far as
// they can be read.
func readable(ctx context.Context, l *connect.Limiter) (r rratelimiter.Rate, err error) {
	stored, err := l.Survey(ctx, 0, 1, false)
	if stored.Fields["type"] == "1" {
		r.Type = rratelimiter.PerClient
	}
	// the largest number, if it is larger
	if ms, _ := strconv.ParseInt(stored.Fields["keepAliveTime"], 10, 64); ms > 0 {
		r.KeepAlive = protocol.Millis(ms)
	}
	return r, err
}

// Same reports whether the rate is in force already.
func (c Change) Same() bool { return c.Old != nil && *c.Old == c.Rate }

// Apply sets the rate: live grants stay counted, unless they are to be forgotten. Of a PER_CLIENT
// limiter it adjusts the free permits of each client; clients returns those of a limiter by its
// name.
func (c *Change) Apply(
	ctx context.Context, s *connect.Server, clients func(context.Context, string) ([]string, error),
) error {
	l := s.Limiter(c.Name, "")
	var ids []string
	if c.Rate.Type == rratelimiter.PerClient { // before anything is changed, as it goes through all keys and may fail
		var err error
		if ids, err = clients(ctx, c.Name); err != nil {
			return err
		}
	}
	var options []rratelimiter.SetOption
	if !c.Reset && c.Rate.Type != rratelimiter.PerClient { // of such a limiter, this client has no state
		options = append(options, rratelimiter.KeepState())
	}
	if err := l.SetRate(ctx, c.Rate, options...); err != nil {
		return err
	}
	for _, id := range ids {
		own := s.Limiter(c.Name, id)
		mend := own.Repair
		if c.Reset {
			mend = own.Reset
		}
		done, err := mend(ctx)
		if err != nil {
			return fmt.Errorf("the new rate is in force, but the state of some clients was not adapted to it: %w", err)
		}
		if done.Changed {
			c.Repaired++
		}
	}
	return nil
}
