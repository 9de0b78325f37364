// Command harness makes a real Redisson of any version execute one command, or serve the protocol on stdin and stdout:
//
// go run ./compat/harness build [VERSION...] go run ./compat/harness 3.17.5 --redis redis://127.0.0.1:6379 run jobs
// blocked threads=4 for=5000 go run ./compat/harness 4.7.0 --redis redis://127.0.0.1:6379
//
// The options and commands are those of compat/java; the first use of a version builds it.
//
//	go run ./compat/harness build [VERSION...]
//	go run ./compat/harness 3.17.5 --redis redis://127.0.0.1:6379 run jobs blocked threads=4 for=5000
//	go run ./compat/harness 4.7.0 --redis redis://127.0.0.1:6379
//
// The options and commands are those of compat/java; the first use of a version builds it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		// Not errors.As: a build error that wraps a failed Maven has not been printed yet.
		if _, ok := err.(*exec.ExitError); ok {
			os.Exit(1) // the harness has printed the reason
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("usage: harness build [VERSION...] | harness VERSION [OPTIONS] [COMMAND ARGS...]")
	}
	if args[0] == "build" {
		return redisson.Build(ctx, args[1:]...)
	}
	java, err := redisson.Command(ctx, args[0], args[1:]...)
	if err != nil {
		return err
	}
	java.Stdin, java.Stdout, java.Stderr = os.Stdin, os.Stdout, os.Stderr
	return java.Run()
}
