package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkout makes a workspace of two modules and changes to its folder.
func checkout(t *testing.T, nested string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.work":       "go 1.25.0\n\nuse (\n\t.\n\t./nested\n)\n\nreplace " + root + " v0.1.0 => ./\n",
		"go.mod":        "module " + root + "\n\ngo 1.25.0\n\nrequire example.com/other v0.1.0\n",
		"nested/go.mod": "module " + root + "/nested\n\ngo 1.25.0\n\n" + nested,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSetChangesOurVersionsOnly(t *testing.T) {
	checkout(t, "require "+root+" v0.1.0 // the root\n")
	for _, wrong := range []string{"0.2.0", "v0.2", "new"} {
		if err := run([]string{"set", wrong}); err == nil {
			t.Errorf("%s was set", wrong)
		}
	}
	if err := run([]string{"set", "v0.2.0-rc.1"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"go.work":       "replace " + root + " v0.2.0-rc.1 => ./\n",
		"go.mod":        "require example.com/other v0.1.0\n",
		"nested/go.mod": "require " + root + " v0.2.0-rc.1 // the root\n",
	} {
		if text, err := os.ReadFile(name); err != nil || !strings.HasSuffix(string(text), want) {
			t.Errorf("%s: %s%v", name, text, err)
		}
	}
}

func TestWhatIsNotForUsersIsRefused(t *testing.T) {
	for nested, want := range map[string]string{
		"require " + root + " v0.1.0\n":                                                   "",
		"require " + root + " v0.0.9\n":                                                   "not v0.1.0",
		"require " + root + " v0.1.0\n\nreplace " + root + " => ../\n":                    "replaces",
		"require example.com/x v1.0.0\n\nreplace example.com/x => example.com/y v1.0.0\n": "replaces",
	} {
		checkout(t, nested)
		work, err := readWork()
		if err != nil {
			t.Fatal(err)
		}
		err = work.check()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", nested, err, want)
		}
	}
}
