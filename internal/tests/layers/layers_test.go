// Package layers tests which packages of the library import each other, and which files the root
// package has.
package layers

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers are the packages below the root package, the lowest first: each imports only packages of
// this module that stand before it. Those that only tests and tools use are not among them.
var layers = []string{
	"lua", "internal/span", "internal/serverinfo", "internal/record", "internal/keys", "internal/localwindow",
	"internal/fairshare", "internal/denycache", "internal/lease", "internal/breaker", "internal/script",
	"internal/protocol",
	"internal/fallback", "internal/checks", "internal/schedule",
	"internal/exchange/pipeline", "internal/exchange", "internal/limiter", "internal/workers", "internal/dispatch",
}

func TestLayersImportDownwards(t *testing.T) {
	const module = "github.com/rratelimiter/rratelimiter/"
	out := list(t, "{{.ImportPath}} {{join .Imports \" \"}}", "./...")
	seen := 0
	for line := range strings.Lines(out) {
		imports := strings.Fields(line)
		name := strings.TrimPrefix(imports[0], module)
		at := slices.Index(layers, name)
		if imports[0]+"/" == module {
			name, at = "the root package", len(layers)
		}
		if at < 0 {
			continue
		}
		seen++
		for _, path := range imports[1:] {
			below, ours := strings.CutPrefix(path, module)
			if path+"/" != module && !ours {
				continue
			}
			if i := slices.Index(layers, below); i < 0 || i >= at {
				t.Errorf("%s imports %s, which is not below it", name, path)
			}
		}
	}
	if seen != 1+len(layers) {
		t.Errorf("%d packages were found, not %d", seen, 1+len(layers))
	}
}

// The root package has only its examples: its tests stand in internal/tests.
func TestTestsAreBlackBox(t *testing.T) {
	if out := list(t, "{{.TestGoFiles}} {{.XTestGoFiles}}", "."); out != "[] [example_test.go]\n" {
		t.Errorf("the root package has the test files %s", out)
	}
}

// list runs go list in the root of the repository.
func list(t *testing.T, format, packages string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", format, packages)
	cmd.Dir = "../../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
