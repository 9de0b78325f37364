// Command release manages the next version of this checkout, which all its modules have. It is the
// version of the root module that go.work replaces. The command runs in the root of the checkout.
//
//	go run ./scripts/release                prints the version
//	go run ./scripts/release set v0.2.0     sets another, in go.work and in each go.mod
//	go run ./scripts/release tags           prints the tags of a release at that version, one for each module
//	go run ./scripts/release proxy DIR      makes DIR a module proxy (GOPROXY=file://DIR) that has all modules
//	                                        at that version
//	go run ./scripts/release outdated TOOL  prints the dependencies that are behind their newest release (the
//	                                        direct ones, and the indirect ones of golang.org/x), and the tools,
//	                                        given as MODULE@VERSION; fails if one can be updated
//
// The proxy has the files that git tracks, in the state of the checkout. The command fails if users
// could not use a go.mod: if it replaces modules, or requires another version of a module of this
// checkout.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
	"golang.org/x/mod/zip"
)

const root = "github.com/rratelimiter/rratelimiter"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	work, err := readWork()
	if err != nil {
		return err
	}
	switch {
	case len(args) == 0:
		fmt.Println(work.version)
		return nil
	case len(args) == 1 && args[0] == "tags":
		for _, m := range work.modules {
			fmt.Println(strings.TrimPrefix(m.Module.Mod.Path+"/"+work.version, root+"/"))
		}
		return nil
	case len(args) == 2 && args[0] == "set":
		return work.set(args[1])
	case len(args) == 2 && args[0] == "proxy":
		return work.proxy(args[1])
	case args[0] == "outdated":
		return work.outdated(args[1:])
	}
	return errors.New("usage: release [set VERSION | tags | proxy DIR | outdated TOOL...]")
}

// A workspace has the contents of go.work: the next version, and the modules.
type workspace struct {
	version string
	modules []*modfile.File // named by their files: FOLDER/go.mod
}

func readWork() (*workspace, error) {
	text, err := os.ReadFile("go.work")
	if err != nil {
		return nil, err
	}
	file, err := modfile.ParseWork("go.work", text, nil)
	if err != nil {
		return nil, err
	}
	w := &workspace{}
	for _, r := range file.Replace {
		if r.Old.Path == root {
			w.version = r.Old.Version
		}
	}
	if w.version == "" {
		return nil, fmt.Errorf("go.work does not replace a version of %s", root)
	}
	for _, use := range file.Use {
		name := filepath.Join(use.Path, "go.mod")
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		m, err := modfile.Parse(name, text, nil)
		if err != nil {
			return nil, err
		}
		w.modules = append(w.modules, m)
	}
	return w, nil
}

// ours reports whether a module belongs to this checkout.
func ours(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// set replaces the version in go.work and in each go.mod.
func (w *workspace) set(version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is no version such as v0.2.0", version)
	}
	names := []string{"go.work"}
	for _, m := range w.modules {
		names = append(names, m.Syntax.Name)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, needs.ReplaceAll(text, []byte("${1}"+version)), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// needs matches the version of a module of this checkout after its path.
var needs = regexp.MustCompile(`(\b` + regexp.QuoteMeta(root) + `(?:/\S+)? )v\S+`)

// check returns an error for each go.mod that is unusable for users.
func (w *workspace) check() error {
	var problems []error
	for _, m := range w.modules {
		for _, r := range m.Replace {
			problems = append(problems,
				fmt.Errorf("%s replaces %s: go install would refuse it", m.Syntax.Name, r.Old.Path))
		}
		for _, r := range m.Require {
			if ours(r.Mod.Path) && r.Mod.Version != w.version {
				problems = append(problems, fmt.Errorf("%s needs %s, not %s", m.Syntax.Name, r.Mod, w.version))
			}
		}
	}
	return errors.Join(problems...)
}

// proxy writes the files of a module proxy into a folder: golang.org/ref/mod#goproxy-protocol.
func (w *workspace) proxy(folder string) error {
	if err := w.check(); err != nil {
		return err
	}
	tree, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := export(tree); err != nil {
		return err
	}
	for _, m := range w.modules {
		version := module.Version{Path: m.Module.Mod.Path, Version: w.version}
		if err := publish(folder, filepath.Join(tree, filepath.Dir(m.Syntax.Name)), version); err != nil {
			return fmt.Errorf("%s: %w", version, err)
		}
	}
	return nil
}

// export copies the files that git tracks.
func export(to string) error {
	// CI's checkout may belong to another user
	git := exec.Command("git", "-c", "safe.directory=*", "ls-files", "-z")
	git.Stderr = os.Stderr
	listed, err := git.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range bytes.SplitSeq(bytes.TrimSuffix(listed, []byte{0}), []byte{0}) {
		from := string(name)
		text, err := os.ReadFile(from)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed in the checkout, but not committed yet
		}
		if err != nil {
			return err
		}
		copied := filepath.Join(to, from)
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(copied, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// publish adds the module in a folder to a proxy folder.
func publish(proxy, folder string, m module.Version) error {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	versions := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{m.Version, time.Now().UTC()})
	if err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"list": []byte(m.Version + "\n"), m.Version + ".info": info, m.Version + ".mod": mod,
	} {
		if err := os.WriteFile(filepath.Join(versions, name), text, 0o644); err != nil {
			return err
		}
	}
	file, err := os.Create(filepath.Join(versions, m.Version+".zip"))
	if err != nil {
		return err
	}
	return errors.Join(zip.CreateFromDir(file, m, folder), file.Close())
}
