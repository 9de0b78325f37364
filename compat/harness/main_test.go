package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
)

func TestWithoutAVersionTheHarnessSaysHowToUseIt(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"-h"}, {"help"}} {
		var out strings.Builder
		if err := run(t.Context(), args, &out); err != nil || out.String() != usage {
			t.Errorf("%q: %v, %q", args, err, out.String())
		}
	}
	if err := run(t.Context(), []string{"--redis", "redis://127.0.0.1:1"}, nil); err == nil ||
		!strings.HasPrefix(err.Error(), "--redis precedes the version of Redisson\nusage:") {
		t.Errorf("an option in the place of the version: %v", err)
	}
}

// Each command line in the usage and in the guide has a version of Redisson that is tested.
func TestTheGuideGivesCommandsThatWork(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide/share-with-java.md")
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"the guide": string(guide), "the usage": usage} {
		lines := regexp.MustCompile(`go run ./compat/harness[ \n]+(\S+) --redis \S+ [a-z]+ `).FindAllStringSubmatch(
			text, -1)
		if len(lines) == 0 {
			t.Errorf("%s has no command", where)
		}
		for _, line := range lines {
			if !slices.Contains(redisson.Versions, line[1]) {
				t.Errorf("%s has %q", where, line[0])
			}
		}
	}
}
