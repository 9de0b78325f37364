// Command demo is rrl demo by itself: workers and pollers share a limit. It compiles in half the
// time of rrl, because it links nothing else.
//
//	go run -v ./cmd/rrl/demo
//	go run -v ./cmd/rrl/demo --java
//	go run -v ./cmd/rrl/demo --help
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/connect"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/demo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	err := run(ctx, os.Args[1:])
	switch {
	case err == nil || errors.Is(err, pflag.ErrHelp):
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		os.Exit(130) // as a shell has it for Ctrl-C
	default:
		fmt.Fprintln(os.Stderr, "demo: "+connect.LastDefence(err.Error()))
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	flags.Usage = func() { fmt.Printf("%s\n\nFlags:\n%s", demo.Help, flags.FlagUsages()) }
	options := demo.Flags(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 { // not repeated: an address may contain a password
		return errors.New("flags only, no arguments; see --help")
	}
	o, err := options()
	if err != nil {
		return err
	}
	return demo.Run(ctx, o, os.Stdin, os.Stdout)
}
