// Package retry tests that a call whose connection breaks takes effect once.
package retry

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
