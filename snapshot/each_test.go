package snapshot_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// each runs a test on the embedded server and on a real one.
func each(t *testing.T, test func(t *testing.T, rdb *redis.Client)) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) { test(t, s.Client()) })
}

// pairs runs a test on two embedded servers and on two real ones.
func pairs(t *testing.T, test func(t *testing.T, one, two *redistest.Server)) {
	t.Run("embedded", func(t *testing.T) { test(t, redistest.Embedded(t), redistest.Embedded(t)) })
	t.Run("redis", func(t *testing.T) { test(t, redistest.Real(t), redistest.Real(t)) })
}
