package rratelimiter_test

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) {
	dispatch.Strict = true
	redistest.Main(m)
}
