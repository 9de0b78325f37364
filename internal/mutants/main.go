// Command mutants runs the tests on mutants of the library: each has one small mutation of a script
// or of the core, and at least one test must fail. mutations.go lists the mutations.
//
// The command runs in the root of a checkout, which it does not change: the go command gets the
// mutated file by -overlay. A mutant is killed by the first test that fails or hangs. If no test of
// any stage kills a mutant, it is reported, and the command fails. Mutations that no test can
// detect have a reason in their field equal, and are skipped.
//
// The test that killed a mutant in an earlier run is tried first. killers.json has these tests, and
// -update writes it.
//
// With -changed the command tests only mutants of files that have changed: see changed.go.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// slow matches tests that take a second or more and seldom fail if all others pass.
const slow = "Million|ManyExpired|Granularity|Memory|Garbage|Broken|WrongTypes|Share|Starve|Hung|Hanging|Cluster|Odd|" +
	"Moved|Readme|NoWindow|OverOtherClients|Bounded|RedissonGetsPermits"

// stages returns the runs of go test on a mutant, the quick ones first. Each topic of
// internal/tests is a stage of its own, because -failfast skips only the other tests of the same
// package. No stage tests lua/: its golden files would kill any mutant of a script, and prove
// nothing.
func stages() ([][]string, error) {
	topics, err := filepath.Glob("internal/tests/*")
	if err != nil || len(topics) == 0 {
		return nil, fmt.Errorf("no tests in internal/tests: %v", err)
	}
	var quick, all [][]string
	for _, topic := range topics {
		quick = append(quick, []string{"-timeout", "4m", "-skip", slow, "./" + topic})
		all = append(all, []string{"-timeout", "8m", "./" + topic})
	}
	return slices.Concat(
		[][]string{
			{
				"-timeout", "4m", "./internal/schedule", "./internal/dispatch", "./internal/exchange/...",
				"./internal/smallscope",
			},
		},
		quick,
		all,
		[][]string{
			{"-timeout", "8m", ".", "./classic", "./snapshot", "./limittest"},
			{"-timeout", "8m", "./compat/differential"},
		},
	), nil
}

func main() {
	only := flag.String("run", "", "only mutations whose file or text matches this `pattern`")
	since := flag.String(
		"changed", "",
		"only mutations of files that changed since this `revision`, and new mutations; 1: since the last release",
	)
	update := flag.Bool("update", false, "write killers.json")
	list := flag.Bool("list", false, "list the mutations, and check that each still fits its file")
	flag.Parse()
	if err := run(*only, *since, *list, *update); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// atOnce is how many mutants are tested at a time: their tests mostly wait.
const atOnce = 2

func run(only, since string, list, update bool) error {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	concerns := func(mutation) bool { return true }
	if since != "" {
		if concerns, err = changedSince(since); err != nil {
			return err
		}
	}
	known, err := readKillers()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := report{killers: known, update: update}
	var stale error
	var running sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, m := range mutations {
		title := fmt.Sprintf("%2d %s: %s", i+1, m.file, m.why)
		if !pattern.MatchString(title) || !concerns(m) {
			continue
		}
		overlay, err := m.overlay(filepath.Join(dir, strconv.Itoa(i)))
		if list {
			fmt.Println(title)
		}
		stale = errors.Join(stale, err)
		if list || stale != nil {
			continue
		}
		slots <- struct{}{}
		before := r.killer(m)
		running.Go(func() {
			r.add(title, m, m.test(overlay, before))
			<-slots
		})
	}
	running.Wait()
	if list || stale != nil {
		return stale
	}
	fmt.Printf("\n%d killed, %d explained, %d survived\n", r.killed, r.explained, r.survived)
	if r.survived > 0 {
		r.err = errors.Join(r.err, fmt.Errorf("%d survived", r.survived))
	}
	return r.err
}

// A verdict is what the tests found of a mutant.
type verdict struct {
	by   killer
	how  string // the name of the killer for people; "": none
	took time.Duration
	err  error // the mutant could not be tested
}

// test tests a mutant, unless it is equal.
func (m mutation) test(overlay string, before killer) (v verdict) {
	if m.equal == "" {
		began := time.Now()
		v.by, v.how, v.err = m.kill(overlay, before)
		v.took = time.Since(began).Round(time.Second)
	}
	return v
}

// A report prints and counts the verdicts, and keeps the killers.
type report struct {
	mu                          sync.Mutex
	killers                     killers
	update                      bool // write them
	killed, explained, survived int
	err                         error
}

// killer returns the test that killed a mutant before.
func (r *report) killer(m mutation) killer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.killers[m.why]
}

func (r *report) add(title string, m mutation, v verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case v.err != nil:
		fmt.Printf("%s\n     not tested: %v\n", title, v.err)
		r.err = errors.Join(r.err, fmt.Errorf("%s: %w", title, v.err))
	case m.equal != "":
		r.explained++
		fmt.Printf("%s\n     lives, as it must: %s\n", title, m.equal)
	case v.how == "":
		r.survived++
		fmt.Printf("%s\n     SURVIVED, %v\n", title, v.took)
	default:
		r.killed++
		fmt.Printf("%s\n     killed by %s, %v\n", title, v.how, v.took)
		r.killers[m.why] = v.by
		if r.update { // at once, in case the run is interrupted
			r.err = errors.Join(r.err, r.killers.write())
		}
	}
}

// overlay writes the mutated file into a new directory, and the file for go test -overlay that
// names it.
func (m mutation) overlay(dir string) (string, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	right, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(right)
	if err != nil {
		return "", err
	}
	if found := strings.Count(string(text), m.old); found != 1 {
		return "", fmt.Errorf("%s: %q stands there %d times, not once", m.file, m.old, found)
	}
	broken, overlay := filepath.Join(dir, "broken"+filepath.Ext(m.file)), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(broken, []byte(strings.Replace(string(text), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {right: broken}})
	if err != nil {
		return "", err
	}
	return overlay, os.WriteFile(overlay, replace, 0o600)
}

var (
	failed  = regexp.MustCompile(`(?m)^( *)--- FAIL: (\S+)`)
	within  = regexp.MustCompile(`(?m)^FAIL\t(\S+)`)
	timeout = regexp.MustCompile(`panic: test timed out`)
	// a line of the list of running tests
	during = regexp.MustCompile(`(?m)^\s+(Test\S*) \(([0-9.hms]+)\)$`)
)

// hangs is the time after which a test hangs. If a stage times out without a test that has run so
// long, the machine is slow, and that proves nothing.
const hangs = 2 * time.Minute

// kill returns the test that killed a mutant, and its name for people; "" if all tests pass. The
// first to run are the one that killed it before, and those of the mutated package.
func (m mutation) kill(overlay string, before killer) (by killer, how string, err error) {
	todo, err := stages()
	if err != nil {
		return killer{}, "", err
	}
	if dir := filepath.Dir(m.file); strings.HasSuffix(m.file, ".go") && dir != "." {
		todo = slices.Insert(todo, 0, []string{"-timeout", "4m", "./" + dir})
	}
	if before.Test != "" {
		todo = slices.Insert(todo, 0, before.stage())
	}
	for _, s := range todo {
		cmd := exec.Command("go",
			append([]string{"test", "-vet=off", "-count=1", "-failfast", "-overlay", overlay}, s...)...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return killer{}, "", err
		}
		text := string(out)
		if err == nil {
			continue
		}
		if strings.Contains(text, "[build failed]") || strings.Contains(text, "[setup failed]") {
			return killer{}, "", fmt.Errorf("it does not build:\n%s", text)
		}
		if found := within.FindStringSubmatch(text); found != nil {
			by.Package = found[1]
		}
		how = firstFailed(text)
		by.Test, _, _ = strings.Cut(how, "/")
		if how != "" {
			return by, how, nil
		}
		if !timeout.MatchString(text) {
			return killer{}, "a panic: " + firstLine(text), nil
		}
		if by.Test = longest(text); by.Test != "" {
			how = by.Test + " (hung)"
			by.Test, _, _ = strings.Cut(by.Test, "/")
			return by, how, nil
		}
	}
	return killer{}, "", nil
}

// longest returns the test that hung when a stage timed out; "" if none did.
func longest(text string) (test string) {
	most := hangs
	for _, found := range during.FindAllStringSubmatch(text, -1) {
		if ran, err := time.ParseDuration(found[2]); err == nil && ran >= most {
			most, test = ran, found[1]
		}
	}
	return test
}

// firstFailed returns the name of the first test that failed, or of its innermost subtest.
func firstFailed(text string) (test string) {
	depth := -1
	for _, found := range failed.FindAllStringSubmatch(text, -1) {
		if len(found[1]) <= depth {
			break
		}
		depth, test = len(found[1]), found[2]
	}
	return test
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
