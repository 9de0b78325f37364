package dispatch_test

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) {
	dispatch.Strict, pipeline.Strict = true, true
	redistest.Main(m)
}
