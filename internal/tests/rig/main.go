package rig

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// Main runs the tests of a package, with more checks of the library's own state than users have.
func Main(m *testing.M) {
	schedule.Strict, pipeline.Strict = true, true
	redistest.Main(m)
}

// Long skips a test that takes seconds, where go test -short asks for quick ones.
func Long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds")
	}
}
