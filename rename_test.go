package rratelimiter_test

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
)

// rename_test.go tests Rename and RenameNX.

func TestRenameTakesAllState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
			r := newRig(t, s)
			r.wipe()
			from, to := r.limiter("from"), r.limiter("to")
			rate := rratelimiter.Rate{Type: kind, Permits: 10, Interval: time.Minute}
			r.setRate(from, rate)
			r.try(from, 4)
			r.must(r.rdb.PExpire(ctx, "from", time.Hour).Err())
			r.advance(time.Second)
			r.try(from, 2)
			want, err := from.State(ctx)
			r.must(err)
			r.setRate(to, rratelimiter.PerHour(3)) // sometimes of the other type, and so with other keys
			r.try(to, 3)

			before := r.dump()
			if done, err := from.RenameNX(ctx, "to"); done || err != nil {
				t.Errorf("RenameNX to a name that is taken: %v, %v", done, err)
			}
			if err := from.Rename(ctx, "from"); err != nil {
				t.Errorf("Rename to the same: %v", err)
			}
			if done, err := from.RenameNX(ctx, "from"); done || err != nil {
				t.Errorf("RenameNX to the same: %v, %v", done, err)
			}
			r.unchanged(before, "renaming to nothing new")

			if err := from.Rename(ctx, "to"); err != nil {
				t.Fatal(err)
			}
			r.same(to, rratelimiter.State{
				Rate: want.Rate, Available: 4, Used: 6, Records: 2, Oldest: want.Oldest, Newest: want.Newest, TTL: time.Hour, Consistent: true,
			})
			if there, err := from.Exists(ctx); there || err != nil || r.rdb.DBSize(ctx).Val() != 3 {
				t.Errorf("the old limiter is there: %v, %v; %v", there, err, r.dump())
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
			r.same(r.limiter("third"), rratelimiter.State{
				Rate: want.Rate, Available: 4, Used: 6, Records: 2, Oldest: want.Oldest, Newest: want.Newest, TTL: time.Hour, Consistent: true,
			})
		}
	})
}

func TestRenameOntoItsOwnKeyIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		for name, onto := range map[string]string{"dup": "{dup}:value", "{two}x": "{two}x:permits", "own": "{own}:value:me"} {
			l := r.limiter(name)
			r.setRate(l, rratelimiter.PerMinute(5))
			r.try(l, 2)
			before := r.dump()
			if err := l.Rename(t.Context(), onto); !errors.Is(err, rratelimiter.ErrInvalidOption) {
				t.Errorf("Rename of %q to %q: %v", name, onto, err)
			}
			if _, err := l.RenameNX(t.Context(), onto); !errors.Is(err, rratelimiter.ErrInvalidOption) {
				t.Errorf("RenameNX of %q to %q: %v", name, onto, err)
			}
			r.unchanged(before, "renaming to its own key")
		}
	})
}

// Keys of the new name that have another type belong to another program: they are neither replaced nor removed.
func TestRenameReplacesNoKeyOfAnotherProgram(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at := range keys.Count {
			r := newRig(t, s)
			r.wipe()
			from, to := r.limiter("from"), r.limiter("to")
			r.setRate(from, rratelimiter.PerMinute(5))
			r.try(from, 2)
			r.must(r.rdb.RPush(t.Context(), keysOf(to)[at], "mine").Err())
			before := r.dump()
			err := from.Rename(t.Context(), "to")
			if !redis.HasErrorPrefix(err, "WRONGTYPE") || !strings.Contains(err.Error(), fmt.Sprintf("%q", keysOf(to)[at])) {
				t.Errorf("Rename onto a list in %s: %v", keysOf(to)[at], err)
			}
			renamed, err := from.RenameNX(t.Context(), "to")
			if renamed || (at == keys.Config) != (err == nil) {
				t.Errorf("RenameNX onto a list in %s: %v, %v", keysOf(to)[at], renamed, err)
			}
			r.unchanged(before, "Rename")
		}
	})
}

func newRing(t *testing.T) *redis.Ring {
	addrs := map[string]string{}
	for _, shard := range []string{"one", "two", "three"} {
		addrs[shard] = redistest.Embedded(t).Addr
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs})
	t.Cleanup(func() { ring.Close() })
	return ring
}

func TestRenameOnARingLosesNothing(t *testing.T) {
	ctx := t.Context()
	c := rratelimiter.NewClient(newRing(t), patient)
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
