// Command testrun runs several go test commands, one after the other or at the same time, and
// prints one report:
//
//	go run ./internal/testrun [-skips] -- ARGUMENT... [then ARGUMENT...] [beside ARGUMENT...]
//
// The arguments are those of a go test, or all arguments of a go command that prints the events of
// a test binary: -C DIR tool test2json -p PACKAGE BINARY -test.v=test2json. Variables, such as
// GOWORK=off, can stand before them. After the word "then", the next go test starts when the one
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
	"regexp"
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
				run(complete(args), r)
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

// variable matches the setting of a variable.
var variable = regexp.MustCompile(`^[A-Z_]+=`)

// variables splits the arguments into the variables before them, and the rest.
func variables(args []string) (set, rest []string) {
	for len(args) > 0 && variable.MatchString(args[0]) {
		set, args = append(set, args[0]), args[1:]
	}
	return set, args
}

// complete returns the variables and the arguments of a go command.
func complete(args []string) []string {
	set, rest := variables(args)
	if slices.Contains(rest, "test2json") {
		return args
	}
	return slices.Concat(set, []string{"test", "-json"}, rest)
}

// run runs one go command, with variables before its arguments.
func run(all []string, r *report) {
	set, args := variables(all)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), set...)
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(os.Stderr, &said)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	c, told := r.command(all...), false
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
		r.broke(fmt.Sprintf("go %s: %v", strings.Join(all, " "), err), said.String())
	}
}
