// Package queue tests waiting callers: their order, when they are served, what wakes them, and what
// they leave to Redisson.
package queue

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
