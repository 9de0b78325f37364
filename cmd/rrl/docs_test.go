package main

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// The page on rrl has all fields of the named types of --json, all codes of doctor, and all commands.
func TestDocumentationIsComplete(t *testing.T) {
	text, err := os.ReadFile("../../docs/rrl.md")
	if err != nil {
		t.Fatal(err)
	}
	said := func(what string) {
		t.Helper()
		if !strings.Contains(string(text), "`"+what+"`") {
			t.Errorf("docs/rrl.md does not say `%s`", what)
		}
	}
	for _, object := range []any{
		jsonRow{}, jsonView{}, jsonWriter{}, jsonFormat{}, jsonFinding{}, jsonChange{}, jsonMended{}, jsonCollected{},
		jsonPicture{}, jsonState{}, jsonSecond{}, jsonRecord{}, render.JSONName{}, render.JSONRate{},
	} {
		kind := reflect.TypeOf(object)
		for i := range kind.NumField() {
			if name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ","); name != "" {
				said(name)
			}
		}
	}
	checks, err := os.ReadFile("internal/doctor/checks.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?:Error|Warning|Note|level), (?:Code: )?"([a-z-]+)"`).FindAllStringSubmatch(string(checks), -1)
	if len(codes) < 24 {
		t.Errorf("only %d findings are found", len(codes))
	}
	for _, code := range codes {
		said(code[1])
	}
	_, commands, _ := strings.Cut(string(text), "\n## Commands\n")
	commands, _, _ = strings.Cut(commands, "\n## ")
	for _, cmd := range newRoot().Commands() {
		if name := cmd.Name(); name != "help" && !strings.Contains(commands, "`rrl "+name) {
			t.Errorf("the table of commands in docs/rrl.md lacks rrl %s", name)
		}
	}
}
