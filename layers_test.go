package rratelimiter_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// layers are the packages below this one, the lowest first: each imports only packages of this module that stand before
// it. Those that only tests and tools use are not among them.
var layers = []string{
	"lua", "internal/span", "internal/serverinfo", "internal/record", "internal/keys", "internal/localwindow",
	"internal/fairshare", "internal/denycache", "internal/lease", "internal/breaker", "internal/script", "internal/protocol",
	"internal/localgrant", "internal/schedule",
	"internal/exchange/pipeline", "internal/exchange", "internal/dispatch",
}

func TestLayersImportDownwards(t *testing.T) {
	const module = "github.com/rratelimiter/rratelimiter/"
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
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

// The tests of this package see what its users see; export_test.go has the exceptions.
func TestTestsAreBlackBox(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.TestGoFiles}}", ".").Output()
	if err != nil || string(out) != "[export_test.go]\n" {
		t.Errorf("in package rratelimiter are %s, %v", out, err)
	}
}
