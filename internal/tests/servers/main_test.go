// Package servers tests each supported server and protocol, with the permissions that
// docs/security.md names.
package servers

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
