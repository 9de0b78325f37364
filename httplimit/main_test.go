package httplimit

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Random(m, 500) }
