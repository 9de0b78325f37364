package window

import (
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// server_time_test.go tests WithServerTime.

// TestServerTimeDatesGrantsByTheServer has a client whose clock is wrong by years.
func TestServerTimeDatesGrantsByTheServer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.Advance(-20 * 365 * 24 * time.Hour)
		l := r.Limiter("rl", rratelimiter.WithServerTime(), rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		start := time.Now()
		r.Try(l, 3)
		if results, err := r.Client.AllowAll(t.Context(), 3, l); err != nil || !results[0].Allowed {
			t.Errorf("%+v, %v", results, err)
		}
		for _, m := range r.Members(l) {
			if at := time.UnixMilli(int64(m.Score)); at.Before(start.Add(-time.Second)) ||
				at.After(time.Now().Add(time.Second)) {
				t.Errorf("a grant is dated %v, it was at %v", at, start)
			}
		}
		state, err := l.State(t.Context())
		if err != nil || state.Used != 6 || state.Records != 2 {
			t.Errorf("%+v, %v", state, err)
		}
		if back := r.Release(l, 4); back != 4 {
			t.Errorf("%d came back", back)
		}
		r.SetRate(l, rratelimiter.PerMinute(9), rratelimiter.KeepState())
		if free := r.Free(l); free != 7 {
			t.Errorf("%d are free", free)
		}
	})
}

// With the server's clock, the clock of this host does not matter, nor for how long a caller waits.
func TestServerTime(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		at := func(shift time.Duration) *rratelimiter.Limiter {
			clock := rratelimiter.WithClock(func() time.Time { return time.Now().Add(shift) })
			return b.Process(clock).
				RateLimiter("l", rratelimiter.WithServerTime(), rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		}
		early, right, late := at(-24*time.Hour), at(0), at(24*time.Hour)
		b.Granted("the one ahead", b.Try(late, 4), 0)
		b.SleepTo(300 * ms)
		b.Granted("the one behind", b.Try(early, 6), 300*ms)
		b.Refused(right, 5, time.Second)
		first, second := b.Acquire(early, 4), b.Acquire(late, 6)
		b.SleepTo(2 * time.Second)
		b.Granted("the one behind that waits", first, time.Second)
		b.Granted("the one ahead that waits", second, 1300*ms)
	})
}
