package main

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// changed.go selects the mutations that a change concerns: those of changed files, committed or
// not, and those that were added to the list.

const listed = "internal/mutants/mutations.go"

// changedSince returns whether a mutation concerns what has changed since a revision; 1 is the last
// release. Before the first release, all files have changed.
func changedSince(revision string) (func(mutation) bool, error) {
	if revision == "1" {
		tag, err := git("describe", "--tags", "--match", "v[0-9]*", "--abbrev=0")
		if err != nil {
			fmt.Println("there is no release yet: all mutations")
			return func(mutation) bool { return true }, nil
		}
		revision = strings.TrimSpace(tag)
	}
	names, err := git("diff", "--name-only", revision, "--")
	if err != nil {
		return nil, err
	}
	files := strings.Fields(names)
	var before string // the list then
	if slices.Contains(files, listed) {
		before, _ = git("show", revision+":"+listed) // an error: there was none
	}
	fmt.Printf("%d files have changed since %s\n", len(files), revision)
	return func(m mutation) bool {
		added := slices.Contains(files, listed) && !strings.Contains(before, strconv.Quote(m.why))
		return added || slices.Contains(files, m.file)
	}, nil
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, exit.Stderr)
	}
	return string(out), err
}
