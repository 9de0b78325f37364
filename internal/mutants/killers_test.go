package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestKillersAreKept(t *testing.T) {
	t.Chdir(t.TempDir())
	if known, err := readKillers(); len(known) > 0 || err != nil {
		t.Errorf("without a file: %v, %v", known, err)
	}
	if err := os.MkdirAll(filepath.Dir(killersFile), 0o700); err != nil {
		t.Fatal(err)
	}
	listed := killers{mutations[0].why: {"a/package", "TestOne"}}
	known := maps.Clone(listed)
	known["it is no longer listed"] = killer{"a/package", "TestTwo"}
	if err := known.write(); err != nil {
		t.Fatal(err)
	}
	if got, err := readKillers(); !maps.Equal(got, listed) || err != nil {
		t.Errorf("%v, %v, want %v", got, err, listed)
	}
}

// A stage that times out shows that a test hangs only if one has run for long.
func TestLongest(t *testing.T) {
	for text, want := range map[string]string{
		"panic: test timed out after 4m0s\n\trunning tests:\n\t\tTestSlow (1m59s)\n":                                                    "",
		"panic: test timed out after 4m0s\n\trunning tests:\n\t\tTestHangs (4m0s)\n\t\tTestHangs/inner (3m59.5s)\n\t\tTestOther (3s)\n": "TestHangs",
		"ok  \ta/package\t45s": "",
	} {
		if got := longest(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
