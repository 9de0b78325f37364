// Package redisson tests what users of Redisson rely on: its records and numbers, and the states
// that its releases wrote.
package redisson

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
