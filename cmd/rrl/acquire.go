package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/survey"
)

// acquire.go is the subcommand acquire: it takes permits, and can run a command once it has them.

// Exit codes of acquire, as timeout and env have them.
const (
	exitDenied  = 124 // the permits were not granted, in time or at once
	exitFailed  = 125 // any other error before the command was started
	exitNotRun  = 126 // the command can't be run
	exitUnfound = 127 // the command does not exist
	ofSignal    = 128 // plus the signal's number: it came during the wait
)

func newAcquire() *cobra.Command {
	c := &common{whose: true}
	var timeout time.Duration
	var try bool
	var command []string
	var name string
	permits := int64(1)
	cmd := c.live(&cobra.Command{
		Use:   "acquire NAME [N] [-- COMMAND ARGS...]",
		Short: "Wait for permits and take them; then run a command",
		Long: `acquire takes N permits, or one, and waits until they are granted. With a COMMAND, the process then becomes that
command: signals, input, output and exit code are the command's. So a loop in a shell script runs at the limiter's pace.

Exit codes without a COMMAND:
  0    granted
  124  not granted at once (--try) or in time (--timeout)
  1    any other error
With a COMMAND the exit code is the command's, or else:
  124  as above
  125  another error before the command was started (but 1 if a flag cannot be parsed)
  126  the command can't be run
  127  the command does not exist
A signal during the wait ends the process by that signal. On a terminal, a line says after 1 s what the command waits
for. --timeout is the maximum wait for the permits; each reply of Redis may take 3 s.

Each waiting process calls Redis by itself. Many waiting processes cost more than one process that waits for all.`,
		Example: `  rrl acquire orders
  rrl acquire orders 5 --timeout 10s || echo "too busy"
  for file in *.csv; do rrl acquire uploads -- curl -T "$file" https://example.com/; done`,
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				args, command = args[:at], args[at:]
				defer func() {
					if err != nil {
						err = exit{exitFailed, err}
					}
				}()
				if len(command) == 0 {
					return errors.New("there is no command after --")
				}
			}
			if len(args) < 1 || len(args) > 2 {
				return errors.New("rrl acquire needs the name of a limiter, and may have a number: rrl acquire orders 5 -- command")
			}
			if name = args[0]; len(args) == 2 {
				permits, err = permitsOf(args[1])
			}
			return err
		},
		ValidArgsFunction: c.complete,
	}, func(ctx context.Context, s *session, _ []string) error {
		switch given := c.flags.Changed("timeout"); {
		case try && given:
			return errors.New("--try does not wait: leave --timeout out")
		case given && timeout <= 0:
			return errors.New("--timeout must be positive; use --try to not wait, or neither flag to wait without a limit")
		}
		name, err := s.named(name)
		if err != nil {
			return err
		}
		if s.client == survey.Everyone {
			return errors.New("--client all: acquire takes permits of one client only")
		}
		states, err := s.states(ctx, name)
		if err != nil {
			return err
		}
		return s.acquire(ctx, states[0], permits, try, timeout, command != nil)
	})
	take := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if command != nil { // take no permits for a command that can't be run
			if _, err := exec.LookPath(command[0]); err != nil {
				return unable(err)
			}
		}
		err := take(cmd, args)
		var end interrupted
		if err != nil && errors.As(context.Cause(cmd.Context()), &end) {
			return exit{ofSignal + int(end.Signal), nil} // so that a shell's loop ends, too
		}
		if command == nil {
			return err
		}
		var code exit
		switch {
		case err == nil:
			return become(command)
		case errors.As(err, &code):
			return err
		}
		return exit{exitFailed, err}
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "maximum wait for the permits; without it there is no limit")
	cmd.Flags().BoolVar(&try, "try", false, "don't wait")
	c.addFlags(cmd)
	cmd.Flags().Lookup("client").Usage = "`id` of the client of a PER_CLIENT limiter"
	return cmd
}

// acquire takes permits. If a command follows, all output is the command's, except errors, and a
// line on a terminal if the permits are not granted soon.
func (s *session) acquire(
	ctx context.Context, l *connect.Limiter, n int64, try bool, timeout time.Duration, quiet bool,
) error {
	if terminal(s.errs) && !try {
		defer render.Later(func() {
			fmt.Fprintf(s.errs, "rrl: waiting for %s of %s\n", render.Number(n, "permit"), s.titled(l))
		})()
	}
	began := time.Now()
	granted, result := true, rratelimiter.Result{}
	var err error
	switch {
	case try:
		result, err = l.Allow(ctx, n)
		granted = result.Allowed
	case timeout > 0:
		granted, err = l.TryAcquireTimeout(ctx, n, timeout)
	default:
		err = l.Acquire(ctx, n)
	}
	if err != nil {
		return err
	}
	waited := time.Since(began)
	if s.json && !quiet {
		err := s.Emit(struct {
			render.JSONName
			Client       string `json:"client,omitempty"`
			Permits      int64  `json:"permits"`
			Granted      bool   `json:"granted"`
			WaitedMs     int64  `json:"waited_ms"`
			RetryAfterMs int64  `json:"retry_after_ms,omitempty"` // with --try
		}{render.NameOf(l.Name()), l.Of, n, granted, waited.Milliseconds(), result.RetryAfter.Milliseconds()})
		if err != nil {
			return err
		}
	}
	switch {
	case granted && !quiet && !s.json:
		s.Say("%s: %s granted after %s", s.titled(l), render.Number(n, "permit"), render.Wait(waited))
	case !granted && try:
		return exit{
			exitDenied,
			fmt.Errorf("%s: not granted; try again in %s", s.titled(l), render.Wait(result.RetryAfter)),
		}
	case !granted:
		return exit{
			exitDenied,
			fmt.Errorf("%s: not granted: the permits are not free within %s", s.titled(l), render.Wait(timeout)),
		}
	}
	return nil
}

// unable returns why a command does not run, with the exit code of a shell.
func unable(err error) error {
	code := exitNotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitUnfound
	}
	return exit{code, err}
}
