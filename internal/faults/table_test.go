package faults

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// table_test.go writes docs/faults.md: each fault is a row, which its test makes. With -update the
// rows of the tests that run are written; else a test fails if its row is not on the page.

var update = flag.Bool("update", false, "write docs/faults.md")

var page = filepath.Join("..", "..", "docs", "faults.md")

// The sections of the page, in order.
const (
	gone     = "Redis is gone, or comes back"
	refuses  = "Redis answers, but with an error"
	lost     = "Something is taken away"
	slow     = "Redis is slow, or the way to it is bad"
	takeover = "Another server takes over"
	own      = "The fault is on this side"
)

var sections = []string{gone, refuses, lost, slow, takeover, own}

// A row has what one test proves about one fault.
type row struct {
	section string
	fault   string
	sees    string        // what a caller sees
	within  string        // what is measured, and from when it counts
	limit   time.Duration // maximum of the measurement; 0: nothing is measured
	late    *lateness     // extends a limit that is a matter of tens of ms; nil otherwise
	after   string        // the limiter's state, once the fault is over
}

// A lateness is the machine's own lateness at the same time, measured with goroutines that only
// sleep.
type lateness struct{ measured time.Duration }

// machine is the factor of the machine's own lateness that is added to a limit.
const machine = 4

// line returns the row as a line of the page.
func (r row) line() string { return fmt.Sprintf("| %s | %s | %s |\n", r.fault, r.sees, r.after) }

var written = struct {
	mu   sync.Mutex
	rows map[string][]string // section to lines
}{rows: map[string][]string{}}

// most returns the limit of the measurement on this machine.
func (r row) most() time.Duration {
	if r.late != nil {
		return r.limit + machine*r.late.measured
	}
	return r.limit
}

// proves fails the test if a measurement exceeds the row's limit, and adds the row to the page.
func (r row) proves(t *testing.T, measured time.Duration) {
	t.Helper()
	limit := r.most()
	t.Logf("measured: %s %v of %v", r.within, measured.Round(time.Millisecond), limit)
	if measured > limit {
		t.Errorf("it took %v, not %v", measured, limit)
	}
	line := r.line()
	written.mu.Lock()
	written.rows[r.section] = append(written.rows[r.section], line)
	written.mu.Unlock()
	if *update || t.Failed() {
		return
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), line) {
		t.Errorf("docs/faults.md does not say so (-update writes it): %s", line)
	}
}

// columnsOf parses a line of a table.
func columnsOf(line string) []string {
	line, ok := strings.CutPrefix(strings.TrimSpace(line), "| ")
	if !ok {
		return nil
	}
	return strings.Split(strings.TrimSuffix(line, " |"), " | ")
}

const head = "| fault | what a caller sees | the limiter afterwards |\n" +
	"| --- | --- | --- |\n"

// Marks around the generated part.
const (
	begin = "<!-- rows: written by the tests in internal/faults/, with -update -->\n"
	end   = "<!-- end of rows -->\n"
)

// writePage writes the rows of the tests that ran, and removes rows without a test if all tests
// ran. Without -update it only checks whether there are such rows.
func writePage() error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	old, after, also := strings.Cut(rest, end)
	if !ok || !also {
		return fmt.Errorf("%s lacks the marks of the rows", page)
	}
	section := ""
	for line := range strings.Lines(old) {
		if name, ok := strings.CutPrefix(line, "### "); ok {
			section = strings.TrimSpace(name)
		}
		if cells := columnsOf(line); len(cells) != 3 || cells[0] == "fault" || cells[0] == "---" || proved(cells[0]) {
			continue
		} else if !runsAll() {
			written.rows[section] = append(written.rows[section], line)
		} else if !*update {
			return fmt.Errorf("%s has a row that no test proves (-update leaves it out): %s", page, line)
		}
	}
	if !*update {
		return nil
	}
	var rows strings.Builder
	for _, section := range sections {
		if lines := written.rows[section]; len(lines) > 0 {
			slices.Sort(lines)
			fmt.Fprintf(&rows, "\n### %s\n\n%s%s", section, head, strings.Join(lines, ""))
		}
	}
	rows.WriteByte('\n')
	return os.WriteFile(page, []byte(before+begin+rows.String()+end+after), 0o644)
}

// proved reports whether a test that ran has the row of a fault.
func proved(fault string) bool {
	for _, lines := range written.rows {
		for _, line := range lines {
			if columnsOf(line)[0] == fault {
				return true
			}
		}
	}
	return false
}

// runsAll reports whether no test is left out.
func runsAll() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}
