// Command testrun runs several go test commands, one after the other or at the same time, and
// prints one report:
//
//	go run ./internal/testrun [-skips] -- ARGUMENT... [then ARGUMENT...] [beside ARGUMENT...]
//
// The arguments are those of a go test. After the word "then", the next go test starts when the one
// before has ended. After the word "beside", it starts at once. The result of a package is printed
// when the package is done, and the output of a test when the test fails. With -v, all output of
// that go test is printed as it comes. At the end the report has the ten slowest tests, and each
// failure once more, because continuous integration often shows only the end of the output. The
// last ten lines have the commands that run the failed tests again, with their seeds. A skipped
// test fails the run unless -skips is given.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

func main() {
	skips := flag.Bool("skips", false, "tests may skip")
	flag.Parse()
	r := &report{out: os.Stdout, skips: *skips}
	var running sync.WaitGroup
	for _, lane := range split(flag.Args(), "beside") {
		running.Go(func() {
			for _, args := range split(lane, "then") {
				run(append([]string{"test", "-json"}, args...), r)
			}
		})
	}
	running.Wait()
	if !r.end() {
		os.Exit(1)
	}
}

// split splits the arguments at each occurrence of a word.
func split(args []string, word string) [][]string {
	var parts [][]string
	for {
		at := slices.Index(args, word)
		if at < 0 {
			return append(parts, args)
		}
		parts = append(parts, args[:at])
		args = args[at+1:]
	}
}

// run runs one go command.
func run(args []string, r *report) {
	cmd := exec.Command("go", args...)
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(os.Stderr, &said)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	c, told := r.command(args...), false
	if err == nil {
		read := bufio.NewReader(out)
		for {
			line, end := read.ReadBytes('\n')
			if len(line) > 0 && c.line(line, slices.Contains(args, "-v")) {
				told = true
			}
			if end != nil {
				break
			}
		}
		err = cmd.Wait()
	}
	if err != nil && !told {
		r.broke(fmt.Sprintf("go %s: %v", strings.Join(args, " "), err), said.String())
	}
}
