// Package api tests what all methods and options have in common, how rates are written and read,
// and what observers see.
package api

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

const ms = time.Millisecond

func TestMain(m *testing.M) { rig.Main(m) }
