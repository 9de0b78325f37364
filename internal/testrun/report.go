package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/proof"
)

const (
	slowest   = 10
	repeats   = 7  // commands at the end, so that they stand in the last ten lines of make test
	mostLines = 80 // of one failure at the end of the report
	dataRace  = "WARNING: DATA RACE"
)

// An event is a line of go test -json: see go doc test2json, and for builds go help buildjson.
type event struct {
	Time                                                   time.Time
	Action, Package, Test, Output, ImportPath, FailedBuild string
	Elapsed                                                float64 // s
}

// key identifies a test or a package. Tests of one package have its key as a prefix.
func (e event) key() string { return e.Package + " " + e.Test }

// name is the key for people: the last two parts of the package's path, and the test.
func (e event) name() string {
	parts := strings.Split(e.Package, "/")
	return strings.TrimSpace(strings.Join(parts[max(0, len(parts)-2):], "/") + " " + e.Test)
}

// parent returns the key of the test around a subtest, or that of the package.
func (e event) parent() string {
	e.Test = e.Test[:max(0, strings.LastIndex(e.Test, "/"))]
	return e.key()
}

// A report collects what all go commands tell. Its methods are safe for concurrent use.
type report struct {
	out   io.Writer
	skips bool // are no failure

	mu       sync.Mutex // guards the rest, the order of writes to out, and the fields of each command
	took     []timed
	failed   []failure
	skipped  []string
	passed   int // tests
	packages int // passed
}

// A command collects the events of one go command. Two commands may run the same test.
type command struct {
	*report
	race     bool
	set      string // variables of the command, as a shell reads them, each with a blank behind it
	outputs  map[string]*strings.Builder
	started  map[string]time.Time // tests that run; a parallel one from when it goes on
	explains map[string]bool      // tests and packages with a failure inside, which explains theirs
}

type timed struct {
	name string
	time.Duration
}

// A failure has the command that runs its test again, with the seed of its random numbers; "": none
// is known.
type failure struct{ name, output, repeat string }

// command returns the collector of one more go command, which has these arguments.
func (r *report) command(args ...string) *command {
	set, _ := variables(args)
	for i, one := range set {
		name, value, _ := strings.Cut(one, "=")
		if strings.Contains(value, " ") {
			value = "'" + value + "'"
		}
		set[i] = name + "=" + value + " "
	}
	return &command{
		r,
		slices.Contains(args, "-race"),
		strings.Join(set, ""),
		map[string]*strings.Builder{},
		map[string]time.Time{},
		map[string]bool{},
	}
}

// line takes one line of the output of go test -json, and returns whether it is about a failure.
func (c *command) line(line []byte, verbose bool) (failed bool) {
	var e event
	c.mu.Lock()
	defer c.mu.Unlock()
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(c.out, "%s", line)
		return false
	}
	if verbose {
		fmt.Fprint(c.out, e.Output)
	}
	switch e.Action {
	case "run", "cont":
		c.started[e.key()] = e.Time
	case "pause":
		delete(c.started, e.key())
	case "output":
		c.keep(e.key(), e.Output)
	case "build-output":
		c.keep(e.ImportPath, e.Output)
	case "build-fail":
		pkg, _, _ := strings.Cut(e.ImportPath, " ") // then the test binary that it is compiled for
		c.fail(e.ImportPath+" does not build", c.taken(e.ImportPath), "go vet "+pkg)
		return true
	case "pass", "skip", "fail":
		c.ends(e)
	}
	return e.Action == "fail"
}

func (c *command) keep(key, output string) {
	for _, mark := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME"} {
		if strings.HasPrefix(output, mark) {
			return
		}
	}
	if c.outputs[key] == nil {
		c.outputs[key] = &strings.Builder{}
	}
	c.outputs[key].WriteString(output)
}

// taken returns the output kept for a key, and forgets it.
func (c *command) taken(key string) string {
	output := c.outputs[key]
	delete(c.outputs, key)
	if output == nil {
		return ""
	}
	return output.String()
}

// ends notes the end of a test or a package.
func (c *command) ends(e event) {
	output := c.taken(e.key())
	switch {
	case e.Test == "":
		c.endsPackage(e, output)
	case e.Action == "fail":
		c.explains[e.parent()] = true
		if !c.explains[e.key()] || strings.Count(output, "\n") > 1 { // more than its result
			c.fail(e.name(), output, c.repeat(e, output, e.Test))
		}
	case strings.Contains(output, dataRace): // of a test that ran at the same time, which fails
		c.fail(e.name()+" passed, but in its output is", output, c.repeat(e, output, e.Test))
	case e.Action == "skip":
		c.skipped = append(c.skipped, e.name())
	}
	if e.Test != "" && !strings.Contains(e.Test, "/") {
		c.took = append(c.took, timed{e.name(), e.Time.Sub(c.started[e.key()])})
		if e.Action == "pass" {
			c.passed++
		}
	}
	delete(c.started, e.key())
}

func (c *command) endsPackage(e event, output string) {
	switch {
	case e.Action == "skip": // a package without tests
	case e.Action == "pass":
		c.packages++
		fmt.Fprintf(c.out, "ok   %6.1fs  %s\n", e.Elapsed, e.Package)
	case e.FailedBuild == "":
		// Tests that have not ended are those that ran when the binary ended: a timeout, a panic,
		// os.Exit.
		for _, key := range slices.Sorted(maps.Keys(c.outputs)) {
			if strings.HasPrefix(key, e.key()) {
				output += c.taken(key)
			}
		}
		name, ran := e.name(), c.running(e)
		if len(ran) > 0 {
			name += " while " + strings.Join(ran, ", ") + " ran"
		}
		fmt.Fprintf(c.out, "FAIL %6.1fs  %s\n", e.Elapsed, e.Package)
		if !c.explains[e.key()] || strings.Contains(output, dataRace) || strings.Contains(output, "panic:") {
			c.fail(name, output, c.repeat(e, output, ran...))
		}
	}
}

// running returns the tests of a package that run.
func (c *command) running(e event) (tests []string) {
	for key := range c.started {
		if test, of := strings.CutPrefix(key, e.key()); of && !strings.Contains(test, "/") {
			tests = append(tests, test)
		}
	}
	slices.Sort(tests)
	return tests
}

// seeded matches what tests with random numbers print of a failure; those of rapid take the seed as
// a flag.
var seeded = regexp.MustCompile(`-rapid\.seed=\d+|\bseed \d+`)

// repeat returns the command that runs tests of a package again, or all of them if none is given.
func (c *command) repeat(e event, output string, tests ...string) string {
	words := []string{c.set + "go test -count=1"}
	if size := proof.Setting(); size != "" {
		words[0] = size + " " + words[0]
	}
	if c.race {
		words = append(words, "-race")
	}
	if len(tests) > 0 {
		pattern := make([]string, len(tests))
		for i, test := range tests {
			pattern[i] = "^" + strings.ReplaceAll(regexp.QuoteMeta(test), "/", "$/^") + "$"
		}
		words = append(words, "-run '"+strings.Join(pattern, "|")+"'")
	}
	words = append(words, e.Package)
	if seed := seeded.FindString(output); strings.HasPrefix(seed, "-") {
		words = append(words, seed)
	} else if seed != "" {
		words = append(words, "# "+seed)
	}
	return strings.Join(words, " ")
}

func (r *report) fail(name, output, repeat string) {
	r.failed = append(r.failed, failure{name, output, repeat})
	fmt.Fprintf(r.out, "\nFAILED: %s\n%s\n", name, output)
}

// broke notes that a go command failed without telling of a failure, such as one with a wrong flag.
func (r *report) broke(command, output string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, failure{command, output, command})
}

// end prints the end of the report and returns whether all is well.
func (r *report) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortFunc(r.took, func(a, b timed) int { return cmp.Compare(b.Duration, a.Duration) })
	fmt.Fprint(r.out, "\nThe slowest tests:\n")
	for _, t := range r.took[:min(slowest, len(r.took))] {
		fmt.Fprintf(r.out, "%6.1fs  %s\n", t.Seconds(), t.name)
	}
	if len(r.skipped) > 0 && !r.skips {
		r.failed = append(r.failed, failure{name: "no test may skip", output: strings.Join(r.skipped, "\n") + "\n"})
	}
	fmt.Fprintf(r.out, "\n%d tests passed, %d failed, %d skipped; %d packages passed\n",
		r.passed, len(r.failed), len(r.skipped), r.packages)
	for _, f := range r.failed {
		fmt.Fprintf(r.out, "\nFAILED: %s\n%s", f.name, shortened(f.output))
	}
	if again := r.again(); len(again) > 0 {
		fmt.Fprintf(r.out, "\nTo run what failed again:\n%s\n", strings.Join(again, "\n"))
	}
	return len(r.failed) == 0
}

// again returns the commands for the last lines of the report.
func (r *report) again() (commands []string) {
	for _, f := range r.failed {
		if f.repeat != "" && !slices.Contains(commands, f.repeat) {
			commands = append(commands, f.repeat)
		}
	}
	if len(commands) > repeats {
		left := fmt.Sprintf("# and %d more, which stand above as FAILED", len(commands)-repeats+1)
		commands = append(commands[:repeats-1], left)
	}
	return commands
}

// shortened leaves out the middle of a long text.
func shortened(text string) string {
	lines := strings.SplitAfter(text, "\n")
	if len(lines) <= mostLines {
		return text
	}
	left := len(lines) - mostLines
	middle := fmt.Sprintf("... %d lines, which stand above ...\n", left)
	return strings.Join(slices.Concat(lines[:mostLines/2], []string{middle}, lines[mostLines/2+left:]), "")
}
