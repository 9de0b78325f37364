// Package repair tests limiters whose state is inconsistent or garbage: what each method finds in it, says of it, and
// mends.
package repair

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
