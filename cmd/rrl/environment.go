package main

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
)

// environment.go lets environment variables set flags, as containers are configured.

// variableOf returns the environment variable of a flag: RRL_DENY_CACHE of --deny-cache. It is ""
// for a flag without one.
func variableOf(cmd *cobra.Command, flag *pflag.Flag) string {
	switch {
	case flag.Name == "help", flag.Name == "version":
		return ""
	case flag.Name == "redis" && cmd.GroupID == withoutRedis: // must not write to the server that other commands use
		return ""
	}
	return "RRL_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// byVariable is the annotation of a flag that was set by its variable, and not on the command line.
const byVariable = "variable"

// fromEnvironment makes a command read its variables, before it checks its arguments.
func fromEnvironment(cmd *cobra.Command) {
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := readEnvironment(cmd); err != nil {
			return err
		}
		return check(cmd, args)
	}
}

// readEnvironment sets each flag that is not given on the command line, and whose variable is not
// empty.
func readEnvironment(cmd *cobra.Command) (err error) {
	flags := cmd.Flags()
	flags.VisitAll(func(flag *pflag.Flag) {
		variable := variableOf(cmd, flag)
		text := os.Getenv(variable)
		if flag.Changed || text == "" {
			return
		}
		flag.Annotations = map[string][]string{byVariable: {variable}}
		if bad := flags.Set(flag.Name, text); bad != nil {
			err = cmp.Or(err,
				fmt.Errorf("%s: %s; see %s --help", variable, connect.Redacted(bad.Error()), cmd.CommandPath()))
		}
	})
	return err
}

// sourceOf returns what has set a flag: its name with --, or its variable; "" if nothing has.
func sourceOf(flag *pflag.Flag) string {
	switch {
	case !flag.Changed:
		return ""
	case len(flag.Annotations[byVariable]) > 0:
		return flag.Annotations[byVariable][0]
	}
	return "--" + flag.Name
}

// flagName matches the flags in a text.
var flagName = regexp.MustCompile(`--[a-z][a-z-]*`)

// withVariables adds to an error that names flags which variables have set these variables.
func withVariables(cmd *cobra.Command, text string) string {
	named := flagName.FindAllString(text, -1)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		for _, name := range named {
			if source := sourceOf(flag); name == "--"+flag.Name && source != "" && source != name &&
				!strings.Contains(text, source) {
				text += " (" + source + " sets " + name + ")"
			}
		}
	})
	return text
}
