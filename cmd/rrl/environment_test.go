package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// ofType has, for each type of a flag, a text that is no default, and one that is not of the type.
var ofType = map[string]struct{ good, bad string }{
	"bool": {"true", "often"}, "int": {"77", "some"}, "int64": {"77", "some"}, "float64": {"0.77", "half"},
	"duration": {"7m7s", "soon"}, "string": {"some text", ""}, "stringSlice": {"one,two", ""},
}

// eachFlag calls do with each flag of each command but --help, and but --redis of the commands that
// need no server. Each call gets commands of its own.
func eachFlag(t *testing.T, do func(t *testing.T, cmd *cobra.Command, flag *pflag.Flag)) {
	for _, listed := range newRoot().Commands() {
		listed.Flags().VisitAll(func(flag *pflag.Flag) {
			if name := listed.Name(); flag.Name == "redis" && (name == "demo" || name == "simulate") {
				return
			}
			t.Run(listed.Name()+"/"+flag.Name, func(t *testing.T) {
				cmd, _, err := newRoot().Find([]string{listed.Name()})
				if err != nil {
					t.Fatal(err)
				}
				do(t, cmd, cmd.Flags().Lookup(flag.Name))
			})
		})
	}
}

func TestEachFlagHasAVariable(t *testing.T) {
	count := 0
	eachFlag(t, func(t *testing.T, cmd *cobra.Command, flag *pflag.Flag) {
		count++
		variable := "RRL_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		text := ofType[flag.Value.Type()].good
		before := flag.Value.String()
		t.Setenv(variable, text)
		if err := readEnvironment(cmd); err != nil {
			t.Fatal(err)
		}
		got := strings.Trim(flag.Value.String(), "[]")
		if got != text || before == text || !flag.Changed {
			t.Errorf("by %s it is %q (changed: %v), want %q", variable, got, flag.Changed, text)
		}
	})
	if count < 150 {
		t.Errorf("only %d flags of commands", count)
	}
}

// demo writes to the server that it uses: it must not be that of other commands.
func TestDemoAndSimulateDoNotUseTheAddressOfOtherCommands(t *testing.T) {
	t.Setenv("RRL_REDIS", "redis://prod.example.com")
	for _, name := range []string{"demo", "simulate"} {
		cmd, _, err := newRoot().Find([]string{name})
		if err != nil || readEnvironment(cmd) != nil || cmd.Flags().Changed("redis") {
			t.Errorf("%s: its server is %s, %v", name, cmd.Flags().Lookup("redis").Value, err)
		}
	}
}

func TestAGivenFlagWinsOverItsVariable(t *testing.T) {
	eachFlag(t, func(t *testing.T, cmd *cobra.Command, flag *pflag.Flag) {
		text := ofType[flag.Value.Type()].good
		t.Setenv(variableOf(cmd, flag), "true")
		if err := cmd.ParseFlags([]string{"--" + flag.Name + "=" + text}); err != nil {
			t.Fatal(err)
		}
		if err := readEnvironment(cmd); err != nil || strings.Trim(flag.Value.String(), "[]") != text {
			t.Errorf("it is %q, %v; want %q", flag.Value, err, text)
		}
	})
}

func TestErrorsNameTheVariable(t *testing.T) {
	eachFlag(t, func(t *testing.T, cmd *cobra.Command, flag *pflag.Flag) {
		text := ofType[flag.Value.Type()].bad
		variable := variableOf(cmd, flag)
		t.Setenv(variable, text)
		err := readEnvironment(cmd)
		if text != "" && (err == nil || !strings.HasPrefix(err.Error(), variable+": invalid argument")) ||
			text == "" && err != nil {
			t.Errorf("of %s=%s: %v", variable, text, err)
		}
	})
}

func TestVariablesOfACommand(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.limiter("orders", "20", "60000", "0")
	t.Setenv("RRL_REDIS", s.s.URL())
	t.Setenv("RRL_JSON", "true")
	t.Setenv("RRL_MATCH", "ord*") // an argument's check must see it
	t.Setenv("RRL_YES", "")       // as if it were not set
	t.Setenv("RRL_VERSION", "1.0")
	for _, c := range []struct {
		args []string
		code int
		part string
	}{
		{[]string{"ls"}, 0, `{"name":"orders",`},
		{[]string{"ls", "--json=false"}, 0, "orders  20/m"},
		{[]string{"rm"}, 0, `"removed":false`},
		{[]string{"ls", "--timeout", "-1s"}, 1, "rrl: --timeout must be positive\n"},
	} {
		if code, out, errs := rrl(t.Context(), c.args...); code != c.code || !strings.Contains(out+errs, c.part) {
			t.Errorf("%q: exit code %d, %s%s", c.args, code, out, errs)
		}
	}
	for variable, c := range map[string]struct{ value, errs string }{
		"RRL_TIMEOUT": {
			"soon",
			`rrl: RRL_TIMEOUT: invalid argument "soon" for "--timeout" flag: ` +
				`must be a duration like "30s" or "5m"; see rrl export --help` + "\n",
		},
		"RRL_EVERY": {"-1s", "rrl: --every: -1s is negative (RRL_EVERY sets --every)\n"},
		"RRL_QUOTED": {
			"redis://u:hush@host", `rrl: RRL_QUOTED: invalid argument "redis://***; see rrl export --help` + "\n",
		},
	} {
		t.Setenv(variable, c.value)
		if code, out, errs := rrl(t.Context(), "export"); code != 1 || out != "" || errs != c.errs {
			t.Errorf("%s=%s: exit code %d, %q", variable, c.value, code, out+errs)
		}
		os.Unsetenv(variable)
	}
}

func TestTheHelpNamesTheVariables(t *testing.T) {
	code, out, errs := rrl(t.Context(), "--help")
	if code != 0 || !strings.Contains(out, "RRL_DENY_CACHE for --deny-cache") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	for _, cmd := range newRoot().Commands() {
		if cmd.Flags().Lookup("quoted") != nil && !strings.Contains(cmd.Long, "RRL_REDIS") {
			t.Errorf("rrl %s --help does not say how its flags are set", cmd.Name())
		}
	}
}
