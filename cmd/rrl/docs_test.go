package main

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
)

// What .goreleaser.yaml builds and packs is there.
func TestTheFilesOfAReleaseExist(t *testing.T) {
	text, err := os.ReadFile("../../.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Builds   []struct{ Main string }
		Archives []struct{ Files []string }
	}
	if err := yaml.Unmarshal(text, &config); err != nil || len(config.Builds) != 1 || len(config.Archives) != 1 ||
		len(config.Archives[0].Files) == 0 {
		t.Fatalf("%v, %+v", err, config)
	}
	for _, file := range append(config.Archives[0].Files, config.Builds[0].Main+"/main.go") {
		if _, err := os.Stat("../../" + file); err != nil {
			t.Error(err)
		}
	}
}

// The page on rrl has all fields of the named types of --json, all codes of doctor, and all
// commands.
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
	codes := regexp.MustCompile(`(?:Error|Warning|Note|level),\s+(?:Code: )?"([a-z-]+)"`).
		FindAllStringSubmatch(string(checks), -1)
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
