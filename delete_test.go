package rratelimiter_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// delete_test.go tests Delete.

func TestDeleteReportsKeysItKeeps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.setRate(l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute})
		r.try(l, 1)
		r.must(r.rdb.Set(t.Context(), "{rl}:permits", "mine", 0).Err())
		for _, removed := range []bool{true, false} {
			gone, err := l.Delete(t.Context())
			if gone != removed || !redis.HasErrorPrefix(err, "WRONGTYPE") || errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
				!strings.Contains(err.Error(), `the key "{rl}:permits" is no sorted set`) {
				t.Errorf("%v, %v", gone, err)
			}
			if r.rdb.DBSize(t.Context()).Val() != 1 || r.rdb.Get(t.Context(), "{rl}:permits").Val() != "mine" {
				t.Errorf("the keys are %v", r.dump())
			}
		}
	})
}

// Redis frees a million records in the background, because the scripts use UNLINK.
func TestRecordsAreFreedInTheBackground(t *testing.T) {
	s := redistest.Real(t)
	r := newRig(t, s)
	l := r.limiter("rl")
	for what, remove := range map[string]func() error{
		"Delete":  func() error { _, err := l.Delete(t.Context()); return err },
		"Reset":   func() error { _, err := l.Reset(t.Context()); return err },
		"SetRate": func() error { return l.SetRate(t.Context(), rratelimiter.PerMinute(5)) },
		"a new type": func() error {
			return l.SetRate(t.Context(), rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute})
		},
		"Rename over it": func() error { return r.limiter("other").Rename(t.Context(), "rl") },
	} {
		r.wipe()
		r.setRate(l, rratelimiter.PerMinute(5))
		r.setRate(r.limiter("other"), rratelimiter.PerMinute(5))
		r.try(l, 1)
		r.must(r.rdb.ConfigResetStat(t.Context()).Err())
		r.must(remove())
		calls := r.rdb.Info(t.Context(), "commandstats").Val()
		if strings.Contains(calls, "cmdstat_del:") || !strings.Contains(calls, "cmdstat_unlink:") || r.rdb.Exists(t.Context(), "{rl}:permits").Val() != 0 {
			t.Errorf("%s called\n%s", what, calls)
		}
	}
}

func TestDeleteLeavesOtherClientsState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		ctx := t.Context()
		rate := rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Minute}
		l := r.limiter("rl", rratelimiter.WithRate(rate))
		other := rratelimiter.NewClient(s.Client(), rratelimiter.WithClientID("other"), rratelimiter.WithClock(r.now), patient).RateLimiter("rl")
		r.try(l, 3)
		r.try(other, 4)
		r.set(l, "7")
		clients, err := l.Clients(ctx)
		if !slices.Equal(clients, []string{"me", "other"}) || err != nil {
			t.Errorf("the clients are %v, %v", clients, err)
		}
		if gone, err := l.Delete(ctx); !gone || err != nil {
			t.Errorf("Delete: %v, %v", gone, err)
		}
		keys := slices.Sorted(slices.Values(r.rdb.Keys(ctx, "*").Val()))
		if want := []string{"{rl}:permits:other", "{rl}:value:other"}; !slices.Equal(keys, want) {
			t.Errorf("%v are left, want %v", keys, want)
		}
		if gone, err := l.Delete(ctx); gone || err != nil {
			t.Errorf("Delete again: %v, %v", gone, err)
		}
		if r.try(l, 10); r.free(other) != 6 {
			t.Errorf("another client has %d permits", r.free(other))
		}
	})
}
