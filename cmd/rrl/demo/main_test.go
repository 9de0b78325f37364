package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// heavy are the modules that rrl links and that a first look at the library need not compile.
var heavy = regexp.MustCompile(`google\.golang\.org/|envoyproxy/|prometheus/|go-analyze/|spf13/cobra|yaml`)

func TestTheDemoLinksLittle(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "/cmd/rrl/internal/demo\n") {
		t.Errorf("it does not link the demo:\n%s", out)
	}
	if found := heavy.FindAllString(string(out), -1); found != nil {
		t.Errorf("it links %q", found)
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"--help":              "help requested",
		"redis://user:secret": "flags only",
		"--rate 0/s":          "refuses every request",
		"--release 3.17.5":    "--release is for --java",
		"--nothing":           "unknown flag",
	} {
		err := run(t.Context(), strings.Fields(args))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	if err := run(t.Context(), []string{"--for", "300ms", "--rate", "5/100ms"}); err != nil {
		t.Errorf("a demo of 300 ms: %v", err)
	}
}
