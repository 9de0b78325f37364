package names

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// delete_test.go tests Delete.

func TestDeleteReportsKeysItKeeps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.Wipe()
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute})
		r.Try(l, 1)
		r.Must(r.Redis.Set(t.Context(), "{rl}:permits", "mine", 0).Err())
		for _, removed := range []bool{true, false} {
			gone, err := l.Delete(t.Context())
			if gone != removed || !redis.HasErrorPrefix(err, "WRONGTYPE") ||
				errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
				!strings.Contains(err.Error(), `the key "{rl}:permits" is no sorted set`) {
				t.Errorf("%v, %v", gone, err)
			}
			if r.Redis.DBSize(t.Context()).Val() != 1 || r.Redis.Get(t.Context(), "{rl}:permits").Val() != "mine" {
				t.Errorf("the keys are %v", r.Dump())
			}
		}
	})
}

// Redis frees a million records in the background, because the scripts use UNLINK.
func TestRecordsAreFreedInTheBackground(t *testing.T) {
	s := redistest.Real(t)
	r := rig.New(t, s)
	l := r.Limiter("rl")
	for what, remove := range map[string]func() error{
		"Delete":  func() error { _, err := l.Delete(t.Context()); return err },
		"Reset":   func() error { _, err := l.Reset(t.Context()); return err },
		"SetRate": func() error { return l.SetRate(t.Context(), rratelimiter.PerMinute(5)) },
		"a new type": func() error {
			return l.SetRate(t.Context(),
				rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute})
		},
		"Rename over it": func() error { return r.Limiter("other").Rename(t.Context(), "rl") },
	} {
		r.Wipe()
		r.SetRate(l, rratelimiter.PerMinute(5))
		r.SetRate(r.Limiter("other"), rratelimiter.PerMinute(5))
		r.Try(l, 1)
		r.Must(r.Redis.ConfigResetStat(t.Context()).Err())
		r.Must(remove())
		calls := r.Redis.Info(t.Context(), "commandstats").Val()
		if strings.Contains(calls, "cmdstat_del:") || !strings.Contains(calls, "cmdstat_unlink:") ||
			r.Redis.Exists(t.Context(), "{rl}:permits").Val() != 0 {
			t.Errorf("%s called\n%s", what, calls)
		}
	}
}

func TestDeleteLeavesOtherClientsState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		ctx := t.Context()
		rate := rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Minute}
		l := r.Limiter("rl", rratelimiter.WithRate(rate))
		other := r.Beside("other").Limiter("rl")
		r.Try(l, 3)
		r.Try(other, 4)
		r.WriteValue(l, "7")
		clients, err := l.Clients(ctx)
		if !slices.Equal(clients, []string{"me", "other"}) || err != nil {
			t.Errorf("the clients are %v, %v", clients, err)
		}
		if gone, err := l.Delete(ctx); !gone || err != nil {
			t.Errorf("Delete: %v, %v", gone, err)
		}
		keys := slices.Sorted(slices.Values(r.Redis.Keys(ctx, "*").Val()))
		if want := []string{"{rl}:permits:other", "{rl}:value:other"}; !slices.Equal(keys, want) {
			t.Errorf("%v are left, want %v", keys, want)
		}
		if gone, err := l.Delete(ctx); gone || err != nil {
			t.Errorf("Delete again: %v, %v", gone, err)
		}
		if r.Try(l, 10); r.Free(other) != 6 {
			t.Errorf("another client has %d permits", r.Free(other))
		}
	})
}
