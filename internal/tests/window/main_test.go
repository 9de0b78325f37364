// Package window tests the limit itself: no window of the interval holds more grants than the rate
// allows, and permits return on time.
package window

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
