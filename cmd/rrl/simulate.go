package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/simulate"
)

// simulate.go is the subcommand simulate, which compares algorithms.

func newSimulate() *cobra.Command {
	var o simulate.Options
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Compare algorithms on the same traffic",
		Long: `simulate feeds one trace of requests through any set of algorithms, on a virtual clock and an embedded server, and
shows the grants of each over time, its largest window (permits in any interval), the waits of queued callers, the
memory of its keys in Redis, and the calls and commands for each permit.

Built-in traces, each with its own limit:
` + simulate.Traces() + `
Patterns, for --rate, --for and --load: ` + strings.Join(simulate.Patterns(), ", ") + `.

Anything else is a file, or - for standard input: a log or CSV with a timestamp at the beginning of each line, or in
brackets as web servers write it.

Algorithms: ` + strings.Join(simulate.Algorithms(), ", ") + `.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Given = cmd.Flags().Changed
			return simulate.Run(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Trace, "trace", "window-edge", "a built-in trace, a pattern, a file, or - for standard input")
	flags.StringSliceVar(&o.Algorithms, "algorithms", nil, "names of algorithms; all if none is given")
	flags.StringVar(&o.Rate, "rate", "10/s", "the limit, such as 100/s; built-in traces have their own")
	flags.DurationVar(&o.Length, "for", 10*time.Second, "length of a pattern")
	flags.Float64Var(&o.Load, "load", 1.5, "permits that a pattern requests, as a multiple of the rate")
	flags.Int64Var(&o.Seed, "seed", 1, "seed of the poisson pattern")
	flags.IntVar(&o.Permits, "permits-column", 0, "column of a file, from 1, that has the permits of each request; 0: one each")
	flags.BoolVar(&o.JSON, "json", false, "JSON instead of a table")
	flags.StringSliceVarP(&o.Out, "out", "o", nil, "also write these files: .png, .svg or .json")
	flags.StringVar(&o.Docs, "docs", "", "a page of Markdown in which the tables of all built-in traces are updated, with a chart of each beside it")
	flags.StringVar(&o.Address, "redis", "", "a server that measures the keys with MEMORY USAGE: redis://[user:password@]host:port[/db]")
	flags.SortFlags = false
	return cmd
}
