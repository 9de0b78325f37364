package httplimit

import (
	"flag"
	"os"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// The seed of the random stories is always the same, so a run that fails after others have passed
// tells something about a change.
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
	redistest.Main(m)
}
