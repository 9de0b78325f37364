package main

import (
	"bytes"
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A tape is an output that a test can read while a command writes it.
type tape struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *tape) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *tape) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// await waits until the tape has a text, and reports whether it has. It gives up after a minute, or
// when ctx ends.
func (o *tape) await(ctx context.Context, text string) bool {
	for deadline := time.Now().Add(time.Minute); !strings.Contains(o.String(), text); time.Sleep(5 * time.Millisecond) {
		if ctx.Err() != nil || time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// rrl runs the program with arguments.
func rrl(ctx context.Context, args ...string) (code int, out, errs string) {
	var o, e tape
	code = run(ctx, args, strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// rrlBeside runs the program with arguments while do runs, and interrupts it when that returns.
// do's context ends with the program.
func rrlBeside(
	ctx context.Context, do func(ctx context.Context, out *tape), args ...string,
) (code int, out, errs string) {
	ctx, stop := context.WithCancelCause(ctx)
	var o, e tape
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(ctx, &o)
		stop(errors.New("interrupt signal received"))
	}()
	code = run(ctx, args, strings.NewReader(""), &o, &e)
	stop(nil)
	<-done
	return code, o.String(), e.String()
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		name      string
		args      []string
		code      int
		out, errs string
	}{
		{"help without arguments", nil, 0, "demo", ""},
		{"help of demo", []string{"demo", "--help"}, 0, "--workers", ""},
		{"version", []string{"--version"}, 0, "rrl ", ""},
		{"version as a command", []string{"version"}, 0, "rrl ", ""},
		{"unknown command", []string{"xyz"}, 1, "", `unknown command "xyz"; see rrl --help`},
		{"mistyped command", []string{"demmo"}, 1, "", `unknown command "demmo": did you mean demo?; see rrl --help`},
		{"mistyped short command", []string{"lss"}, 1, "", `unknown command "lss": did you mean ls?`},
		{"another program's word", []string{"delete"}, 1, "", "did you mean rm?"},
		{"unknown flag", []string{"demo", "--wrokers", "3"}, 1, "", "unknown flag: --wrokers; see rrl demo --help"},
		{"argument", []string{"demo", "x"}, 1, "", "no arguments"},
		{"rate without interval", []string{"demo", "--rate", "50"}, 1, "", "--rate: rratelimiter: invalid rate"},
		{"rate of nothing", []string{"demo", "--rate", "0/s"}, 1, "", "--rate 0/s: it refuses every request"},
		{
			"simulation of nothing", []string{"simulate", "--trace", "poisson", "--rate", "0/s"}, 1, "",
			"--rate 0/s: it refuses every request",
		},
		{"no callers", []string{"demo", "--workers", "0", "--pollers", "0"}, 1, "", "at least one caller"},
		{"negative workers", []string{"demo", "--workers", "-1"}, 1, "", "at least one caller"},
		{"no permits", []string{"demo", "--permits", "0"}, 1, "", "must be positive"},
		{"more permits than the rate", []string{"demo", "--permits", "51"}, 1, "", "never grants so many"},
		{"demand", []string{"demo", "--demand", "NaN"}, 1, "", "--demand"},
		{"negative time", []string{"demo", "--for", "-1s"}, 1, "", "must not be negative"},
		{"no name", []string{"demo", "--name", ""}, 1, "", "--name"},
		{"release without Java", []string{"demo", "--release", "3.17.5"}, 1, "", "--release is for --java"},
		{"old Redisson", []string{"demo", "--java", "--release", "3.16.8"}, 1, "", "3.17.0 or later is needed"},
		{"no Redisson", []string{"demo", "--java", "--release", "latest"}, 1, "", "is not a release of Redisson"},
		{"no address", []string{"demo", "--redis", "localhost"}, 1, "", "not an address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := rrl(t.Context(), c.args...)
			if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) ||
				(code == 0) != (errs == "") {
				t.Errorf("exit code %d, output %q, errors %q", code, out, errs)
			}
		})
	}
}

// The flags for server and format may stand before the command as well as after it. A command
// without one of them refuses it.
func TestFlagsMayStandBeforeTheCommand(t *testing.T) {
	s := newShop(t, redistest.Embedded(t))
	s.limiter("orders", "20", "60000", "0")
	for _, args := range [][]string{
		{"--json", "--redis", s.s.URL(), "ls"}, {"--json", "--quoted=false", "ls", "--redis", s.s.URL()},
		{"ls", "--redis", s.s.URL(), "--json"},
		{"--redis", s.s.URL(), "--json", "--timeout", "1m", "--quoted", "show", `"orders"`},
	} {
		code, out, errs := rrl(t.Context(), args...)
		if code != 0 || !strings.HasPrefix(out, `{"name":"orders",`) {
			t.Errorf("%q: exit code %d, %s%s", args, code, out, errs)
		}
	}
	if code, _, errs := rrl(t.Context(), "--quoted", "demo"); code != 1 ||
		!strings.Contains(errs, "unknown flag: --quoted; see rrl demo --help") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestVersionNamesTheBuild(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v1.2.3"}}
	if got := version(info, true); got != "v1.2.3 go1.26.0" {
		t.Error(got)
	}
	info.Main.Version = ""
	info.Settings = []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"},
		{Key: "vcs.modified", Value: "true"},
	}
	if got := version(info, true); got != "(devel) (commit 0123456789ab, changed since) go1.26.0" {
		t.Error(got)
	}
	if got := version(nil, false); got != "unknown version" {
		t.Error(got)
	}
}
