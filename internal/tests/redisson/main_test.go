// Package redisson tests what users of Redisson rely on: its records and numbers, the states that
// its releases wrote, and the permits that waiting callers leave to it. Most of its tests compute,
// and make test runs them without the race detector.
package redisson

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
