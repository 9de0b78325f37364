package window

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// grant_test.go tests which requests are granted, when permits return, and how expired records are
// removed.

func TestExactlyTheRateIsGranted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10))
		before := r.Dump()
		for name, call := range map[string]func() error{
			"TryAcquire":        func() error { _, err := l.TryAcquire(t.Context(), 11); return err },
			"Allow":             func() error { _, err := l.Allow(t.Context(), math.MaxInt64); return err },
			"Acquire":           func() error { return l.Acquire(t.Context(), 11) },
			"TryAcquireTimeout": func() error { _, err := l.TryAcquireTimeout(t.Context(), 11, time.Hour); return err },
			"AllowAll":          func() error { _, err := r.Client.AllowAll(t.Context(), 11, l); return err },
		} {
			if err := call(); !errors.Is(err, rratelimiter.ErrExceedsRate) ||
				errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s of more than the rate: %v", name, err)
			}
		}
		// the first call wrote it: all free, as without it
		r.Must(r.Redis.Del(t.Context(), rig.Keys(l)[keys.Value]).Err())
		r.Unchanged(before, "asking for more than the rate")
		if !r.Try(l, 10) || r.Try(l, 1) {
			t.Error("not exactly ten were granted at once")
		}
		r.Advance(time.Minute)
		for i := range 10 {
			if !r.Try(l, 1) {
				t.Errorf("permit %d was not granted", i+1)
			}
		}
		if r.Try(l, 1) {
			t.Error("eleven were granted")
		}
		r.SameState(
			l,
			rratelimiter.State{
				Rate:       rratelimiter.PerMinute(10),
				Used:       10,
				Records:    10,
				Oldest:     r.Now(),
				Newest:     r.Now(),
				Consistent: true,
			},
		)
	})
}

func TestPermitsReturnAfterExactlyOneInterval(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, rate := range []rratelimiter.Rate{
			rratelimiter.PerSecond(3),
			{Type: rratelimiter.PerClient, Permits: 3, Interval: 250 * time.Millisecond},
			{Permits: 3, Interval: time.Millisecond},
		} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			r.SetRate(l, rate)
			for range 3 {
				if !r.Try(l, 3) {
					t.Fatalf("%v: not granted when the interval was over", rate)
				}
				granted := r.Now()
				r.Advance(rate.Interval - time.Millisecond)
				r.SameState(
					l, rratelimiter.State{
						Rate:       rate,
						Used:       3,
						Records:    1,
						Oldest:     granted,
						Newest:     granted,
						Consistent: true,
					},
				)
				result, err := l.Allow(t.Context(), 1)
				r.Must(err)
				if want := (rratelimiter.Result{
					Limit:      3,
					RetryAfter: time.Millisecond,
					NextAfter:  time.Millisecond,
					ResetAfter: time.Millisecond,
				}); result != want {
					t.Errorf("%v: one ms before: %+v, want %+v", rate, result, want)
				}
				r.Advance(time.Millisecond)
				r.SameState(l, rratelimiter.State{Rate: rate, Available: 3, Consistent: true})
			}
		}
	})
}

func TestRefusalsReturnWhenPermitsAreFree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10))
		for range 5 {
			r.Try(l, 2)
			r.Advance(time.Second)
		}
		for n, want := range map[int64]time.Duration{1: 55, 2: 55, 3: 56, 6: 57, 10: 59} {
			result, err := l.Allow(t.Context(), n)
			r.Must(err)
			if want := (rratelimiter.Result{
				Limit:      10,
				RetryAfter: want * time.Second,
				NextAfter:  55 * time.Second,
				ResetAfter: 59 * time.Second,
			}); result != want {
				t.Errorf("%d permits: %+v, want %+v", n, result, want)
			}
		}
		// Beyond 512 records the time is a lower bound, but still positive.
		r.Wipe()
		r.WriteConfig(l, "rate", "600", "interval", "60000", "type", "0")
		r.WriteValue(l, "0")
		for i, member := range rig.ManyMembers(600) {
			r.AddRecords(l, r.Millis()-59000+int64(i)*10, member)
		}
		for n, want := range map[int64]time.Duration{1: 1000, 512: 6110, 600: 6110} {
			result, err := l.Allow(t.Context(), n)
			r.Must(err)
			if want := (rratelimiter.Result{
				Limit:      600,
				RetryAfter: want * time.Millisecond,
				NextAfter:  time.Second,
				ResetAfter: 6990 * time.Millisecond,
			}); result != want {
				t.Errorf("%d of 600 permits: %+v, want %+v", n, result, want)
			}
		}
	})
}

// expiredValues are values of the free permits beside n expired records of one permit each.
var expiredValues = map[string]func(n int) string{
	"value fine":    func(int) string { return "0" },
	"value missing": func(int) string { return "" },
	"value drifted": func(n int) string { return fmt.Sprint(n - 100) },
}

func TestExpiredRecordsLeaveInBatches(t *testing.T) {
	rig.Long(t)
	const n = 5000
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, value := range expiredValues {
			for _, live := range []int64{0, 10} {
				t.Run(fmt.Sprintf("%s, %d live", name, live), func(t *testing.T) {
					r := rig.New(t, s)
					l := r.Limiter("rl")
					prepare := func() {
						r.Wipe()
						r.Calls.Store(0)
						r.WriteConfig(l, "rate", fmt.Sprint(n+live), "interval", "60000", "type", "0")
						if v := value(n); v != "" {
							r.WriteValue(l, v)
						}
						r.AddRecords(l, r.Millis()-60000, rig.ManyMembers(n)...)
						if live > 0 {
							r.AddRecords(l, r.Millis()-1000, rig.MemberOf("living01", uint32(live)))
						}
					}
					ends := rratelimiter.State{
						Rate:       rratelimiter.PerMinute(n + live),
						Available:  n,
						Used:       live,
						Consistent: true,
					}
					if live > 0 {
						ends.Records, ends.Oldest, ends.Newest = 1, r.Now().Add(-time.Second), r.Now().Add(-time.Second)
					}

					prepare()
					if !r.Try(l, n) {
						t.Errorf("%d permits were not granted", n)
					}
					if calls := r.Calls.Load(); calls < 3 || calls > 5 {
						t.Errorf("that took %d calls, with 2000 records each", calls)
					}
					prepare()
					if live > 0 && r.Try(l, n+1) {
						t.Errorf("more than %d permits were granted", n)
					}
					for method, call := range map[string]func() (int64, error){
						"AvailablePermits": func() (int64, error) { return l.AvailablePermits(t.Context()) },
						"Release":          func() (int64, error) { return l.Release(t.Context(), 1) },
						"AcquireUpTo":      func() (int64, error) { return l.AcquireUpTo(t.Context(), n+1000) },
						"SetRate": func() (int64, error) {
							return 0, l.SetRate(t.Context(), rratelimiter.PerMinute(n+live), rratelimiter.KeepState())
						},
						"AllowAll": func() (int64, error) {
							results, err := r.Client.AllowAll(t.Context(), n, l)
							if err == nil && !results[0].Allowed {
								err = errors.New("not allowed")
							}
							return 0, err
						},
					} {
						prepare()
						got, err := call()
						if err != nil {
							t.Errorf("%s: %v", method, err)
						}
						switch method {
						case "AvailablePermits":
							if got != n {
								t.Errorf("%d permits are free, want %d", got, n)
							}
							r.SameState(l, ends)
						case "SetRate":
							r.SameState(l, ends)
						case "Release":
							if got != min(live, 1) {
								t.Errorf("%d permits came back", got)
							}
						case "AcquireUpTo":
							if got < 1 || got > n {
								t.Errorf("%d permits were granted, want 1 to %d", got, n)
							}
						case "AllowAll":
							if free := r.Free(l); free != 0 {
								t.Errorf("%d permits are free", free)
							}
						}
					}

					// A call stops removing records as soon as enough permits are free.
					prepare()
					if !r.Try(l, 1) {
						t.Error("one permit was not granted")
					}
					if calls := r.Calls.Load(); name == "value fine" && calls != 1 {
						t.Errorf("one permit took %d calls", calls)
					}
					if left := len(r.Members(l)); name == "value fine" && left != n-2000+1+int(min(live, 1)) {
						t.Errorf("%d records are left after one call", left)
					}
				})
			}
		}
	})
}

// TestManyExpiredRecordsDontBlockRedis counts the calls that remove them, and measures the scripts:
// one that reads all records takes a tenth of a second.
func TestManyExpiredRecordsDontBlockRedis(t *testing.T) {
	const n = 200_000
	s := redistest.Real(t)
	r := rig.New(t, s)
	ctx := t.Context()
	l := r.Limiter("rl")
	old := r.Millis() - 60000
	for from := 0; from < n; from += 10_000 {
		r.Must(r.Redis.Eval(ctx, `
			for i = ARGV[2], ARGV[2] + 9999 do
				redis.call('ZADD', KEYS[1], ARGV[1] - i % 1000, '\8' .. string.format('%08d', i) .. '\1\0\0\0')
			end
			return 1`, []string{"seed"}, old, from).Err())
	}
	r.Must(r.Redis.ConfigSet(ctx, "slowlog-max-len", "10000").Err())
	// so that the server knows the script
	r.Try(r.Limiter("other", rratelimiter.WithRate(rratelimiter.PerSecond(1))), 1)
	for name, value := range expiredValues {
		r.Must(r.Redis.Copy(ctx, "seed", rig.Keys(l)[keys.Permits], 0, true).Err())
		r.Must(r.Redis.Del(ctx, rig.Keys(l)[keys.Value]).Err())
		r.WriteConfig(l, "rate", fmt.Sprint(n), "interval", "60000", "type", "0")
		if v := value(n); v != "" {
			r.WriteValue(l, v)
		}
		r.Calls.Store(0)
		r.Must(r.Redis.ConfigSet(ctx, "slowlog-log-slower-than", "20000").Err())
		r.Must(r.Redis.Do(ctx, "slowlog", "reset").Err())
		if !r.Try(l, 1) {
			t.Errorf("%s: one permit was not granted", name)
		}
		first := r.Calls.Load()
		if !r.Try(l, n-1) || r.Try(l, 1) {
			t.Errorf("%s: not exactly %d permits were granted", name, n)
		}
		slow, err := r.Redis.SlowLogGet(ctx, -1).Result()
		r.Must(err)
		r.Must(r.Redis.ConfigSet(ctx, "slowlog-log-slower-than", "-1").Err())
		var over int
		var worst time.Duration
		for _, entry := range slow {
			if strings.HasPrefix(entry.Args[0], "eval") {
				over++
				worst = max(worst, entry.Duration)
			}
		}
		t.Logf(
			"%s: %d calls for one permit, %d in all, %d slower than 20 ms, slowest %v", name, first, r.Calls.Load(),
			over, worst,
		)
		// A busy machine may stop any script for a while, but not half of a hundred.
		if limit := int(r.Calls.Load()) / 2; over > limit {
			t.Errorf("%s: %d of %d scripts took longer than 20 ms, the slowest %v", name, over, r.Calls.Load(), worst)
		}
		if fewest := map[bool]int64{true: 1, false: n / 2000}[name == "value fine"]; first != fewest {
			t.Errorf("%s: one permit took %d calls, not %d", name, first, fewest)
		}
		r.SameState(
			l,
			rratelimiter.State{
				Rate:       rratelimiter.PerMinute(n),
				Used:       n,
				Records:    2,
				Oldest:     r.Now(),
				Newest:     r.Now(),
				Consistent: true,
			},
		)
	}
}

func TestARecordHoldsNoMoreThanFourBytes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, rate := range []string{"1000000000000000000", "9223372036854775807", "1000000000000000"} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			const most = 1_000_000_000_000_000
			r.WriteConfig(l, "rate", rate, "interval", "60000", "type", "0")
			if got, err := l.AcquireUpTo(t.Context(), 10_000_000_000); got != 10_000_000_000 || err != nil {
				t.Fatal(got, err)
			}
			want := rratelimiter.State{
				Rate: rratelimiter.PerMinute(most), Available: most - 10_000_000_000, Used: 10_000_000_000, Records: 3,
				Oldest: r.Now(), Newest: r.Now(), Consistent: true,
			}
			r.SameState(l, want)
			var sizes []uint32
			ids := map[string]bool{}
			for _, m := range r.Members(l) {
				got, err := rratelimiter.UnpackRecord([]byte(m.Member))
				r.Must(err)
				sizes = append(sizes, got.Permits)
				ids[string(got.ID)] = true
			}
			slices.Sort(sizes)
			if !slices.Equal(sizes, []uint32{1410065410, math.MaxUint32, math.MaxUint32}) || len(ids) != 3 {
				t.Errorf("the records have %v permits and %d ids", sizes, len(ids))
			}
			if !r.Try(l, 5_000_000_000) {
				t.Error("TryAcquire of more than a record holds")
			}
			if back := r.Release(l, 9_000_000_000); back != 9_000_000_000 {
				t.Errorf("%d came back", back)
			}
			if got := r.Free(l); got != most-6_000_000_000 {
				t.Errorf("%d are free", got)
			}
			results, err := r.Client.AllowAll(t.Context(), 6_000_000_000, l)
			if err != nil || !results[0].Allowed || results[0].Remaining != most-12_000_000_000 {
				t.Errorf("AllowAll: %+v, %v", results, err)
			}
			for _, n := range []int64{most + 1, math.MaxInt64} {
				if _, err := l.TryAcquire(t.Context(), n); !errors.Is(err, rratelimiter.ErrExceedsRate) {
					t.Errorf("%d permits: %v, want ErrExceedsRate", n, err)
				}
			}
			r.Advance(time.Minute)
			r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(most), Available: most, Consistent: true})
			if got := r.Free(l); got != most {
				t.Errorf("%d are free once all expired", got)
			}
		}
	})
}

// TestAFullValueOfTheLargestRateIsNoGarbage checks that the script accepts the value that it wrote
// itself.
func TestAFullValueOfTheLargestRateIsNoGarbage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var seen rig.Log
		r := rig.New(t, s, rratelimiter.WithObserver(&seen))
		l := r.Limiter("rl")
		r.WriteConfig(l, "rate", "1000000000000000", "interval", "60000", "type", "0")
		r.Free(l)
		r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(1e15), Available: 1e15, Consistent: true})
		if r.Try(l, 1); seen.Last(t, 1).Repaired != "" {
			t.Errorf("repaired: %q", seen.Last(t, 1).Repaired)
		}
	})
}
