package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// root.go is the command itself: what all subcommands share, and how errors leave. A subcommand is one file with a
// function that makes it, listed in newRoot.

// run is the whole program with its surroundings as arguments, and answers the exit code: 0, or 1 after any error.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(errs, "rrl: "+lastDefence(err.Error()))
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rrl",
		Short: "Rate limiters that Go and Java (Redisson) services share",
		Long: `rrl works with rate limiters that Go and Java (Redisson) services share through Redis.

A limiter has a name and a rate: so many permits in any interval, such as 50/s. Whoever asks for permits gets a
grant, kept in Redis as a record, when that many are free; a record counts for one interval.`,
		Version:       version(debug.ReadBuildInfo()),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			if strings.Contains(args[0], "://") { // may hold a password, so it is not repeated
				return errors.New("an address is no command: servers are named by --redis; see rrl --help")
			}
			return fmt.Errorf("unknown command %q; see rrl --help", args[0])
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetVersionTemplate("rrl {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%s; see %s --help", redacted(err.Error()), cmd.CommandPath())
	})
	root.AddCommand(newLs(), newShow(), newWatch(), newServe(), newSet(), newRelease(), newRm(), newRepair(), newReset(), newDemo(), newSimulate())
	return root
}

// noArgs refuses arguments without repeating them: one may be an address with a password.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes flags only, no arguments; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	return nil
}

// version names the build: the module's version, or the commit it was built from.
func version(info *debug.BuildInfo, known bool) string {
	if !known {
		return "unknown version"
	}
	name, commit, changed := info.Main.Version, "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				changed = ", changed since"
			}
		}
	}
	if name == "" {
		name = "(devel)"
	}
	if commit != "" {
		name += " (commit " + commit[:min(len(commit), 12)] + changed + ")"
	}
	return name + " " + info.GoVersion
}
