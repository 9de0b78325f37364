// Package guide contains the code of the README and of the pages in docs. Each block of Go on those pages occurs line
// by line in one of these tests, so that it compiles and does what its page says. The blocks of Java occur in
// compat/java in the same way, and run in the tests of compat.
package guide

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	pages  = "../../docs/guide"
	readme = "../../README.md"
	java   = "../../compat/java/src/main/java/rratelimiter/compat/Pages.java"
)

// dedent removes the common indentation of lines.
func dedent(lines []string) []string {
	indent := -1
	for _, line := range lines {
		if text := strings.TrimLeft(line, "\t "); text != "" && (indent < 0 || len(line)-len(text) < indent) {
			indent = len(line) - len(text)
		}
	}
	var all []string
	for _, line := range lines {
		all = append(all, line[min(max(indent, 0), len(line)):])
	}
	return all
}

// holds reports whether a file contains the lines of a block in sequence, at any common indentation.
func holds(file, block []string) bool {
	for at := range max(len(file)-len(block)+1, 0) {
		if slices.Equal(dedent(file[at:at+len(block)]), block) {
			return true
		}
	}
	return false
}

// linesOf returns the lines of a file.
func linesOf(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// blocksOf returns the blocks of code in a language on a page.
func blocksOf(t *testing.T, page, language string) (blocks [][]string) {
	t.Helper()
	text := strings.Join(linesOf(t, page), "\n")
	block := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)\n```$")
	for _, found := range block.FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, strings.Split(found[1], "\n"))
	}
	return blocks
}

func TestCodeOnThePagesIsTested(t *testing.T) {
	names, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var files [][]string
	for _, name := range names {
		files = append(files, linesOf(t, name))
	}
	guides, err := filepath.Glob(pages + "/*.md")
	if err != nil || len(guides) == 0 {
		t.Fatal(guides, err)
	}
	others, err := filepath.Glob(pages + "/../*.md")
	if err != nil || len(others) == 0 {
		t.Fatal(others, err)
	}
	withCode := slices.Concat(guides, []string{pages + "/../algorithms.md", pages + "/../observability.md", "../../README.md"})
	for _, guide := range slices.Concat(withCode, others) {
		blocks := blocksOf(t, guide, "go")
		if len(blocks) == 0 && slices.Contains(withCode, guide) && guide != pages+"/README.md" {
			t.Errorf("%s has no code", guide)
		}
		for _, lines := range blocks {
			if !slices.ContainsFunc(files, func(file []string) bool { return holds(file, lines) }) {
				t.Errorf("%s has code that no test has:\n%s", guide, strings.Join(lines, "\n"))
			}
		}
	}
}

func TestJavaOnThePagesIsTested(t *testing.T) {
	guides, err := filepath.Glob(pages + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	file, blocks := linesOf(t, java), 0
	for _, page := range append(guides, readme) {
		for _, lines := range blocksOf(t, page, "java") {
			blocks++
			if !holds(file, lines) {
				t.Errorf("%s has Java that no test has:\n%s", page, strings.Join(lines, "\n"))
			}
		}
	}
	if blocks == 0 {
		t.Error("no page has any Java")
	}
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	guides, err := filepath.Glob(pages + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	listed := map[string]bool{}
	for _, guide := range guides {
		text, err := os.ReadFile(guide)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			to := filepath.Join(pages, found[1])
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", guide, err)
			}
			if filepath.Base(guide) == "README.md" {
				listed[to] = true
			}
		}
	}
	for _, guide := range guides {
		if !listed[guide] && filepath.Base(guide) != "README.md" {
			t.Errorf("README.md does not list %s", guide)
		}
	}
}
