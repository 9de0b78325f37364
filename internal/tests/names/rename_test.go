package names

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// rename_test.go tests Rename and RenameNX.

func TestRenameTakesAllState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			r := rig.New(t, s)
			r.Wipe()
			from, to := r.Limiter("from"), r.Limiter("to")
			rate := rratelimiter.Rate{Type: kind, Permits: 10, Interval: time.Minute}
			r.SetRate(from, rate)
			r.Try(from, 4)
			r.Must(r.Redis.PExpire(ctx, "from", time.Hour).Err())
			r.Advance(time.Second)
			r.Try(from, 2)
			want, err := from.State(ctx)
			r.Must(err)
			r.SetRate(to, rratelimiter.PerHour(3)) // sometimes of the other type, and so with other keys
			r.Try(to, 3)

			before := r.Dump()
			if done, err := from.RenameNX(ctx, "to"); done || err != nil {
				t.Errorf("RenameNX to a name that is taken: %v, %v", done, err)
			}
			if err := from.Rename(ctx, "from"); err != nil {
				t.Errorf("Rename to the same: %v", err)
			}
			if done, err := from.RenameNX(ctx, "from"); done || err != nil {
				t.Errorf("RenameNX to the same: %v, %v", done, err)
			}
			r.Unchanged(before, "renaming to nothing new")

			if err := from.Rename(ctx, "to"); err != nil {
				t.Fatal(err)
			}
			r.SameState(to, rratelimiter.State{
				Rate:       want.Rate,
				Available:  4,
				Used:       6,
				Records:    2,
				Oldest:     want.Oldest,
				Newest:     want.Newest,
				TTL:        time.Hour,
				Consistent: true,
			})
			if there, err := from.Exists(ctx); there || err != nil || r.Redis.DBSize(ctx).Val() != 3 {
				t.Errorf("the old limiter is there: %v, %v; %v", there, err, r.Dump())
			}
			for name, err := range map[string]error{
				"Rename":   from.Rename(ctx, "to"),
				"RenameNX": func() error { _, err := from.RenameNX(ctx, "third"); return err }(),
			} {
				if !errors.Is(err, rratelimiter.ErrNotInitialized) || !strings.Contains(err.Error(), `"from"`) {
					t.Errorf("%s of nothing: %v", name, err)
				}
			}
			if done, err := to.RenameNX(ctx, "third"); !done || err != nil {
				t.Errorf("RenameNX to a new name: %v, %v", done, err)
			}
			r.SameState(r.Limiter("third"), rratelimiter.State{
				Rate:       want.Rate,
				Available:  4,
				Used:       6,
				Records:    2,
				Oldest:     want.Oldest,
				Newest:     want.Newest,
				TTL:        time.Hour,
				Consistent: true,
			})
		}
	})
}

func TestRenameOntoItsOwnKeyIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		for name, onto := range map[string]string{
			"dup":    "{dup}:value",
			"{two}x": "{two}x:permits",
			"own":    "{own}:value:me",
		} {
			l := r.Limiter(name)
			r.SetRate(l, rratelimiter.PerMinute(5))
			r.Try(l, 2)
			before := r.Dump()
			if err := l.Rename(t.Context(), onto); !errors.Is(err, rratelimiter.ErrInvalidOption) {
				t.Errorf("Rename of %q to %q: %v", name, onto, err)
			}
			if _, err := l.RenameNX(t.Context(), onto); !errors.Is(err, rratelimiter.ErrInvalidOption) {
				t.Errorf("RenameNX of %q to %q: %v", name, onto, err)
			}
			r.Unchanged(before, "renaming to its own key")
		}
	})
}

// Keys of the new name that have another type belong to another program: they are neither replaced
// nor removed.
func TestRenameReplacesNoKeyOfAnotherProgram(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at := range keys.Count {
			r := rig.New(t, s)
			r.Wipe()
			from, to := r.Limiter("from"), r.Limiter("to")
			r.SetRate(from, rratelimiter.PerMinute(5))
			r.Try(from, 2)
			r.Must(r.Redis.RPush(t.Context(), rig.Keys(to)[at], "mine").Err())
			before := r.Dump()
			err := from.Rename(t.Context(), "to")
			if !redis.HasErrorPrefix(err, "WRONGTYPE") ||
				!strings.Contains(err.Error(), fmt.Sprintf("%q", rig.Keys(to)[at])) {
				t.Errorf("Rename onto a list in %s: %v", rig.Keys(to)[at], err)
			}
			renamed, err := from.RenameNX(t.Context(), "to")
			if renamed || (at == keys.Config) != (err == nil) {
				t.Errorf("RenameNX onto a list in %s: %v, %v", rig.Keys(to)[at], renamed, err)
			}
			r.Unchanged(before, "Rename")
		}
	})
}

func TestRenameOnARingLosesNothing(t *testing.T) {
	ctx := t.Context()
	c := rratelimiter.NewClient(rig.NewRing(t), rig.Patient)
	from := c.RateLimiter("from", rratelimiter.WithRate(rratelimiter.PerMinute(5)))
	if _, err := from.TryAcquire(ctx, 2); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		to := fmt.Sprint("to", i)
		if err := from.Rename(ctx, to); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Fatalf("Rename to %s: %v", to, err)
		}
		if _, err := from.RenameNX(ctx, to); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Fatalf("RenameNX to %s: %v", to, err)
		}
	}
	if err := from.Rename(ctx, "{from}:new"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.RateLimiter("{from}:new").AvailablePermits(ctx); n != 3 || err != nil {
		t.Errorf("%d permits are free under the new name, %v", n, err)
	}
}
