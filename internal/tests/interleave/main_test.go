// Package interleave runs small interleavings of callers of sets, of single limiters and of leases,
// on the library as users have it. Package smallscope searches more interleavings of one limiter,
// without sets, locks and timers.
//
// A path is a list of choices: which caller calls next, when the server executes the oldest
// message, whether its reply is late or lost, whose context ends, and when time goes on. A search
// runs a path, and then the one that takes the next choice at the last branch that has one, until
// there is none. Each path has a client and a bubble of its own, and begins with an empty database.
// What is unusual counts as a fault, and a path has few of them.
//
// With -short and in make test there is one fault less than in make proof. A path that breaks a
// promise is printed as a list of steps, with the command that repeats it. In lists of steps, what
// the server executes without a choice stands in parentheses.
//
// interleave_test.go has the scopes and the search, path_test.go runs a path, wire_test.go has the
// messages, and judge_test.go says what is promised.
package interleave

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
