package redistest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strconv"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/proof"
)

// Random is Main for a package whose tests draw random cases with rapid: that many cases in make
// proof, else a fourth. See Drawing.
func Random(m *testing.M, cases int) {
	Drawing(map[string]string{"rapid.checks": strconv.Itoa(proof.Or(cases, cases/4))})
	Main(m)
}

// Drawing parses the flags, and sets those of rapid that are not given: the seed is always the
// same, so a run that fails after others have passed tells something about a change. The flags
// -rapid.checks and -rapid.seed search further. more are flags that a package sets, too.
func Drawing(more map[string]string) {
	flag.Parse()
	flags := map[string]string{"rapid.seed": "1", "rapid.nofailfile": "true"}
	maps.Copy(flags, more)
	flag.Visit(func(f *flag.Flag) { delete(flags, f.Name) })
	for name, value := range flags {
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
}
