package main

import (
	"slices"
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
		Long: `simulate sends the same trace of requests through several algorithms, on a virtual clock and an embedded server. Of each
algorithm it shows the grants over time, the largest number of permits in any interval, the waits of queued callers, the
memory of its keys in Redis, and the calls and commands for each permit.

Built-in traces, each with its own limit:
` + simulate.Traces() + `
Patterns, which --rate, --for and --load shape: ` + strings.Join(simulate.Patterns(), ", ") + `.

Any other trace is a file, or - for standard input: a log or CSV with a timestamp at the beginning of each line, or in
brackets as web servers write it. Its limit is --rate.

A flag that the chosen trace does not use, such as --seed with a file, is an error.

Algorithms:
` + algorithmLines(),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Given = cmd.Flags().Changed
			return simulate.Run(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Trace, "trace", "window-edge", "a built-in trace, a pattern, a file, or - for standard input")
	flags.StringSliceVar(&o.Algorithms, "algorithms", nil, "names of algorithms; all if none is given")
	flags.StringVar(&o.Rate, "rate", "10/s", "the limit of a pattern or file, such as 100/s")
	flags.DurationVar(&o.Length, "for", 10*time.Second, "length of a pattern")
	flags.Float64Var(&o.Load, "load", 1.5, "permits that a pattern requests, as a multiple of the rate")
	flags.Int64Var(&o.Seed, "seed", 1, "seed of the poisson pattern")
	flags.IntVar(
		&o.Permits, "permits-column", 0,
		"column of a file, counted from 1, with the permits of each request; 0: one permit each",
	)
	flags.BoolVar(
		&o.Charge, "charge", false,
		"a request passes while a permit is free, and its permits are charged afterwards, as tokens of a language model",
	)
	flags.BoolVar(&o.JSON, "json", false, "JSON instead of a table")
	flags.StringSliceVarP(&o.Out, "out", "o", nil, "also write these files: .png, .svg or .json")
	flags.StringVar(
		&o.Docs, "docs", "", "update the table of built-in traces in this page of Markdown, and the charts beside it",
	)
	flags.StringVar(
		&o.Address, "redis", "",
		"measure the memory of keys by MEMORY USAGE on this server: host:port, or redis://[user:password@]host:port[/db]",
	)
	flags.SortFlags = false
	return cmd
}

// algorithmLines returns the names of all algorithms, some a line.
func algorithmLines() string {
	var lines []string
	for names := range slices.Chunk(simulate.Algorithms(), 8) {
		lines = append(lines, "  "+strings.Join(names, ", "))
	}
	return strings.Join(lines, ",\n")
}
