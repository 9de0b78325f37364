package rratelimiter_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// redisson_numbers_test.go: numbers that Redisson can store, and that this library does not: records of negative requests,
// and intervals, keep-alives and TTLs that a time.Duration does not hold.

// negative returns the member that Redisson writes for a negative request: its permits are stored modulo 2^32.
func negative(id string, permits int64) string { return memberOf(id, uint32(permits)) }

// Redisson grants a negative request, which takes no permits, and stores a record of it that no rate allows. It counts as the
// permits that it can hold at most, and is replaced by a record of these, if there are any.
func TestARecordOfANegativeRequestHoldsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, ctx := newRig(t, s), t.Context()
		for name, test := range map[string]struct {
			value   string
			records []string
			free    int64
		}{
			"the limiter is full":    {"11", []string{negative("aaaaaaaa", -1)}, 10},
			"repaired before":        {"10", []string{negative("aaaaaaaa", -1)}, 10},
			"some is granted":        {"8", []string{negative("aaaaaaaa", -1), memberOf("bbbbbbbb", 3)}, 8},
			"the value is missing":   {"", []string{negative("aaaaaaaa", -1), memberOf("bbbbbbbb", 3)}, 0}, // it may hold 7
			"7 are granted by Java":  {"4", []string{negative("aaaaaaaa", -1), memberOf("bbbbbbbb", 7)}, 4},
			"several":                {"2147483655", []string{negative("aaaaaaaa", -7), negative("cccccccc", math.MinInt32), memberOf("bbbbbbbb", 10)}, 0},
			"of Redisson 3.13":       {"11", []string{"\x01\x02\x03\x04\xff\xff\xff\xff"}, 10},
			"of Redisson 3.21":       {"11", []string{"\x100123456789abcdef\xff\xff\xff\xff"}, 10},
			"free permits were lost": {"3", []string{negative("aaaaaaaa", -1), memberOf("bbbbbbbb", 3)}, 3}, // it may hold 4
		} {
			// The first call of a client checks the records.
			for method, first := range map[string]func(*rratelimiter.Limiter) error{
				"AvailablePermits": func(l *rratelimiter.Limiter) error { _, err := l.AvailablePermits(ctx); return err },
				"Allow":            func(l *rratelimiter.Limiter) error { _, err := l.Allow(ctx, 10); return err },
				"AllowAll":         func(l *rratelimiter.Limiter) error { _, err := l.Client().AllowAll(ctx, 10, l); return err },
				"AcquireUpTo":      func(l *rratelimiter.Limiter) error { _, err := l.AcquireUpTo(ctx, 1); return err },
				"Repair":           func(l *rratelimiter.Limiter) error { _, err := l.Repair(ctx); return err },
				"Release":          func(l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 1); return err },
				"SetRate, KeepState": func(l *rratelimiter.Limiter) error {
					return l.SetRate(ctx, rratelimiter.PerHour(10), rratelimiter.KeepState())
				},
			} {
				what := name + ", " + method
				r.wipe()
				l := rratelimiter.NewClient(r.rdb, rratelimiter.WithClock(r.now), patient).RateLimiter("rl")
				r.config(l, "rate", "10", "interval", "2592000000", "type", "0") // 30 days
				if test.value != "" {
					r.set(l, test.value)
				}
				for i, member := range test.records {
					r.add(l, r.ms()-10+int64(i), member)
				}
				for reader, read := range map[string]func() (rratelimiter.State, error){
					"State":  func() (rratelimiter.State, error) { return l.State(ctx) },
					"Glance": func() (rratelimiter.State, error) { s, _, err := l.Glance(ctx); return s, err },
				} {
					if state, err := read(); err != nil || state.Available != test.free {
						t.Errorf("%s: %s says that %d are free, %v; want %d", what, reader, state.Available, err, test.free)
					}
				}
				if err := first(l); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				r.free(l)
				if value, err := r.rdb.Get(ctx, keysOf(l)[keys.Value]).Int64(); err != nil || value < 0 || value > 10 {
					t.Errorf("%s: Redisson sees %d free permits, %v", what, value, err)
				}
				if state := state(t, l); !state.Consistent {
					t.Errorf("%s: the state is then %+v", what, state)
				}
				for _, m := range r.members(l) {
					if m.Member[len(m.Member)-1] >= 0x80 {
						t.Errorf("%s: %q stays", what, m.Member)
					}
				}
			}
		}
	})
}

// A release gives back no permits of such a record, however many others are before it.
func TestAReleaseGivesBackNoPermitsOfANegativeRequest(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.config(l, "rate", "1000", "interval", "2592000000", "type", "0")
		r.free(l) // checks the records
		r.set(l, "701")
		r.add(l, r.ms()-10, many(300)...)
		r.add(l, r.ms(), negative("zzzzzzzz", -1))
		if n := r.release(l, 400); n < 299 || n > 300 {
			t.Errorf("%d of 300 permits came back", n)
		}
		if s := state(t, l); s.Used != 0 || s.Available != 1000 || !s.Consistent {
			t.Errorf("the state is %+v", s)
		}
	})
}

// Under a rate for which so many permits are possible, such a record counts, and if Go has lowered the rate since, too.
func TestLargeRecordsAreRightUnderLargeRates(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, rratelimiter.PerHour(math.MaxUint32))
		if !r.try(l, 3_000_000_000) || r.try(l, 2_000_000_000) || r.free(l) != math.MaxUint32-3_000_000_000 {
			t.Errorf("%d are free of %d after a grant of 3,000,000,000", r.free(l), uint32(math.MaxUint32))
		}
		r.setRate(l, rratelimiter.PerHour(10), rratelimiter.KeepState())
		for range 2 { // the first call of a rate checks the records
			if free := r.free(l); free != 0 || r.try(l, 1) {
				t.Errorf("%d are free after a grant of 3,000,000,000 at a rate of 10 now", free)
			}
		}
		if s := state(t, l); s.Used != 3_000_000_000 || !s.Consistent {
			t.Errorf("the state is %+v", s)
		}
	})
}

// Among more records than one call adds up, too, it loses only the permits of a surplus that is taken out of it.
func TestALargeRecordOfALoweredRateIsNotForgottenAmongMany(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.config(l, "rate", "10", "interval", "2592000000", "type", "0")
		r.set(l, fmt.Sprint(10-3_000_000_000-2100+50))
		r.add(l, r.ms()-10, memberOf("aaaaaaaa", 3_000_000_000))
		r.add(l, r.ms(), many(2100)...)
		r.free(l)
		r.settled(l)
		if s := state(t, l); s.Used != 3_000_000_000+2100-50 || s.Available != 0 || !s.Consistent {
			t.Errorf("the state is %+v", s)
		}
	})
}

// Redisson stores intervals and keep-alives of any number of milliseconds. The longest ones work like other long ones, and
// read as the longest time.Duration in whole milliseconds.
func TestTimesOfRedissonThatNoDurationHolds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, ctx := newRig(t, s), t.Context()
		for _, kind := range []string{"0", "1"} {
			for _, text := range []string{
				"999999999999999", "1000000000000000", "100000000000000000", "1000000000000000000", "9223370000000000000", "9223372036854775807",
			} {
				for _, field := range []string{"interval", "keepAliveTime", "TTL"} {
					what := fmt.Sprintf("%s of %s ms, type %s", field, text, kind)
					r.wipe()
					l := r.limiter("rl")
					r.config(l, "rate", "5", "interval", "60000", "type", kind)
					if field == "TTL" {
						// The embedded server has only TTLs that a time.Duration holds, and Redis none beyond the largest number.
						if !s.IsReal() || text == "9223372036854775807" {
							continue
						}
						r.must(r.rdb.Do(ctx, "pexpire", "rl", text).Err())
					} else {
						r.config(l, field, text)
					}
					ok, err := l.TryAcquire(ctx, 3)
					if !ok || err != nil {
						t.Errorf("%s: TryAcquire: %v, %v", what, ok, err)
					}
					result, err := l.Allow(ctx, 3)
					if result.Allowed || err != nil || result.RetryAfter <= 0 {
						t.Errorf("%s: Allow: %+v, %v", what, result, err)
					}
					if field != "interval" {
						r.must(r.rdb.Get(ctx, keysOf(l)[keys.Value+kindOf(kind)]).Err())
					}
					results, err := r.client.AllowAll(ctx, 1, l, r.limiter("other", rratelimiter.WithRate(rratelimiter.PerHour(5))))
					if err != nil || !results[0].Allowed {
						t.Errorf("%s: AllowAll: %+v, %v", what, results, err)
					}
					if n, err := l.Release(ctx, 1); n != 1 || err != nil {
						t.Errorf("%s: Release: %d, %v", what, n, err)
					}
					want := rratelimiter.Rate{Type: rratelimiter.RateType(kindOf(kind)), Permits: 5, Interval: time.Minute}
					switch field {
					case "interval":
						want.Interval = longestInterval
					case "keepAliveTime":
						want.KeepAlive = longestInterval
					}
					state, err := l.State(ctx)
					if err != nil || state.Rate != want || state.Available != 2 || state.Used != 3 || !state.Consistent {
						t.Errorf("%s: the state is %+v, %v", what, state, err)
					}
					waiting, cancel := context.WithCancel(ctx)
					ended := make(chan error, 1)
					go func() { ended <- l.Acquire(waiting, 3) }()
					soon(t, "the caller waits", func() bool { return rratelimiter.ClientCore(r.client).Look("rl").Waiting == 1 })
					_, err = l.Release(ctx, 1)
					r.must(err)
					if err := <-ended; err != nil {
						t.Errorf("%s: Acquire: %v", what, err)
					}
					cancel()
					for _, keep := range [][]rratelimiter.SetOption{{rratelimiter.KeepState()}, nil} {
						if err := l.SetRate(ctx, rratelimiter.PerMinute(5), keep...); err != nil {
							t.Errorf("%s: SetRate: %v", what, err)
						}
					}
				}
			}
		}
	})
}

func kindOf(text string) int { return int(text[0] - '0') }
