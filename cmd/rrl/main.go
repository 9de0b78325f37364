// Command rrl shows and manages rate limiters that Go and Java (Redisson) services share.
// docs/rrl.md describes it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// An interrupted is the cause of a cancelled context: a signal.
type interrupted struct{ syscall.Signal }

func (i interrupted) Error() string { return i.String() }

func main() {
	ctx, end := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		if !signal.Ignored(s) { // a shell ignores it for commands that a script runs in the background
			signal.Notify(signals, s)
		}
	}
	go func() {
		// The first signal cancels the context, a second one ends the process.
		s, _ := (<-signals).(syscall.Signal)
		signal.Stop(signals)
		end(interrupted{s})
	}()
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if ctx.Err() != nil && code > ofSignal {
		dieOf(syscall.Signal(code - ofSignal))
	}
	os.Exit(code)
}
