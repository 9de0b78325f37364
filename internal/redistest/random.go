package redistest

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/proof"
)

// Random is Main for a package whose tests draw random cases with rapid. A test draws that many
// cases in make proof, else a fourth, and the seed is always the same, so a run that fails after others have passed tells
// something about a change. The flags -rapid.checks and -rapid.seed search further.
func Random(m *testing.M, cases int) {
	flag.Parse()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.seed": "1", "rapid.nofailfile": "true", "rapid.checks": strconv.Itoa(proof.Or(cases, cases/4)),
	} {
		if given[name] {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	Main(m)
}
