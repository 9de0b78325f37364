// Package differential compares this library with Redisson in random states and random sequences of
// calls. A property-testing library generates them, and shrinks the failing ones.
//
// The differential test makes the same call on both sides in the same state, and compares the
// answers and the resulting states. The window test runs any mix of clients, clocks and faults on
// one limiter, and counts the granted permits. Both run Redisson's own scripts: the tests capture
// them from the connection of a real Redisson when they start, and then send them with times and
// ids of their choice.
//
// The seed is always the same, so a run that fails after others have passed tells something about a
// change. To search for differences that nobody knows, let a run be longer and draw its seed, which
// it prints if it fails:
//
//	go test ./compat/differential -run Differential -steps 1000000 -rapid.seed 0 -timeout 2h -v
//
// This file has the flags; java_test.go Redisson's scripts, state_test.go a limiter's state,
// rules_test.go where this library differs on purpose, examples_test.go a case of each,
// differential_test.go the comparison, window_test.go the windows, interleavings_test.go all
// interleavings of few calls, and fault_test.go the connections that lose answers.
package differential

import (
	"flag"
	"strconv"
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

var steps = flag.Int("steps", 20_000, "how many steps the differential test compares at least")

// perCheck is the average number of steps in a sequence.
const perCheck = 40

func TestMain(m *testing.M) {
	redistest.Drawing(map[string]string{"rapid.steps": strconv.Itoa(perCheck)})
	redistest.Main(m)
}
