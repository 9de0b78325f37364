package redisson

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// redisson_numbers_test.go: numbers that Redisson can store, and that this library does not:
// records of negative requests, and intervals, keep-alives and TTLs that a time.Duration does not
// hold.

// negative returns the member that Redisson writes for a negative request: its permits are stored
// modulo 2^32.
func negative(id string, permits int64) string { return rig.MemberOf(id, uint32(permits)) }

// Redisson grants a negative request, which takes no permits, and stores a record of it that no
// rate allows. It counts as the permits that it can hold at most, and is replaced by a record of
// these, if there are any.
func TestARecordOfANegativeRequestHoldsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, ctx := rig.New(t, s), t.Context()
		for name, test := range map[string]struct {
			value   string
			records []string
			free    int64
		}{
			"the limiter is full": {"11", []string{negative("aaaaaaaa", -1)}, 10},
			"repaired before":     {"10", []string{negative("aaaaaaaa", -1)}, 10},
			"some is granted":     {"8", []string{negative("aaaaaaaa", -1), rig.MemberOf("bbbbbbbb", 3)}, 8},
			// it may hold 7
			"the value is missing":  {"", []string{negative("aaaaaaaa", -1), rig.MemberOf("bbbbbbbb", 3)}, 0},
			"7 are granted by Java": {"4", []string{negative("aaaaaaaa", -1), rig.MemberOf("bbbbbbbb", 7)}, 4},
			"several": {
				"2147483655",
				[]string{negative("aaaaaaaa", -7), negative("cccccccc", math.MinInt32), rig.MemberOf("bbbbbbbb", 10)},
				0,
			},
			"of Redisson 3.13": {"11", []string{"\x01\x02\x03\x04\xff\xff\xff\xff"}, 10},
			"of Redisson 3.21": {"11", []string{"\x100123456789abcdef\xff\xff\xff\xff"}, 10},
			// it may hold 4
			"free permits were lost": {"3", []string{negative("aaaaaaaa", -1), rig.MemberOf("bbbbbbbb", 3)}, 3},
		} {
			// The first call of a client checks the records.
			for method, first := range map[string]func(*rratelimiter.Limiter) error{
				"AvailablePermits": func(l *rratelimiter.Limiter) error {
					_, err := l.AvailablePermits(ctx)
					return err
				},
				"Allow": func(l *rratelimiter.Limiter) error { _, err := l.Allow(ctx, 10); return err },
				"AllowAll": func(l *rratelimiter.Limiter) error {
					_, err := l.Client().AllowAll(ctx, 10, l)
					return err
				},
				"AcquireUpTo": func(l *rratelimiter.Limiter) error { _, err := l.AcquireUpTo(ctx, 1); return err },
				"Repair":      func(l *rratelimiter.Limiter) error { _, err := l.Repair(ctx); return err },
				"Release":     func(l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 1); return err },
				"SetRate, KeepState": func(l *rratelimiter.Limiter) error {
					return l.SetRate(ctx, rratelimiter.PerHour(10), rratelimiter.KeepState())
				},
			} {
				what := name + ", " + method
				r.Wipe()
				l := rratelimiter.NewClient(r.Redis, rratelimiter.WithClock(r.Now), rig.Patient).RateLimiter("rl")
				r.WriteConfig(l, "rate", "10", "interval", "2592000000", "type", "0") // 30 days
				if test.value != "" {
					r.WriteValue(l, test.value)
				}
				for i, member := range test.records {
					r.AddRecords(l, r.Millis()-10+int64(i), member)
				}
				for reader, read := range map[string]func() (rratelimiter.State, error){
					"State":  func() (rratelimiter.State, error) { return l.State(ctx) },
					"Glance": func() (rratelimiter.State, error) { s, _, err := l.Glance(ctx); return s, err },
				} {
					if state, err := read(); err != nil || state.Available != test.free {
						t.Errorf("%s: %s says that %d are free, %v; want %d",
							what, reader, state.Available, err, test.free)
					}
				}
				if err := first(l); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				r.Free(l)
				if value, err := r.Redis.Get(ctx, rig.Keys(l)[keys.Value]).Int64(); err != nil || value < 0 ||
					value > 10 {
					t.Errorf("%s: Redisson sees %d free permits, %v", what, value, err)
				}
				if state := rig.State(t, l); !state.Consistent {
					t.Errorf("%s: the state is then %+v", what, state)
				}
				for _, m := range r.Members(l) {
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
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.WriteConfig(l, "rate", "1000", "interval", "2592000000", "type", "0")
		r.Free(l) // checks the records
		r.WriteValue(l, "701")
		r.AddRecords(l, r.Millis()-10, rig.ManyMembers(300)...)
		r.AddRecords(l, r.Millis(), negative("zzzzzzzz", -1))
		if n := r.Release(l, 400); n < 299 || n > 300 {
			t.Errorf("%d of 300 permits came back", n)
		}
		if s := rig.State(t, l); s.Used != 0 || s.Available != 1000 || !s.Consistent {
			t.Errorf("the state is %+v", s)
		}
	})
}

// Under a rate for which so many permits are possible, such a record counts, and if Go has lowered
// the rate since, too.
func TestLargeRecordsAreRightUnderLargeRates(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerHour(math.MaxUint32))
		if !r.Try(l, 3_000_000_000) || r.Try(l, 2_000_000_000) || r.Free(l) != math.MaxUint32-3_000_000_000 {
			t.Errorf("%d are free of %d after a grant of 3,000,000,000", r.Free(l), uint32(math.MaxUint32))
		}
		r.SetRate(l, rratelimiter.PerHour(10), rratelimiter.KeepState())
		for range 2 { // the first call of a rate checks the records
			if free := r.Free(l); free != 0 || r.Try(l, 1) {
				t.Errorf("%d are free after a grant of 3,000,000,000 at a rate of 10 now", free)
			}
		}
		if s := rig.State(t, l); s.Used != 3_000_000_000 || !s.Consistent {
			t.Errorf("the state is %+v", s)
		}
	})
}

// Among more records than one call adds up, too, it loses only the permits of a surplus that is
// taken out of it.
func TestALargeRecordOfALoweredRateIsNotForgottenAmongMany(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.WriteConfig(l, "rate", "10", "interval", "2592000000", "type", "0")
		r.WriteValue(l, fmt.Sprint(10-3_000_000_000-2100+50))
		r.AddRecords(l, r.Millis()-10, rig.MemberOf("aaaaaaaa", 3_000_000_000))
		r.AddRecords(l, r.Millis(), rig.ManyMembers(2100)...)
		r.Free(l)
		r.Settled(l)
		if s := rig.State(t, l); s.Used != 3_000_000_000+2100-50 || s.Available != 0 || !s.Consistent {
			t.Errorf("the state is %+v", s)
		}
	})
}

// Redisson stores intervals and keep-alives of any number of milliseconds. The longest ones work
// like other long ones, and read as the longest time.Duration in whole milliseconds.
func TestTimesOfRedissonThatNoDurationHolds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, ctx := rig.New(t, s), t.Context()
		for _, kind := range []string{"0", "1"} {
			for _, text := range []string{
				"999999999999999", "1000000000000000", "100000000000000000", "1000000000000000000",
				"9223370000000000000",
				"9223372036854775807",
			} {
				for _, field := range []string{"interval", "keepAliveTime", "TTL"} {
					what := fmt.Sprintf("%s of %s ms, type %s", field, text, kind)
					r.Wipe()
					l := r.Limiter("rl")
					r.WriteConfig(l, "rate", "5", "interval", "60000", "type", kind)
					if field == "TTL" {
						// The embedded server has only TTLs that a time.Duration holds, and Redis
						// none beyond the largest number.
						if !s.IsReal() || text == "9223372036854775807" {
							continue
						}
						r.Must(r.Redis.Do(ctx, "pexpire", "rl", text).Err())
					} else {
						r.WriteConfig(l, field, text)
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
						r.Must(r.Redis.Get(ctx, rig.Keys(l)[keys.Value+kindOf(kind)]).Err())
					}
					results, err := r.Client.AllowAll(ctx, 1, l,
						r.Limiter("other", rratelimiter.WithRate(rratelimiter.PerHour(5))))
					if err != nil || !results[0].Allowed {
						t.Errorf("%s: AllowAll: %+v, %v", what, results, err)
					}
					if n, err := l.Release(ctx, 1); n != 1 || err != nil {
						t.Errorf("%s: Release: %d, %v", what, n, err)
					}
					want := rratelimiter.Rate{
						Type:     rratelimiter.RateType(kindOf(kind)),
						Permits:  5,
						Interval: time.Minute,
					}
					switch field {
					case "interval":
						want.Interval = rig.LongestInterval
					case "keepAliveTime":
						want.KeepAlive = rig.LongestInterval
					}
					state, err := l.State(ctx)
					if err != nil || state.Rate != want || state.Available != 2 || state.Used != 3 ||
						!state.Consistent {
						t.Errorf("%s: the state is %+v, %v", what, state, err)
					}
					waiting, cancel := context.WithCancel(ctx)
					ended := make(chan error, 1)
					go func() { ended <- l.Acquire(waiting, 3) }()
					rig.Soon(t, "the caller waits", func() bool { return rig.Core(r.Client).Look("rl").Waiting == 1 })
					_, err = l.Release(ctx, 1)
					r.Must(err)
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
