package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/doctor"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// repair.go has the subcommands repair and reset, which correct the stored state: the free permits,
// or all grants.

func newRepair() *cobra.Command {
	var force bool
	cmd := mending(&cobra.Command{
		Use:   "repair {NAME | --match PATTERN}",
		Short: "Compute the free permits of a limiter anew from its records",
		Long: `repair computes the free permits anew, so that free permits and permits in records add up to the rate. It takes the
records as correct. Without --yes it only prints what it would do.

It refuses if the limiter would then be without a free permit for longer than 9/8 of an interval and one second
(WithGranularity and WithLease date records up to an eighth of an interval ahead), or if the live records hold more than
twice the rate. Then the records are wrong: rrl reset forgets them. --force repairs nevertheless.

A release by Redisson makes the sum larger than the rate until the records expire. That is intended, and a repair would
undo the release. repair reads all records in one step: 100,000 of them block Redis for some 50 ms.`,
		Example: `  rrl repair orders
  rrl repair orders --yes
  rrl repair --match 'api:*'`,
	}, mender{
		done: "repaired", do: (*connect.Limiter).Repair,
		tell: func(did rratelimiter.Repaired, v *survey.Survey) string {
			text := fmt.Sprintf(
				"%s; free permits %s -> %s, with %s in %s", did.Fault, render.Thousands(did.Was),
				render.Thousands(did.Free),
				render.Number(did.Permits, "permit"), render.Number(int64(did.Records), "record"),
			)
			if v.Expired.Permits > 0 {
				text += fmt.Sprintf(", of which %s have expired", render.Thousands(v.Expired.Permits))
			}
			if did.Blocked > 0 {
				text += "; no permit is free then for " + render.Lasting(did.Blocked)
			}
			return text
		},
		refuse: func(did rratelimiter.Repaired, v *survey.Survey) string {
			if force {
				return ""
			}
			return doctor.Harm(did, v)
		},
	})
	cmd.Flags().
		BoolVar(&force, "force", false,
			"repair even if the limiter would then have no free permit for more than 9/8 of an interval, or if the live records hold more than twice the rate")
	return cmd
}

func newReset() *cobra.Command {
	return mending(&cobra.Command{
		Use:   "reset {NAME | --match PATTERN}",
		Short: "Forget the grants of a limiter; its rate stays",
		Long: `reset removes all records of a limiter, so that all its permits are free. The rate stays. Without --yes it only prints
what it would do. In the interval after a reset, the limiter can grant up to its rate once more.`,
		Example: `  rrl reset orders
  rrl reset orders --yes
  rrl reset --match 'api:*'`,
	}, mender{
		done: "reset", do: (*connect.Limiter).Reset,
		tell: func(did rratelimiter.Repaired, _ *survey.Survey) string {
			return fmt.Sprintf("%s in %s forgotten, all %s free", render.Number(did.Permits, "permit"),
				render.Number(int64(did.Records), "record"), render.Thousands(did.Free))
		},
	})
}

// otherwise is the advice if a repair is refused.
const otherwise = "rrl reset --yes removes the records; rrl repair --force --yes repairs nevertheless"

// A mender has the differences between repair and reset.
type mender struct {
	done string // participle for the output
	do   func(*connect.Limiter, context.Context, ...rratelimiter.RepairOption) (rratelimiter.Repaired, error)
	tell func(rratelimiter.Repaired, *survey.Survey) string
	// why it must not be done; "" if it may; nil: it always may
	refuse func(rratelimiter.Repaired, *survey.Survey) string
}

// mending returns a command that repairs limiters, or only prints the result.
func mending(cmd *cobra.Command, m mender) *cobra.Command {
	c := &common{whose: true}
	var yes bool
	var pattern string
	cmd.Args, cmd.ValidArgsFunction = orPattern(&pattern, oneName), c.complete
	c.live(cmd, func(ctx context.Context, s *session, args []string) error {
		names, err := s.chosen(ctx, args, pattern)
		if err != nil {
			return err
		}
		var all []*connect.Limiter
		for _, name := range names {
			states, err := s.states(ctx, name)
			if err != nil {
				return s.explainForeign(ctx, s.Limiter(name, ""), false, err)
			}
			all = append(all, states...)
		}
		return s.mendAll(ctx, all, m, yes)
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of printing what would be done")
	addPattern(cmd, &pattern)
	c.addFlags(cmd)
	return cmd
}

// mendAll repairs limiters if yes is set, and tells what it did or would do.
func (s *session) mendAll(ctx context.Context, all []*connect.Limiter, m mender, yes bool) error {
	left := 0
	var failed []string
	for _, l := range all {
		did, view, refused, err := s.mend(ctx, l, m, yes)
		if survey.IsWrongType(err) {
			failed = append(failed, s.explainForeign(ctx, l, s.client != "", err).Error())
			continue
		}
		if err != nil {
			return err
		}
		if did.Changed && !yes && refused == "" {
			left++
		}
		title := s.titled(l)
		if refused != "" && yes {
			failed = append(failed, fmt.Sprintf("%s: not %s: %s; %s", title, m.done, refused, otherwise))
		}
		switch {
		case s.json:
			if err := s.Emit(mended(s, l, did, yes && refused == "", refused)); err != nil {
				return err
			}
		case !did.Changed:
			s.Say("%s: nothing to do", title)
		case refused != "" && !yes:
			s.Say("%s: not to be %s: %s; %s", title, m.done, refused, otherwise)
		case refused != "": // the error has the reason
		case yes:
			s.Say("%s: %s: %s", title, m.done, m.tell(did, view))
		default:
			s.Say("%s: to be %s: %s", title, m.done, m.tell(did, view))
		}
	}
	if left > 0 && !s.json {
		s.Say("Nothing was changed. --yes does it.")
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "; "))
	}
	return nil
}

// mend repairs one limiter if yes is set and it does no harm; else it returns the result and the
// reason for the refusal. Before a repair, it reads what is live.
func (s *session) mend(ctx context.Context, l *connect.Limiter, m mender, yes bool) (
	did rratelimiter.Repaired, before *survey.Survey, refused string, err error,
) {
	did, err = m.do(l, ctx, rratelimiter.DryRun())
	if err != nil || !did.Changed {
		return did, nil, "", err
	}
	if m.refuse != nil {
		if before, err = survey.Read(ctx, l, s.client != "", 0); err != nil {
			return did, nil, "", err
		}
		refused = m.refuse(did, before)
		did.Free += before.Expired.Permits // a repair removes expired records first
	}
	if yes && refused == "" {
		did, err = m.do(l, ctx)
	}
	return did, before, refused, err
}

// jsonMended is the output of repair and reset.
type jsonMended struct {
	render.JSONName
	Client  string `json:"client,omitempty"`
	Changed bool   `json:"changed"` // or would be, in a dry run
	DryRun  bool   `json:"dry_run"`
	Fault   string `json:"fault,omitempty"`
	Was     int64  `json:"was"`  // free permits as stored
	Free    int64  `json:"free"` // as stored afterwards, or in a dry run as they would be
	Records int    `json:"records"`
	Permits int64  `json:"permits"`           // in records
	Blocked int64  `json:"blocked_ms"`        // time in ms until a permit is free
	Refused string `json:"refused,omitempty"` // why it is refused
}

func mended(s *session, l *connect.Limiter, did rratelimiter.Repaired, yes bool, refused string) jsonMended {
	return jsonMended{
		render.NameOf(l.Name()), l.Of, did.Changed, !yes, did.Fault, did.Was, did.Free, did.Records, did.Permits,
		did.Blocked.Milliseconds(), refused,
	}
}

// explainForeign adds, to a WRONGTYPE error, the keys of a limiter that another program uses.
func (s *session) explainForeign(ctx context.Context, l *connect.Limiter, own bool, err error) error {
	if !survey.IsWrongType(err) {
		return err
	}
	keys, failed := survey.ForeignKeys(ctx, l, own)
	if failed != nil || len(keys) == 0 {
		return err
	}
	return fmt.Errorf("%s: nothing was changed: %s", render.Printable(l.Name()), usedElsewhere(keys))
}
