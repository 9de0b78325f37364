package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestChangedSince(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, key := range []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"} {
		t.Setenv(key, "nobody")
	}
	do := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	same := mutation{file: "lua/same.lua", why: "an old one"}
	added := mutation{file: "lua/same.lua", why: "a new one"}
	edited := mutation{file: "lua/edited.lua", why: "an old one"}
	check := func(when, revision string, wanted ...bool) {
		t.Helper()
		concerns, err := changedSince(revision)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range []mutation{same, added, edited} {
			if got := concerns(m); got != wanted[i] {
				t.Errorf("%s: %v for %+v", when, got, m)
			}
		}
	}

	do("init", "-q")
	for _, file := range []string{same.file, edited.file} {
		write(file, "text")
	}
	write(listed, `"an old one"`)
	do("add", ".")
	do("commit", "-q", "-m", "first")
	check("before the first release", "1", true, true, true)
	do("tag", "v0.1.0")
	check("at a release", "1", false, false, false)
	write(edited.file, "other text")
	check("a change", "1", false, false, true)
	do("commit", "-q", "-a", "-m", "second")
	check("a commit", "1", false, false, true)
	check("a revision", "HEAD", false, false, false)
	write(listed, `"an old one" "a new one"`)
	check("a new mutation", "HEAD", false, true, false)
	if _, err := changedSince("nosuch"); err == nil {
		t.Error("no error for a revision that does not exist")
	}
}
