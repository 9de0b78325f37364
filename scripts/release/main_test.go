package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
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
		write(t, name, text)
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

const pseudo = "v0.0.0-20260102030405-0123456789ab"

// serve makes a module proxy, and Go use it. Each release of a module needs a Go version.
func serve(t *testing.T, modules map[string]map[string]string) {
	t.Helper()
	proxy := t.TempDir()
	for path, releases := range modules {
		list := ""
		for v, goes := range releases {
			write(t, filepath.Join(proxy, path, "@v", v+".info"), `{"Version": "`+v+`"}`)
			write(t, filepath.Join(proxy, path, "@v", v+".mod"), "module "+path+"\n\ngo "+goes+"\n")
			if v != pseudo {
				list += v + "\n"
			}
		}
		write(t, filepath.Join(proxy, path, "@v", "list"), list)
		write(t, filepath.Join(proxy, path, "@latest"), `{"Version": "`+pseudo+`"}`)
	}
	t.Setenv("GOPROXY", "file://"+filepath.ToSlash(proxy))
	t.Setenv("GOSUMDB", "off")
	t.Setenv("GOFLAGS", "-modcacherw -mod=mod") // a go.mod of a test has no go.sum
	t.Setenv("GOMODCACHE", t.TempDir())
}

// A direct dependency must be up to date, and so must an indirect one of golang.org/x that has
// releases.
func TestWhichDependenciesAreChecked(t *testing.T) {
	two := map[string]string{"v0.1.0": "1.20", "v0.2.0": "1.20", "v0.3.0": "1.26.0"}
	serve(t, map[string]map[string]string{
		"example.com/other": {"v0.1.0": "1.20"}, "example.com/new": two,
		"golang.org/x/new": two, "golang.org/x/exp": {pseudo: "1.20"},
	})
	for nested, want := range map[string]string{
		"require example.com/new v0.1.0\n":                                          "1 can be updated",
		"require example.com/new v0.1.0 // indirect\n":                              "",
		"require golang.org/x/new v0.1.0 // indirect\n":                             "1 can be updated",
		"require golang.org/x/new v0.2.0 // indirect\n":                             "", // v0.3.0 needs a later Go
		"require golang.org/x/exp v0.0.0-20250102030405-0123456789ab // indirect\n": "",
		"require golang.org/x/exp v0.0.0-20250102030405-0123456789ab\n":             "1 can be updated",
	} {
		checkout(t, nested)
		err := run([]string{"outdated"})
		if (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, expected %q", nested, err, want)
		}
	}
}

// A dependency can be updated to its latest release that needs no later Go.
func TestLaterReleases(t *testing.T) {
	t.Chdir(t.TempDir()) // no go.mod is there
	serve(t, map[string]map[string]string{
		"example.com/new":    {"v1.0.0": "1.20", "v1.1.0": "1.25.0", "v1.2.0": "1.26.0", "v1.3.0-rc.1": "1.20"},
		"example.com/pseudo": {pseudo: "1.26.0"},
	})
	for _, c := range []struct {
		path, version, goes, text string
		update                    bool
	}{
		{"example.com/new", "v1.0.0", "1.25.0", "update to v1.1.0", true},
		{"example.com/new", "v1.1.0", "1.25.0", "v1.2.0 needs Go 1.26.0", false},
		{"example.com/new", "v1.1.0", "", "update to v1.2.0", true},
		{"example.com/new", "v1.2.0", "1.26.0", "", false},
		{"example.com/new", "v1.9.0", "1.26.0", "", false},
		{"example.com/pseudo", "v0.0.0-20250102030405-0123456789ab", "1.25.0", pseudo + " needs Go 1.26.0", false},
		{"example.com/pseudo", pseudo, "1.26.0", "", false},
	} {
		text, update, err := listings{}.later(module.Version{Path: c.path, Version: c.version}, c.goes)
		if err != nil || text != c.text || update != c.update {
			t.Errorf("%s@%s for Go %q: %q, %v, %v", c.path, c.version, c.goes, text, update, err)
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
