package rules

import (
	"flag"
	"os"
	"testing"
)

// The seed of the random files is always the same, so a run that fails after others have passed
// tells something about a change. To search longer:
//
//	go test ./httplimit/rules -run Files -rapid.checks 100000 -rapid.seed 0 -timeout 2h
func TestMain(m *testing.M) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.nofailfile": "true", "rapid.checks": "300"} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}
