package dispatch_test

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

func TestMain(m *testing.M) {
	schedule.Strict, pipeline.Strict = true, true
	redistest.Main(m)
}
