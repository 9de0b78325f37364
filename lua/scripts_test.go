package lua_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

var update = flag.Bool("update", false, "write the assembled scripts to testdata/scripts")

// assembled returns the scripts that Redis gets, by name.
func assembled(t *testing.T) map[string]string {
	files, err := lua.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	scripts := map[string]string{}
	for _, file := range files {
		if !file.IsDir() {
			name := strings.TrimSuffix(file.Name(), ".lua")
			scripts[name] = script.Load(lua.Files, name).Text
		}
	}
	scripts["peek"], scripts["peekrate"] = protocol.PeekScript.Text, protocol.PeekRateScript.Text
	return scripts
}

// TestAssembledScripts compares the scripts that Redis gets with those in testdata/scripts, so that
// the line number in an error of Redis leads somewhere, and a change of a fragment shows what it
// changes in each script.
func TestAssembledScripts(t *testing.T) {
	for name, text := range assembled(t) {
		golden := filepath.Join("..", "testdata", "scripts", name+".lua")
		if *update {
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != text {
			t.Errorf(
				"%s is not what is assembled from lua/ (go test ./lua -run AssembledScripts -update writes it): %v", golden, err,
			)
		}
	}
}

// TestScriptsUseNothingNewerThanOldServers looks for features that Redis 6.2 or the embedded server
// lack.
func TestScriptsUseNothingNewerThanOldServers(t *testing.T) {
	for name, text := range assembled(t) {
		if strings.HasPrefix(text, "#!") {
			t.Errorf("%s has a shebang, which Redis 6.2 does not support", name)
		}
		for _, absent := range []string{"struct.", "cjson", "cmsgpack", "bit.", "redis.pcall", "redis.setresp", "server.call"} {
			if strings.Contains(text, absent) {
				t.Errorf("%s uses %s", name, absent)
			}
		}
		for _, want := range []string{"-- KEYS", "-- ARGV", "-- reply"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no header line %q", name, want)
			}
		}
	}
}
