// Package lease tests WithLease: permits that a process takes ahead of demand, and grants without a
// call.
package lease

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
