package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// suite is a package with a test of each outcome.
const suite = `package suite

import (
	"fmt"
	"testing"
)

func TestGood(t *testing.T) { fmt.Println("said by a good test") }

func TestBad(t *testing.T) {
	t.Run("inner", func(t *testing.T) { t.Error("the inner reason") })
	t.Run("other", func(t *testing.T) {})
}

func TestSkipped(t *testing.T) { t.Skip("some excuse") }
`

// reportOn runs go test on packages with the given code, side by side.
func reportOn(t *testing.T, skips bool, code ...string) (string, bool) {
	t.Helper()
	var out strings.Builder
	r := &report{out: &out, skips: skips}
	for _, text := range code {
		dir := t.TempDir()
		for name, content := range map[string]string{"go.mod": "module example.com/suite\n", "suite_test.go": text} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		run([]string{"test", "-C", dir, "-json", "-timeout=1s", "."}, r)
	}
	ok := r.end()
	return out.String(), ok
}

func TestFailuresStandAtTheEnd(t *testing.T) {
	t.Setenv("GOWORK", "off")
	out, ok := reportOn(t, false, suite)
	if ok {
		t.Error("that is a success")
	}
	_, end, _ := strings.Cut(out, "The slowest tests:")
	for _, wanted := range []string{
		"s  example.com/suite TestGood",
		"FAILED: example.com/suite TestBad/inner\n",
		"the inner reason",
		"no test may skip\nexample.com/suite TestSkipped",
		"1 tests passed, 2 failed, 1 skipped; 0 packages passed",
	} {
		if strings.Count(end, wanted) != 1 {
			t.Errorf("%q does not stand once at the end of\n%s", wanted, out)
		}
	}
	if strings.Count(out, "the inner reason") != 2 || strings.Contains(out, "said by a good test") {
		t.Errorf("the failure and nothing else is also told at once:\n%s", out)
	}
}

// TestTheLastLinesRunFailedTestsAgain reads the commands at the end of a report, with the seeds
// that the failures name.
func TestTheLastLinesRunFailedTestsAgain(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("RRATELIMITER_PROOF", "")
	draws := strings.NewReplacer(
		`t.Error("the inner reason")`, `t.Error("draw 1, or -rapid.seed=77)")`,
		`t.Run("other", func(t *testing.T) {})`, `t.Run("a sum: 1+1", func(t *testing.T) { t.Error("seed 5: no") })`,
	).Replace(suite)
	out, _ := reportOn(t, true, draws)
	want := `To run what failed again:
go test -count=1 -run '^TestBad$/^inner$' example.com/suite -rapid.seed=77
go test -count=1 -run '^TestBad$/^a_sum:_1\+1$' example.com/suite # seed 5
`
	if !strings.HasSuffix(out, want) {
		t.Errorf("the report does not end with\n%s:\n%s", want, out)
	}
	many := `for _, i := range "abcdefghijkl" { t.Run(string(i), func(t *testing.T) { t.Error() }) }`
	out, _ = reportOn(t, true, strings.Replace(suite, `fmt.Println("said by a good test")`, many+"; fmt.Print()", 1))
	_, end, _ := strings.Cut(out, "To run what failed again:\n")
	if lines := strings.Split(end, "\n"); len(lines) != repeats+1 ||
		lines[repeats-1] != "# and 7 more, which stand above as FAILED" {
		t.Errorf("of 13 failures, the report ends with\n%s", end)
	}
}

// A panic in a goroutine of its own, a timeout and os.Exit end the binary without the result of a
// test. The report names the tests that had begun, and not those that wait to run in parallel.
func TestTheLastLinesNameTheTestsThatRan(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("RRATELIMITER_PROOF", "")
	code := strings.NewReplacer(
		`t.Error("the inner reason")`, `go panic("all is lost"); select {}`,
		`fmt.Println("said by a good test")`, `t.Parallel(); fmt.Println()`,
	).Replace(suite)
	out, _ := reportOn(t, true, code)
	const want = "To run what failed again:\ngo test -count=1 -run '^TestBad$' example.com/suite\n"
	if !strings.HasSuffix(out, want) || !strings.Contains(out, "FAILED: example.com/suite while TestBad ran\n") {
		t.Errorf("the report does not end with\n%s:\n%s", want, out)
	}
}

// The arguments can begin with variables, and can be those of another go command that prints the
// events of tests: the tests of a binary.
func TestABinaryWithVariables(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("RRATELIMITER_PROOF", "")
	dir := t.TempDir()
	code := strings.NewReplacer(
		`"fmt"`, `"fmt"; "os"; "path/filepath"`,
		`t.Error("the inner reason")`, `dir, _ := os.Getwd(); t.Error(os.Getenv("REASON"), "in", filepath.Base(dir))`,
	).Replace(suite)
	for name, content := range map[string]string{"go.mod": "module example.com/suite\n", "inside/suite_test.go": code} {
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "-C", dir, "test", "-c", "-o", "it", "./inside").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	var out strings.Builder
	r := &report{out: &out, skips: true}
	run([]string{
		"REASON=a long one", "-C", filepath.Join(dir, "inside"), "tool", "test2json", "-p", "example.com/suite/inside",
		filepath.Join(dir, "it"), "-test.v=test2json",
	}, r)
	r.end()
	const want = "REASON='a long one' go test -count=1 -run '^TestBad$/^inner$' example.com/suite/inside\n"
	if !strings.HasSuffix(out.String(), want) || !strings.Contains(out.String(), "a long one in inside\n") {
		t.Errorf("no %s at the end of\n%s", want, out.String())
	}
}

func TestOutcomes(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	t.Setenv("GOWORK", "off")
	for name, c := range map[string]struct {
		code, wanted string
	}{
		"passes":         {strings.Replace(suite, `t.Error("the inner reason")`, "", 1), "ok "},
		"does not build": {strings.Replace(suite, "t.Error", "t.Errr", 1), "t.Errr undefined"},
		"no syntax":      {"package suite\nfunc {", "expected 'IDENT'"},
		"panics": {
			strings.Replace(suite, `t.Error("the inner reason")`, `panic("all is lost")`, 1),
			"all is lost",
		},
		"hangs": {strings.Replace(suite, `t.Error("the inner reason")`, `select {}`, 1), "test timed out after 1s"},
		"ends":  {strings.Replace(suite, `t.Error("the inner reason")`, `os.Exit(3)`, 1) + "\n", "FAILED"},
	} {
		t.Run(name, func(t *testing.T) {
			code := c.code
			if name == "ends" {
				code = strings.Replace(code, `"fmt"`, `"fmt"; "os"`, 1)
			}
			out, ok := reportOn(t, true, code)
			if _, end, _ := strings.Cut(out, "The slowest tests:"); name != "passes" &&
				!strings.Contains(end, c.wanted) ||
				!strings.Contains(out, c.wanted) {
				t.Errorf("%q is not in\n%s", c.wanted, out)
			}
			if ok != (name == "passes") {
				t.Errorf("success is %v:\n%s", ok, out)
			}
		})
	}
}

// Two go commands run the same test, as with two releases of a dependency.
func TestOneTestInTwoCommands(t *testing.T) {
	var out strings.Builder
	r := &report{out: &out}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first, second := r.command(), r.command()
	for _, l := range []struct {
		of      *command
		at      time.Duration
		action  string
		printed string
	}{
		{first, 0, "run", ""},
		{first, time.Second, "output", "the first reason\n"},
		{second, 2 * time.Second, "run", ""},
		{second, 3 * time.Second, "pass", ""},
		{first, 7 * time.Second, "fail", ""},
	} {
		line, err := json.Marshal(
			event{Time: began.Add(l.at), Action: l.action, Package: "p", Test: "TestOnce", Output: l.printed},
		)
		if err != nil {
			t.Fatal(err)
		}
		l.of.line(line, false)
	}
	r.end()
	_, end, _ := strings.Cut(out.String(), "The slowest tests:")
	if want := "\n   7.0s  p TestOnce\n   1.0s  p TestOnce\n"; !strings.HasPrefix(end, want) ||
		!strings.Contains(end, "the first reason") {
		t.Errorf("want %q and the reason of the failure in\n%s", want, end)
	}
}

func TestGoThatFails(t *testing.T) {
	var out strings.Builder
	r := &report{out: &out}
	run([]string{"test", "-json", "-nosuchflag", "."}, r)
	if r.end() || !strings.Contains(out.String(), "nosuchflag") {
		t.Error(out.String())
	}
}

func TestSplit(t *testing.T) {
	for text, wanted := range map[string]string{
		"-race ./a":                 "[[-race ./a]]",
		"-race ./a word ./b word c": "[[-race ./a] [./b] [c]]",
	} {
		if got := fmt.Sprint(split(strings.Fields(text), "word")); got != wanted {
			t.Errorf("got %v, want %v", got, wanted)
		}
	}
}

func TestLongOutputIsShortened(t *testing.T) {
	long := strings.Repeat("line\n", 200) + "last\n"
	if short := shortened(long); strings.Count(short, "\n") > mostLines || !strings.HasSuffix(short, "last\n") ||
		!strings.Contains(short, "lines, which stand above") {
		t.Error(short)
	}
	if shortened("one\n") != "one\n" {
		t.Error("a short one is changed")
	}
}
