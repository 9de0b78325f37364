package guide

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

const goRedis = "github.com/redis/go-redis/v9"

// TestTheProgramOfTheReadmeRuns builds the program of the README in a module of its own, as a
// reader does, and runs it. Only the address of the server differs.
func TestTheProgramOfTheReadmeRuns(t *testing.T) {
	blocks := blocksOf(t, readme, "go")
	if len(blocks) != 1 {
		t.Fatalf("the README has %d blocks of Go", len(blocks))
	}
	program := strings.Join(blocks[0], "\n")
	const address = `"localhost:6379"`
	if strings.Count(program, address) != 1 {
		t.Fatalf("the program does not name %s once", address)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The versions of this module: no network is needed, and nothing is compiled again.
	version, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", goRedis).Output()
	if err != nil {
		t.Fatal(err)
	}
	module := []string{
		"module example.com/orders", "go 1.26.0",
		"require github.com/rratelimiter/rratelimiter v0.1.0", "require " + goRedis + " " + string(version),
		"replace github.com/rratelimiter/rratelimiter => " + root,
	}
	dir, server := t.TempDir(), redistest.Embedded(t)
	for name, text := range map[string]string{
		"go.mod":  strings.Join(module, "\n"),
		"go.sum":  strings.Join(linesOf(t, filepath.Join(root, "examples", "go.sum")), "\n"),
		"main.go": strings.Replace(program, address, `"`+server.Addr+`"`, 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-mod=mod", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if want := "allowed: true left: 98 retry after: 0s <nil>\n"; err != nil || string(out) != want {
		t.Errorf("it prints %s, not %s: %v: %s", out, want, err, &said)
	}
	for _, word := range []string{"go mod edit -replace github.com/rratelimiter/rratelimiter=", "go mod tidy"} {
		shell, _, _ := strings.Cut(strings.Join(linesOf(t, readme), "\n"), "```go\n")
		if !strings.Contains(shell, word) {
			t.Errorf("before the program, the README has no %q", word)
		}
	}
}
