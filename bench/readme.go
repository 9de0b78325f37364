package main

import (
	"fmt"
	"os"
	"strings"
)

// readme.go writes tables into two pages, between two marks on each: the chart and a small table
// into README.md, all tables into bench/README.md.

// Files that -update writes, in the root of the repository.
const (
	readmeFile = "README.md"
	tablesFile = "bench/README.md"
	chartFile  = "docs/bench.svg"
	jsonFile   = "bench/results.json"
)

const (
	tableBegin = "<!-- speed: written by make bench-update -->\n"
	tableEnd   = "<!-- /speed -->"
)

// checkPages returns an error if a page has no marks for its tables. It runs before the
// measurements, which take a quarter of an hour.
func checkPages(files ...string) error {
	for _, file := range files {
		if _, _, err := around(file); err != nil {
			return err
		}
	}
	return nil
}

// updatePage replaces what is between the marks of a page by text.
func updatePage(file, text string) error {
	head, tail, err := around(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(head+"\n"+text+"\n"+tail), 0o644)
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
