// Package redisson tests what Redisson's users rely on: the cases of its own suite, its records and numbers, and the
// states that its releases left.
package redisson

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
