package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version.go is the subcommand version.

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of rrl",
		Args:  noArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), "rrl", cmd.Root().Version) },
	}
}

// version returns the module's version, or the commit of the build.
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
