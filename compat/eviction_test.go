package compat

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
)

// eviction_test.go: a full Redis evicts the value key of a limiter, and the next call of one client
// finds it missing.
//
// Any version of Redisson then starts with the whole rate again. It corrects the value when the
// next record expires: before 3.35.0 by the number of records, as if each were one permit; from
// 3.35.0 on by their permits. Go adds the permits up at once.

const (
	evictedRate     = 10
	evictedInterval = time.Hour
)

// evictions checks how many permits a window holds, depending on which client repairs the value and
// how Go writes its records.
func evictions(f *mixed) {
	perRequest := []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}
	for _, c := range []struct {
		name   string
		java   *redisson.Process
		opts   []rratelimiter.LimiterOption
		first  int64 // permits of Java's first call; 0: no such call
		goes   bool  // Go calls before Java does
		window int64
	}{
		{"3.17.5 counts one record for six permits", f.old, nil, 1, false, 15},
		{"3.17.5 counts a record per request", f.old, perRequest, 1, false, evictedRate},
		{"4.7.0 counts the permits of a record", f.recent, nil, 1, false, evictedRate},
		{"Go comes before 3.17.5", f.old, nil, 0, true, evictedRate},
		{"the first call of 3.17.5 takes all", f.old, perRequest, evictedRate, false, 6 + evictedRate},
		{"the first call of 4.7.0 takes all", f.recent, perRequest, evictedRate, false, 6 + evictedRate},
	} {
		f.Run(c.name, func(t *testing.T) {
			b := f.in(t).beside(c.java)
			name := "eviction:" + c.name
			b.shared(name, c.opts...)
			f.in(t).evict(valueKey(name))
			now := b.client().RateLimiter(name)
			if c.goes {
				want(b, "Go's TryAcquire", true)(now.TryAcquire(b.ctx, 1))
			}
			if c.first > 0 {
				want(b, "Java's first tryAcquire", true)(c.java.TryAcquire(b.ctx, name, c.first))
			}
			for taken := 0; c.first < evictedRate; taken++ {
				granted, err := c.java.TryAcquire(b.ctx, name, 1)
				b.must("Java's tryAcquire", err)
				if !granted {
					break
				}
				if taken > 2*evictedRate {
					b.Fatal("Java grants without end")
				}
			}
			state, err := now.State(b.ctx)
			b.must("Go's State", err)
			if state.Used != c.window {
				b.Fatalf("%d permits of %d are in use, want %d: %+v", state.Used, evictedRate, c.window, state)
			}
		})
	}
}

// shared prepares a limiter with a record of two permits that has expired, but was not removed, and
// with six permits that Go took in one call for six callers. Go's clock dates them 1.5 and about
// 0.5 intervals before now, so the test need not wait.
func (b *bench) shared(name string, opts ...rratelimiter.LimiterOption) {
	b.Helper()
	ago := evictedInterval * 3 / 2
	clock := &manualClock{at: time.Now().Add(-ago)}
	var core *dispatch.Client
	client := rratelimiter.NewClient(
		showing(&core, b.rdb), rratelimiter.WithCallTimeout(patience), rratelimiter.WithClock(clock.now),
	)
	l := client.RateLimiter(name, opts...)
	b.must("Go's SetRate", l.SetRate(b.ctx, rratelimiter.Rate{Permits: 2, Interval: evictedInterval}))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 2))
	clock.add(ago - evictedInterval/2 - time.Minute)
	granted := make(chan error)
	const callers = 6
	for range callers {
		go func() { granted <- l.Acquire(b.ctx, 1) }()
	}
	b.eventually("all callers wait", patience, func() bool {
		calls := core.Look(name)
		return calls.Waiting == callers && !calls.InFlight && calls.Next > 0
	})
	b.must(
		"Go's SetRate",
		l.SetRate(b.ctx, rratelimiter.Rate{Permits: evictedRate, Interval: evictedInterval}, rratelimiter.KeepState()),
	)
	var failed error
	for range callers {
		failed = errors.Join(failed, <-granted)
	}
	b.must("Go's Acquire", failed)
	records := int64(2)
	if len(opts) > 0 {
		records = 1 + callers
	}
	if n := b.rdb.ZCard(b.ctx, permitsKey(name)).Val(); n != records {
		b.Fatalf("%d records of two and six permits, want %d", n, records)
	}
}

// A manualClock only moves when told to.
type manualClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *manualClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *manualClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// evict makes the server evict a key: it sets a TTL on this key alone, under a policy that evicts
// only keys with a TTL.
func (f *mixed) evict(key string) {
	f.Helper()
	before := f.rdb.DBSize(f.Context()).Val()
	set := func(pairs ...string) {
		for i := 0; i < len(pairs); i += 2 {
			if err := f.rdb.ConfigSet(f.Context(), pairs[i], pairs[i+1]).Err(); err != nil {
				f.Fatal(err)
			}
		}
	}
	if ok, err := f.rdb.Expire(f.Context(), key, time.Hour).Result(); !ok || err != nil {
		f.Fatal(key, ok, err)
	}
	set("maxmemory-policy", "volatile-ttl", "maxmemory", "1")
	set("maxmemory", "0")
	if after := f.rdb.DBSize(f.Context()).Val(); after != before-1 || f.rdb.Exists(f.Context(), key).Val() != 0 {
		f.Fatalf("of %d keys %d are left, with or without %s", before, after, key)
	}
}
