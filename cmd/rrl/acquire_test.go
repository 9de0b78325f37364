package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestAcquireTakesPermits(t *testing.T) {
	onShops(t, func(t *testing.T, s shop) {
		s.limiter("x", "5", "3600000", "0")
		contains(t, s.ok("acquire", "x"), "x: 1 permit granted after ")
		if one := objects(t, s.ok("acquire", "x", "2", "--timeout", "1h", "--json"))[0]; one["granted"] != true ||
			one["permits"] != 2. {
			t.Errorf("as JSON it says %v", one)
		}
		s.fails(exitDenied, "x: not granted; try again in ", "acquire", "x", "3", "--try")
		code, out, _ := s.run("acquire", "x", "3", "--try", "--json")
		if one := objects(t, out)[0]; code != exitDenied || one["granted"] != false ||
			one["retry_after_ms"].(float64) < 3_000_000 {
			t.Errorf("exit code %d, %v", code, one)
		}
		s.limiter("OAUTH", "1", "3600000", "0")
		s.ok("acquire", "OAUTH", "--try")
		s.fails(exitDenied, "OAUTH: not granted; try again in ", "acquire", "OAUTH", "--try")
		s.fails(exitDenied, "x: not granted: the permits are not free within 10 ms", "acquire", "x", "3", "--timeout",
			"10ms")
		s.fails(1, "the rate is less than the requested permits (6); no request for more", "acquire", "x", "6")
		s.fails(1, "rrl set sets a rate", "acquire", "nothing")
		s.fails(1, "--try does not wait", "acquire", "x", "--try", "--timeout", "1s")
		s.fails(1, "--timeout must be positive", "acquire", "x", "3", "--timeout", "0s")
		s.fails(1, "--timeout must be positive", "acquire", "x", "3", "--timeout", "-1s")
		s.fails(1, "is not a number of permits", "acquire", "x", "many")
		s.fails(exitFailed, "is not a number of permits", "acquire", "x", "many", "--", "true")
		s.fails(
			1,
			`-1 is neither a number of permits nor a rate; a name that begins with - is --quoted '"-1"'; see rrl acquire --help`,
			"acquire", "x", "-1",
		)
		s.fails(1, "-5/s is neither a number of permits nor a rate", "set", "x", "-5/s")
		s.fails(1, "needs the name of a limiter", "acquire")
		s.fails(exitFailed, "no command after --", "acquire", "x", "--")
		if one := objects(t, s.ok("show", "x", "--json"))[0]; one["used"] != 3. {
			t.Errorf("%v permits are in use", one["used"])
		}
	})
}

// program runs rrl as a process.
func (s shop) program(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(s.t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "RRL_REDIS="+s.s.URL())
	return cmd
}

func TestAcquireBecomesACommand(t *testing.T) {
	s := newShop(t, redistest.Shared(t))
	s.limiter("x", "3", "3600000", "0")
	for _, c := range []struct {
		args      []string
		code      int
		out, errs string
		used      int64
	}{
		{[]string{"x", "--", "sh", "-c", "cat; echo out; echo errs >&2; exit 7"}, 7, "in\nout\n", "errs\n", 1},
		{[]string{"x", "--", "no-such-command"}, exitUnfound, "", "rrl: exec:", 1},
		{[]string{"x", "--", "/dev/null"}, exitNotRun, "", "rrl: exec:", 1},
		{[]string{"x", "2", "--json", "--", "sh", "-c", "kill -TERM $$"}, -1, "", "", 3},
		{[]string{"x", "--try", "--", "echo", "never"}, exitDenied, "", "rrl: x: not granted", 3},
		{[]string{"nothing", "--", "echo", "never"}, exitFailed, "", "rrl: there is no limiter nothing; rrl ls", 3},
	} {
		cmd := s.program(append([]string{"acquire"}, c.args...)...)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("in\n"), &out, &errs
		err := cmd.Run()
		if cmd.ProcessState.ExitCode() != c.code || out.String() != c.out || !strings.HasPrefix(errs.String(), c.errs) {
			t.Errorf("%q: %v, output %q, errors %q", c.args, err, out.String(), errs.String())
		}
		if used := s.rdb.Get(t.Context(), "{x}:value").Val(); used != []string{"3", "2", "1", "0"}[c.used] {
			t.Errorf("%q: %s of 3 are free", c.args, used)
		}
	}
}

func TestAcquireSaysOnATerminalWhatItWaitsFor(t *testing.T) {
	s := onTerminal(t)
	s.ok("acquire", "x", "10")
	defer func(before time.Duration) { render.Soon = before }(render.Soon)
	render.Soon = 10 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	var errs tape
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx, []string{"acquire", "x", "3", "--redis", s.s.URL()}, strings.NewReader(""), io.Discard, &errs)
	}()
	if !errs.await(ctx, "rrl: waiting for 3 permits of x\n") {
		t.Errorf("it says %q", errs.String())
	}
	stop()
	<-ended
	terminal = func(any) bool { return false }
	s.limiter("y", "1", "300", "0")
	for range 2 {
		if _, _, errs := s.run("acquire", "y"); strings.Contains(errs, "permit") {
			t.Errorf("without a terminal: %q", errs)
		}
	}
}

// A signal during the wait ends the process as if it had not been caught, so that a shell's loop
// ends.
func TestAcquireEndsByItsSignal(t *testing.T) {
	s := newShop(t, redistest.Shared(t))
	s.limiter("x", "1", "3600000", "0")
	s.ok("acquire", "x")
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		name := fmt.Sprintf("waits-for-signal-%d", signal)
		cmd := s.program("acquire", "x", "--redis", s.s.URL()+"?client_name="+name, "--", "echo", "never")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		s.must(cmd.Start())
		s.comes(name) // until then it may not listen for signals
		s.must(cmd.Process.Signal(signal))
		var ended *exec.ExitError
		err := cmd.Wait()
		status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !errors.As(err, &ended) || !status.Signaled() || status.Signal() != signal || out.Len() > 0 {
			t.Errorf("%v: %v, output %q", signal, err, out.String())
		}
	}
}

// comes waits for a process by its connection's name.
func (s shop) comes(name string) {
	s.t.Helper()
	began := time.Now()
	for !strings.Contains(s.rdb.ClientList(s.t.Context()).Val(), name) {
		if time.Since(began) > time.Minute {
			s.t.Fatal("it does not come")
		}
		time.Sleep(time.Millisecond)
	}
}

// A command that a script runs in the background ignores interrupts, and so does the command that
// acquire becomes.
func TestAcquireIgnoresWhatItsCallerIgnores(t *testing.T) {
	s := newShop(t, redistest.Shared(t))
	s.limiter("x", "1", "3600000", "0")
	s.ok("acquire", "x")
	const name = "ignores-interrupts"
	cmd := s.program(
		"acquire", "x", "--redis", s.s.URL()+"?client_name="+name, "--", "sh", "-c", "kill -INT $$; echo got it",
	)
	cmd.Args = append([]string{"sh", "-c", `trap "" INT; exec "$0" "$@"`}, cmd.Args...)
	cmd.Path = "/bin/sh"
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	s.must(cmd.Start())
	s.comes(name)
	s.must(cmd.Process.Signal(syscall.SIGINT))
	s.ok("set", "x", "2/h")
	if err := cmd.Wait(); err != nil || out.String() != "got it\n" {
		t.Errorf("%v, output %q", err, out.String())
	}
}
