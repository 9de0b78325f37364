// Package repair tests limiters whose state is inconsistent or garbage: what each method returns,
// and what it repairs.
package repair

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
