// Package guide contains the code of the pages in docs, and runs that of the README. Each block of
// Go on those pages occurs line by line in one of these tests, so that it compiles and does what
// its page says. The blocks of Java occur in compat/java in the same way, and run in the tests of
// compat.
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

// holds reports whether a file contains the lines of a block in sequence, at any common
// indentation.
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
	withoutCode := []string{
		pages + "/README.md",
		pages + "/run-in-containers.md",
		pages + "/from-envoyproxy-ratelimit.md",
	}
	withCode := slices.Concat(guides, []string{pages + "/../algorithms.md", pages + "/../observability.md"})
	for _, guide := range slices.Concat(withCode, others) {
		blocks := blocksOf(t, guide, "go")
		if len(blocks) == 0 && slices.Contains(withCode, guide) && !slices.Contains(withoutCode, guide) {
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

// anchors returns the anchors of the headings on a page, as GitHub makes them.
func anchors(t *testing.T, page string) (all []string) {
	t.Helper()
	other := regexp.MustCompile("[^a-z0-9 _-]")
	for _, line := range linesOf(t, page) {
		if level, title, _ := strings.Cut(line, " "); level != "" && strings.Trim(level, "#") == "" {
			all = append(all, strings.ReplaceAll(other.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
		}
	}
	return all
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	guides, err := filepath.Glob(pages + "/*.md")
	if err != nil {
		t.Fatal(err)
	}
	others, err := filepath.Glob(pages + "/../*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)
	linked := map[string][]string{} // page: the files that it links to
	compat, err := filepath.Glob("../../compat/*.md")
	if err != nil {
		t.Fatal(err)
	}
	roots, err := filepath.Glob("../../*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range slices.Concat(guides, others, roots, compat, []string{"../../bench/README.md"}) {
		for _, found := range link.FindAllStringSubmatch(strings.Join(linesOf(t, page), "\n"), -1) {
			to := page
			if found[1] != "" {
				to = filepath.Join(filepath.Dir(page), found[1])
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if found[2] != "" && !slices.Contains(anchors(t, to), found[2]) {
				t.Errorf("%s links to %s#%s, which has no such heading", page, to, found[2])
			}
			linked[page] = append(linked[page], to)
		}
	}
	for _, page := range guides {
		if !slices.Contains(linked[pages+"/README.md"], page) && filepath.Base(page) != "README.md" {
			t.Errorf("the guide's README.md does not list %s", page)
		}
	}
	for _, page := range others {
		if !slices.Contains(linked[readme], filepath.Clean(page)) {
			t.Errorf("the README does not link to %s", page)
		}
	}
}

// The README is a page to read at once; details belong to the pages that it links to.
func TestReadmeIsShort(t *testing.T) {
	if n := len(linesOf(t, readme)) - 1; n > 150 {
		t.Errorf("the README has %d lines, more than 150", n)
	}
}

// A cell of a table of the README has one thought. Without the targets of its links, it is at most
// as long as a line.
func TestCellsOfTheReadmeAreShort(t *testing.T) {
	target := regexp.MustCompile(`\]\([^)]*\)`)
	for _, line := range linesOf(t, readme) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for cell := range strings.SplitSeq(line, "|") {
			if text := strings.TrimSpace(target.ReplaceAllString(cell, "]")); len(text) > 100 {
				t.Errorf("a cell has %d characters: %s", len(text), text)
			}
		}
	}
}
