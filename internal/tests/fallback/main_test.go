// Package fallback tests limiters whose Redis is away: how that is noticed, what the process grants
// meanwhile, and the errors.
package fallback

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
