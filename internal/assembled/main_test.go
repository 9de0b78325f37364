package main

import (
	"strings"
	"testing"
)

// TestScriptsUseNothingNewerThanOldServers looks for features that Redis 6.2 or the embedded server
// lack.
func TestScriptsUseNothingNewerThanOldServers(t *testing.T) {
	scripts, err := assembled()
	if err != nil || len(scripts) == 0 {
		t.Fatalf("%d scripts: %v", len(scripts), err)
	}
	for name, text := range scripts {
		if strings.HasPrefix(text, "#!") {
			t.Errorf("%s has a shebang, which Redis 6.2 does not support", name)
		}
		for _, absent := range []string{
			"struct.", "cjson", "cmsgpack", "bit.", "redis.pcall", "redis.setresp", "server.call",
		} {
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
