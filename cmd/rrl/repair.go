package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
)

// repair.go is the subcommands repair and reset, which set right what is stored: the free permits alone, or all grants.

func newRepair() *cobra.Command {
	return mending(&cobra.Command{
		Use:   "repair NAME",
		Short: "Compute the free permits of a limiter anew from its records",
		Long: `repair makes free permits and permits in records add up to the rate. It believes the records. Without --yes it only says
what it would do.

After a release by Redisson there is more than the rate on purpose, until the records expire: a repair takes that back.
It reads all records in one step: 100,000 of them keep Redis busy for some 50 ms.`,
		Example: `  rrl repair orders
  rrl repair orders --yes`,
	}, "repaired", (*rratelimiter.Limiter).Repair, func(did rratelimiter.Repaired) string {
		return fmt.Sprintf("%s; free permits %s -> %s, with %s in %s", did.Fault, thousands(did.Was), thousands(did.Free),
			number(did.Permits, "permit"), number(int64(did.Records), "record"))
	})
}

func newReset() *cobra.Command {
	return mending(&cobra.Command{
		Use:   "reset NAME",
		Short: "Forget the grants of a limiter; its rate stays",
		Long: `reset drops all records of a limiter, so that all its permits are free, and keeps its rate. Without --yes it only says
what it would do. For one interval, the limiter can let twice its rate through.`,
		Example: `  rrl reset orders
  rrl reset orders --yes`,
	}, "reset", (*rratelimiter.Limiter).Reset, func(did rratelimiter.Repaired) string {
		return fmt.Sprintf("%s in %s forgotten, all %s free", number(did.Permits, "permit"),
			number(int64(did.Records), "record"), thousands(did.Free))
	})
}

type mend func(*rratelimiter.Limiter, context.Context, ...rratelimiter.RepairOption) (rratelimiter.Repaired, error)

// mending makes a command that mends a limiter, or only says how it would.
func mending(cmd *cobra.Command, done string, mend mend, tell func(rratelimiter.Repaired) string) *cobra.Command {
	c := &common{whose: true}
	var yes bool
	cmd.Args, cmd.ValidArgsFunction = oneName, c.complete
	c.live(cmd, func(ctx context.Context, s *session, args []string) error {
		name, err := s.named(args[0])
		if err != nil {
			return err
		}
		states, err := s.states(ctx, name)
		if err != nil {
			return err
		}
		left := 0
		for _, l := range states {
			var options []rratelimiter.RepairOption
			if !yes {
				options = append(options, rratelimiter.DryRun())
			}
			did, err := mend(l, ctx, options...)
			if err != nil {
				return err
			}
			if did.Changed && !yes {
				left++
			}
			if s.json {
				if err := s.emit(mended(s, l, did, yes)); err != nil {
					return err
				}
				continue
			}
			switch title := s.titled(l); {
			case !did.Changed:
				s.say("%s: nothing to do", title)
			case yes:
				s.say("%s: %s: %s", title, done, tell(did))
			default:
				s.say("%s: to be %s: %s", title, done, tell(did))
			}
		}
		if left > 0 && !s.json {
			s.say("Nothing was changed. --yes does it.")
		}
		return nil
	})
	cmd.Flags().BoolVar(&yes, "yes", false, "do it, instead of saying what would be done")
	c.flags(cmd)
	return cmd
}

// jsonMended is what repair and reset write.
type jsonMended struct {
	jsonName
	Client  string `json:"client,omitempty"`
	Changed bool   `json:"changed"` // or would be, in a dry run
	DryRun  bool   `json:"dry_run"`
	Fault   string `json:"fault,omitempty"`
	Was     int64  `json:"was"`  // free permits as stored
	Free    int64  `json:"free"` // as they are, or would be, stored then
	Records int    `json:"records"`
	Permits int64  `json:"permits"` // in records
}

func mended(s *session, l *rratelimiter.Limiter, did rratelimiter.Repaired, yes bool) jsonMended {
	return jsonMended{nameOf(l.Name()), s.whom(l), did.Changed, !yes, did.Fault, did.Was, did.Free, did.Records, did.Permits}
}
