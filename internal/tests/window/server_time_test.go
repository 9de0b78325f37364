package window

import (
	"context"
	"math"
	"sync"
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
			if at := time.UnixMilli(int64(m.Score)); at.Before(start.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
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

// With the server's clock, the clock of this host does not matter.
func TestServerTime(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server *redistest.Server) {
		rdb, day := server.Client(), 24*time.Hour
		at := func(shift time.Duration) *rratelimiter.Limiter {
			return rratelimiter.NewClient(rdb, rratelimiter.WithClock(func() time.Time { return time.Now().Add(shift) }), rig.Patient).
				RateLimiter("l", rratelimiter.WithServerTime(), rratelimiter.WithRate(rratelimiter.Rate{Permits: 10, Interval: 400 * ms}))
		}
		early, right, late := at(-day), at(0), at(day)
		before, began := rdb.Time(t.Context()).Val(), time.Now()
		rig.MustTry(t, late, 4, true)
		rig.MustTry(t, early, 6, true)
		inTime := time.Since(began) < 400*ms // else a busy machine has let the first grants expire
		if scores, err := rdb.ZRangeWithScores(t.Context(), "{l}:permits", 0, -1).Result(); err != nil || inTime && len(scores) != 2 {
			t.Errorf("%v, %v", scores, err)
		} else {
			for _, z := range scores {
				at := time.UnixMicro(int64(math.Round(z.Score * 1000)))
				if now := rdb.Time(t.Context()).Val(); at.Before(before) || at.After(now.Add(ms)) { // dated at the next ms
					t.Errorf("a grant at %v, not between %v and %v", at, before, now)
				}
			}
		}
		r, err := right.Allow(t.Context(), 10)
		inTime = time.Since(began) < 400*ms
		if err != nil || inTime && (r.Allowed || r.RetryAfter > 401*ms || r.RetryAfter <= 0) {
			t.Errorf("%+v, %v", r, err)
		}
		var all sync.WaitGroup
		for _, l := range []*rratelimiter.Limiter{early, right, late} {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if err := l.Acquire(ctx, 7); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		// An interval has room for 7 permits: three intervals after the first two grants.
		if took := rdb.Time(t.Context()).Val().Sub(before); took < 1200*ms-ms {
			t.Errorf("took %v", took)
		}
	})
}
