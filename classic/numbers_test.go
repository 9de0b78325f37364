package classic_test

import (
	"testing"

	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// Scripts give whole numbers to Redis as text, because Redis 7.2.0 to 7.2.4 would write some of
// them with an exponent.
func TestNumbersOfScriptsAreText(t *testing.T) {
	onServers(t, func(b *bench) {
		b.rdb.AddHook(redistest.OnlyText())
		for _, s := range subjects() {
			l := s.make(b.rdb, s.name, b.clock())
			for range 3 {
				if _, err := l.Allow(b.Context(), 1); err != nil {
					b.Errorf("%s: %v", s.name, err)
				}
				for _, key := range b.rdb.Keys(b.Context(), "*").Val() {
					b.do("persist", key) // some set a TTL that is missing
				}
			}
		}
		q := classic.NewQuota(b.rdb, "returned", 10, classic.Days{}, b.clock())
		if _, err := q.Allow(b.Context(), 5); err != nil {
			b.Error(err)
		}
		if _, err := q.Return(b.Context(), 3); err != nil {
			b.Error(err)
		}
	})
}
