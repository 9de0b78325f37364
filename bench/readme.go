package main

import (
	"fmt"
	"os"
	"strings"
)

// readme.go puts the tables into the page, between two marks.

// Files that -update writes, in the root of the repository.
const (
	readmeFile = "README.md"
	chartFile  = "docs/bench.svg"
	jsonFile   = "bench/results.json"
)

const (
	tableBegin = "<!-- speed: written by make bench-update -->\n"
	tableEnd   = "<!-- /speed -->"
)

// checkReadme tells whether there is a place for the tables, before a quarter of an hour is spent on them.
func checkReadme(file string) error {
	_, _, err := around(file)
	return err
}

func updateReadme(file string, r *Report) error {
	head, tail, err := around(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(head+"\n"+readmeText(r)+"\n"+tail), 0o644)
}

// around is what stands before and behind the tables, marks included.
func around(file string) (head, tail string, err error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return "", "", fmt.Errorf("-update works in the root of the repository: %w", err)
	}
	head, rest, begins := strings.Cut(string(page), tableBegin)
	_, tail, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		return "", "", fmt.Errorf("%s has no place for the tables: %s... %s", file, tableBegin, tableEnd)
	}
	return head + tableBegin, tableEnd + tail, nil
}
