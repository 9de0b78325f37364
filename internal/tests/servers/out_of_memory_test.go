package servers

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// out_of_memory_test.go tests what a server does that is out of memory (maxmemory, noeviction): it
// refuses the first write of a script that grants, which is a record (lua/shared/plain_read.lua,
// grant.lua). So nothing is written, and callers get the error OOM. The server does not count as
// away (script.Unreachable; TestProbe in internal/tests/fallback). docs/faults.md has all
// operations.

// TestAFullServerRefusesABucketWhole: a larger record is written before the smaller one is removed.
func TestAFullServerRefusesABucketWhole(t *testing.T) {
	s := redistest.Real(t)
	ctx := t.Context()
	r := rig.New(t, s)
	l := r.Limiter("rl", rratelimiter.WithGranularity(time.Second))
	r.SetRate(l, rratelimiter.PerMinute(10))
	r.ToBucket(time.Second, 0)
	r.Advance(time.Millisecond)
	r.Try(l, 3)
	for name, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := l.TryAcquire(ctx, 1); return err },
		"AllowAll":   func() error { _, err := r.Client.AllowAll(ctx, 1, l); return err },
	} {
		before := r.Dump()
		r.Must(r.Redis.ConfigSet(ctx, "maxmemory", "1").Err())
		err := call()
		r.Must(r.Redis.ConfigSet(ctx, "maxmemory", "0").Err())
		if !redis.HasErrorPrefix(err, "OOM") {
			t.Errorf("%s: %v, want the error of Redis (OOM)", name, err)
		}
		r.Unchanged(before, name)
		r.Must(call())
	}
	r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(10), Available: 5, Used: 5, Records: 1,
		Oldest: r.Now().Add(999 * time.Millisecond), Newest: r.Now().Add(999 * time.Millisecond), Consistent: true})
}

// TestFoundAttemptOnAFullServer: a record that is found gets a new score, by a write that a full
// server refuses; nothing else changes.
func TestFoundAttemptOnAFullServer(t *testing.T) {
	s := redistest.Real(t)
	r := rig.New(t, s)
	c, tap := r.Tapped()
	l := c.RateLimiter("rl", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	for name, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := l.TryAcquire(t.Context(), 4); return err },
		"AllowAll":   func() error { _, err := c.AllowAll(t.Context(), 4, l); return err },
		"AcquireAll": func() error {
			return c.AcquireAll(t.Context(), 4, l,
				c.RateLimiter("other", rratelimiter.WithRate(rratelimiter.PerMinute(10))))
		},
	} {
		r.Wipe()
		var before map[string]string
		tap.Plan(rig.Plan{Cut: true, Then: func() {
			r.Advance(time.Second)
			before = r.Dump()
			r.Must(r.Redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
		}})
		err := call()
		r.Must(r.Redis.ConfigSet(t.Context(), "maxmemory", "0").Err())
		if !redis.HasErrorPrefix(err, "OOM") || !errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		r.Unchanged(before, name)
	}
}
