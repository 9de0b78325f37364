// Package names tests the keys of a limiter: how its name and the id of a client make them, Rename,
// Delete, and TTLs.
package names

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
