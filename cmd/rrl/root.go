package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// root.go has the root command: the parts that all subcommands share, and error handling. A
// subcommand is one file with a constructor, listed in newRoot.

// An exit is an error with its own exit code. Without a wrapped error, nothing is printed.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }

// run is the whole program with its environment as arguments, and returns the exit code: 0, or 1
// after an error without its own code. After a signal it prints nothing, and the process ends by
// that signal.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	if cmd, err := root.ExecuteContextC(ctx); err != nil {
		if end := (interrupted{}); errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &end) {
			return ofSignal + int(end.Signal)
		}
		code := exit{code: 1}
		errors.As(err, &code)
		if text := err.Error(); text != "" {
			fmt.Fprintln(errs, "rrl: "+connect.LastDefence(withVariables(cmd, text)))
		}
		return code.code
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "rrl",
		Short: "Rate limiters that Go and Java (Redisson) services share",
		Long: `rrl works with rate limiters that Go and Java (Redisson) services share through Redis.

A limiter has a name and a rate: a number of permits in any interval, such as 50/s. A request asks for some permits, and
is granted when at least that many are free. The grant is a record in Redis, which counts for one interval.

Each flag of a command can also be set by an environment variable: RRL_ and its name in capitals, with _ for -, such as
RRL_REDIS for --redis, RRL_DENY_CACHE for --deny-cache, and RRL_JSON=true for --json. A flag that is given wins. Only
--redis of demo and simulate, which need no server, has no variable.

Commands on a live Redis use the server of --redis, or else localhost:6379. Passwords come from the address, or else
from the environment (RRL_PASSWORD or REDISCLI_AUTH; not for demo and simulate). Times are those of Redis's clock, not
this host's (except restore --now). Commands on a live Redis take the flags below, before or after the command. If a
reply of Redis takes longer than a second, a line says so; after --timeout the command fails.

Exit codes: 0 done; 1 an error, or doctor found an error or a warning, or show or check-rules found an error; 2 apply
--diff found differences. acquire has 124 and more: see rrl acquire --help.`,
		Version:       version(debug.ReadBuildInfo()),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			if strings.Contains(args[0], "://") { // may contain a password, so it is not repeated
				return errors.New("an address is not a command: give the server by --redis; see rrl --help")
			}
			hint := ""
			if near := meant(cmd, args[0]); len(near) > 0 {
				hint = ": did you mean " + strings.Join(near, " or ") + "?"
			}
			return fmt.Errorf("unknown command %q%s; see rrl --help", args[0], hint)
		},
		Args: cobra.ArbitraryArgs,
	}
	root.SetVersionTemplate("rrl {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		text := err.Error()
		if parts := negative.FindStringSubmatch(text); parts != nil {
			text = fmt.Sprintf(
				`%s is neither a number of permits nor a rate; a name that begins with - is --quoted '"%s"'`, parts[1],
				parts[1],
			)
		}
		return fmt.Errorf("%s; see %s --help", connect.Redacted(text), cmd.CommandPath())
	})
	// The flags of commands on a live Redis are known here, too, so that they may stand before the
	// command. The command itself reads them.
	(&common{}).addFlags(root)
	root.Flags().SortFlags = false
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{
			"look",
			"Look at limiters:",
			[]*cobra.Command{newLs(), newShow(), newWatch(), newServe(), newExport(), newDoctor()},
		},
		{
			"use", "Set rates, take and give back permits:",
			[]*cobra.Command{newSet(), newApply(), newAcquire(), newRelease(), newCheckRules(), newRls()},
		},
		{
			"tend", "Mend, move and remove:",
			[]*cobra.Command{newRepair(), newReset(), newSnapshot(), newRestore(), newRm(), newGc()},
		},
		{withoutRedis, "Try without a service of your own:", []*cobra.Command{newDemo(), newSimulate()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.id
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(newVersion())
	for _, cmd := range root.Commands() {
		fromEnvironment(cmd)
	}
	return root
}

// withoutRedis is the group of the commands that need no server.
const withoutRedis = "try"

// negative matches the error for an argument that begins with a minus sign and a digit.
var negative = regexp.MustCompile(`^unknown shorthand flag: '\d' in (-\S+)$`)

// meant returns the commands that are similar to an unknown one: in a short one, one letter may
// differ.
func meant(root *cobra.Command, typed string) []string {
	root.SuggestionsMinimumDistance = 2
	if len(typed) < 4 {
		root.SuggestionsMinimumDistance = 1
	}
	return root.SuggestionsFor(typed)
}

// noArgs refuses arguments without repeating them: one may be an address with a password.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes flags only, no arguments; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	}
	return nil
}
