package rratelimiter_test

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

func TestMain(m *testing.M) {
	schedule.Strict, pipeline.Strict = true, true
	redistest.Main(m)
}

// long skips a test that takes seconds, where go test -short asks for quick ones.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes seconds")
	}
}
