// Package calls tests which commands are sent to Redis, how the calls of many limiters share them,
// and what a slow server delays.
package calls

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
