// Command harness starts a Java program that uses a real Redisson of a given version. The program
// (compat/java) executes the command in the arguments. Without a command it reads commands from
// stdin and writes their answers to stdout. Without arguments, harness prints its usage.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

const usage = `usage: go run ./compat/harness VERSION [OPTIONS] [COMMAND ARGS...]
       go run ./compat/harness build [VERSION...]

  go run ./compat/harness 4.7.0 --redis redis://127.0.0.1:6379 trysetrate orders OVERALL 100 1000
  go run ./compat/harness 4.7.0 --redis redis://127.0.0.1:6379 tryacquire orders 5
  go run ./compat/harness 3.17.5 --redis redis://127.0.0.1:6379 run orders blocked threads=4 for=5000

VERSION is a release of Redisson. Its harness is built by build, or when it is first used. Options and commands are
those of compat/java. Without a COMMAND, the harness reads commands from stdin and writes their answers to stdout.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		// Not errors.As: a build error that wraps a failed Maven has not been printed yet.
		if _, ok := err.(*exec.ExitError); ok {
			os.Exit(1) // the harness has printed the reason
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 || slices.Contains([]string{"help", "-h", "-help", "--help"}, args[0]) {
		_, err := io.WriteString(out, usage)
		return err
	}
	if args[0] == "build" {
		return redisson.Build(ctx, args[1:]...)
	}
	if strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("%s precedes the version of Redisson\n%s", args[0], usage)
	}
	java, err := redisson.Command(ctx, args[0], args[1:]...)
	if err != nil {
		return err
	}
	java.Stdin, java.Stdout, java.Stderr = os.Stdin, out, os.Stderr
	return java.Run()
}
