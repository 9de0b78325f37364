// Package options draws sets of options and short stories of requests, time and faults, runs each
// story on the embedded server, and judges what came out by what the documentation promises.
//
// The seed is always the same, so a run that fails after others have passed tells something about a
// change. To search for faults that nobody knows, draw the seed, which a failing run prints, and
// let the run be longer:
//
//	go test ./internal/tests/options -run Stories -rapid.seed 0 -rapid.checks 20000 -timeout 2h
//
// With -promises, only some promises are judged, so that a story that breaks one of these is
// shortened: -promises 'fail fast'. With -short, there are a fifth of the stories.
//
// table_test.go has the options and what each may be set to, story_test.go the stories,
// play_test.go runs one, model_test.go says what was possible, and judges_test.go has a judge for
// each promise.
package options

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// checks is the number of stories of each test, unless -rapid.checks is given.
const checks = "800"

func TestMain(m *testing.M) {
	redistest.Drawing(map[string]string{"rapid.checks": checks})
	rig.Main(m)
}
