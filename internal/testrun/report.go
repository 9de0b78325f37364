package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	slowest   = 10
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

// A report collects the events of all go commands. Its methods are safe for concurrent use.
type report struct {
	out   io.Writer
	skips bool // are no failure

	mu       sync.Mutex // guards the rest, and the order of writes to out
	outputs  map[string]*strings.Builder
	started  map[string]time.Time // tests that run; a parallel one from when it goes on
	explains map[string]bool      // tests and packages with a failure inside, which explains theirs
	took     []timed
	failed   []failure
	skipped  []string
	packages int
}

type timed struct {
	name string
	time.Duration
}

type failure struct{ name, output string }

func newReport(out io.Writer, skips bool) *report {
	return &report{
		out: out, skips: skips,
		outputs: map[string]*strings.Builder{}, started: map[string]time.Time{}, explains: map[string]bool{},
	}
}

// line takes one line of the output of go test -json, and returns whether it is about a failure.
func (r *report) line(line []byte, verbose bool) (failed bool) {
	var e event
	r.mu.Lock()
	defer r.mu.Unlock()
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(r.out, "%s", line)
		return false
	}
	if verbose {
		fmt.Fprint(r.out, e.Output)
	}
	switch e.Action {
	case "run", "cont":
		r.started[e.key()] = e.Time
	case "output":
		r.keep(e.key(), e.Output)
	case "build-output":
		r.keep(e.ImportPath, e.Output)
	case "build-fail":
		r.fail(e.ImportPath+" does not build", r.taken(e.ImportPath))
		return true
	case "pass", "skip", "fail":
		r.ends(e)
	}
	return e.Action == "fail"
}

func (r *report) keep(key, output string) {
	for _, mark := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME"} {
		if strings.HasPrefix(output, mark) {
			return
		}
	}
	if r.outputs[key] == nil {
		r.outputs[key] = &strings.Builder{}
	}
	r.outputs[key].WriteString(output)
}

// taken returns the output kept for a key, and forgets it.
func (r *report) taken(key string) string {
	output := r.outputs[key]
	delete(r.outputs, key)
	if output == nil {
		return ""
	}
	return output.String()
}

// ends notes the end of a test or a package.
func (r *report) ends(e event) {
	output := r.taken(e.key())
	switch {
	case e.Test == "":
		r.endsPackage(e, output)
	case e.Action == "fail":
		r.explains[e.parent()] = true
		if !r.explains[e.key()] || strings.Count(output, "\n") > 1 { // more than its result
			r.fail(e.name(), output)
		}
	case strings.Contains(output, dataRace): // of a test that ran at the same time, which fails
		r.fail(e.name()+" passed, but in its output is", output)
	case e.Action == "skip":
		r.skipped = append(r.skipped, e.name())
	}
	if e.Test != "" && !strings.Contains(e.Test, "/") {
		r.took = append(r.took, timed{e.name(), e.Time.Sub(r.started[e.key()])})
	}
	delete(r.started, e.key())
}

func (r *report) endsPackage(e event, output string) {
	switch {
	case e.Action == "skip": // a package without tests
	case e.Action == "pass":
		r.packages++
		fmt.Fprintf(r.out, "ok   %6.1fs  %s\n", e.Elapsed, e.Package)
	case e.FailedBuild == "":
		// Tests that have not ended are those that ran when the binary ended: a timeout, a panic, os.Exit.
		for _, key := range slices.Sorted(maps.Keys(r.outputs)) {
			if strings.HasPrefix(key, e.key()) {
				output += r.taken(key)
			}
		}
		fmt.Fprintf(r.out, "FAIL %6.1fs  %s\n", e.Elapsed, e.Package)
		if !r.explains[e.key()] || strings.Contains(output, dataRace) || strings.Contains(output, "panic:") {
			r.fail(e.name(), output)
		}
	}
}

func (r *report) fail(name, output string) {
	r.failed = append(r.failed, failure{name, output})
	fmt.Fprintf(r.out, "\nFAILED: %s\n%s\n", name, output)
}

// broke notes that a go command failed without telling of a failure, such as one with a wrong flag.
func (r *report) broke(command, output string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = append(r.failed, failure{command, output})
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
		r.failed = append(r.failed, failure{"no test may skip", strings.Join(r.skipped, "\n") + "\n"})
	}
	fmt.Fprintf(r.out, "\n%d tests, %d packages passed, %d tests skipped, %d failures\n",
		len(r.took), r.packages, len(r.skipped), len(r.failed))
	for _, f := range r.failed {
		fmt.Fprintf(r.out, "\nFAILED: %s\n%s", f.name, shortened(f.output))
	}
	return len(r.failed) == 0
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
