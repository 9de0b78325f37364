package main

import (
	"fmt"
	"os"
	"strings"
)

// readme.go writes the tables into README.md, between two marks.

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

// checkReadme returns an error if the page has no marks for the tables. It runs before the measurements, which take a
// quarter of an hour.
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

// around returns the text before and after the tables, including the marks.
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
