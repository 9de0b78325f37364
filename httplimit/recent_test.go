package httplimit

import (
	"strconv"
	"testing"

	"github.com/rratelimiter/rratelimiter"
)

// The limiters that are used stay, and of the others only so many are kept.
func TestRecentLimiters(t *testing.T) {
	var r limiters
	made := 0
	limiter := func(key string, rate rratelimiter.Rate) *rratelimiter.Limiter {
		return r.get(limiterKey{key, rate}, func() *rratelimiter.Limiter {
			made++
			return new(rratelimiter.Limiter)
		})
	}
	rate := rratelimiter.PerSecond(1)
	used := limiter("used", rate)
	for i := range 5 * mostRecent {
		limiter(strconv.Itoa(i), rate)
		if i%1000 == 0 && limiter("used", rate) != used {
			t.Fatalf("a limiter that is used is made again after %d others", i)
		}
	}
	if n := len(r.young) + len(r.old); n > 2*mostRecent || made != 5*mostRecent+1 {
		t.Errorf("%d are kept, %d were made", n, made)
	}
	if limiter("used", rratelimiter.PerSecond(2)) == used {
		t.Error("a limiter has two rates")
	}
}
