// Package endings runs every method in every way in which a call can end, also with each option of
// the limiter. What is to come out stands in docs/endings.md.
package endings

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
