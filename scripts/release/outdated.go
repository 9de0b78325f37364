package main

import (
	"encoding/json"
	"fmt"
	"go/version"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// oldest is a module of which the root requires the oldest version that works, because users must
// have at least that version.
const oldest = "github.com/redis/go-redis/v9"

// checked reports whether a module must keep up with a dependency: with each direct one, and with
// the releases of golang.org/x, because the fixes of vulnerabilities in the Go team's modules
// should reach users whose go.mod has no later version.
func checked(r *modfile.Require) bool {
	return !r.Indirect || strings.HasPrefix(r.Mod.Path, "golang.org/x/") && !module.IsPseudoVersion(r.Mod.Version)
}

// outdated prints which dependencies of each module are behind their newest release, of those that
// are checked, and which of the tools. It returns an error if one can be updated. It cannot if each
// later release needs a later Go than the module.
func (w *workspace) outdated(tools []string) error {
	proxy := listings{}
	behind := 0
	look := func(where, goes string, has module.Version) error {
		text, update, err := proxy.later(has, goes)
		if text != "" {
			fmt.Printf("%s: %s: %s\n", where, has, text)
		}
		if update {
			behind++
		}
		return err
	}
	for _, m := range w.modules {
		for _, r := range m.Require {
			if !checked(r) || ours(r.Mod.Path) || m.Module.Mod.Path == root && r.Mod.Path == oldest {
				continue
			}
			if err := look(m.Syntax.Name, m.Go.Version, r.Mod); err != nil {
				return err
			}
		}
	}
	for _, tool := range tools {
		path, version, _ := strings.Cut(tool, "@")
		if err := look("tools", "", module.Version{Path: path, Version: version}); err != nil {
			return err
		}
	}
	if behind > 0 {
		return fmt.Errorf("%d can be updated", behind)
	}
	return nil
}

// A listing is what go list prints about a module.
type listing struct {
	Version  string
	Versions []string
	GoMod    string // path of the file
}

// listings holds the results of go list, by query.
type listings map[string]listing

// later describes the releases that are later than has; "" if there are none. update reports
// whether one of them works with the Go version goes; if goes is "", all of them do.
func (l listings) later(has module.Version, goes string) (text string, update bool, err error) {
	newest, err := l.list(has.Path+"@latest", "-versions")
	if err != nil {
		return "", false, err
	}
	for _, v := range slices.Backward(append([]string{newest.Version}, newest.Versions...)) {
		if semver.Compare(v, has.Version) <= 0 || semver.Prerelease(v) != "" && !module.IsPseudoVersion(v) {
			continue
		}
		needs, err := l.goes(has.Path + "@" + v)
		if err != nil {
			return "", false, err
		}
		if goes == "" || needs == "" || version.Compare("go"+needs, "go"+goes) <= 0 {
			return "update to " + v, true, nil
		}
		if text == "" {
			text = fmt.Sprintf("%s needs Go %s", v, needs)
		}
	}
	return text, false, nil
}

// goes returns the Go version that a module version needs, "" if its go.mod has none.
func (l listings) goes(query string) (string, error) {
	listed, err := l.list(query)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(listed.GoMod)
	if err != nil {
		return "", err
	}
	file, err := modfile.ParseLax(listed.GoMod, text, nil)
	if err != nil || file.Go == nil {
		return "", err
	}
	return file.Go.Version, nil
}

// list asks the module proxy by go list.
func (l listings) list(query string, flags ...string) (found listing, err error) {
	if found, known := l[query]; known {
		return found, nil
	}
	list := exec.Command("go", append(append([]string{"list", "-m", "-json"}, flags...), query)...)
	list.Env = append(os.Environ(), "GOWORK=off")
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		return found, fmt.Errorf("go list %s: %w", query, err)
	}
	err = json.Unmarshal(text, &found)
	l[query] = found
	return found, err
}
