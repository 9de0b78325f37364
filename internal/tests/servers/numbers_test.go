package servers

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// Scripts give whole numbers to Redis as text, because Redis 7.2.0 to 7.2.4 would write some of
// them with an exponent.
func TestNumbersOfScriptsAreText(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rdb := s.Client()
		rdb.AddHook(redistest.OnlyText())
		everyCall(t, rdb)
		r.Must(exercise(t.Context(), rdb, "orders"))

		at := time.Now()
		c := rratelimiter.NewClient(rdb, rig.Patient, rratelimiter.WithClock(func() time.Time { return at }))
		allow := func(all ...*rratelimiter.Limiter) {
			t.Helper()
			_, err := c.AllowAll(t.Context(), 1, all...)
			r.Must(err)
			_, err = all[0].Allow(t.Context(), 1)
			r.Must(err)
		}
		rate := rratelimiter.WithRate(rratelimiter.PerMinute(10))
		one, two := c.RateLimiter("{b}1", rate), c.RateLimiter("{b}2", rate)
		allow(one, two) // new limiters
		at = at.Add(2 * time.Minute)
		allow(one, two) // whose records expire
		for _, l := range []*rratelimiter.Limiter{one, two} {
			r.Must(r.Redis.PExpire(t.Context(), l.Name(), time.Hour).Err())
		}
		allow(one, two) // with a TTL
	})
}
