package maven

import (
	"strings"
	"testing"
)

func TestWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	missing := Missing(t.Context())
	if len(missing) != 2 || !strings.Contains(missing[0], "a JDK, 17 or later") ||
		!strings.Contains(missing[1], "Maven") {
		t.Errorf("%q", missing)
	}
}

func TestVersionsOfTheCompiler(t *testing.T) {
	for output, want := range map[string]int{
		"javac 17.0.15\n": 17,
		"javac 1.8.0_292": 8,
		"javac 26-ea":     26,
		"none":            0,
	} {
		if got := major(output); got != want {
			t.Errorf("%q is %d, not %d", output, got, want)
		}
	}
}
