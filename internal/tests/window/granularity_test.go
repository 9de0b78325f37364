package window

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

func TestGranularityDatesGrantsAtTheEndOfTheirBucket(t *testing.T) {
	const d = 40 * time.Millisecond
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, after := range []time.Duration{0, 1, 20, 39} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl", rratelimiter.WithGranularity(d))
			r.SetRate(l, rratelimiter.PerSecond(10))
			r.ToBucket(d, after*time.Millisecond)
			start := r.Millis()
			end := start
			if after > 0 {
				end += d.Milliseconds() - int64(after)
			}
			result, err := l.Allow(t.Context(), 4)
			r.Must(err)
			reset := protocol.Millis(end - start + 1000)
			want := rratelimiter.Result{Allowed: true, Limit: 10, Remaining: 6, NextAfter: reset, ResetAfter: reset}
			if result != want {
				t.Errorf("%d ms into a bucket: %+v, want %+v", after, result, want)
			}
			at := time.UnixMilli(end)
			r.SameState(
				l,
				rratelimiter.State{
					Rate:       rratelimiter.PerSecond(10),
					Available:  6,
					Used:       4,
					Records:    1,
					Oldest:     at,
					Newest:     at,
					Consistent: true,
				},
			)

			// Never early, and no later than the end.
			r.Advance(protocol.Millis(end - start + 999))
			if r.Try(l, 7) {
				t.Errorf("%d ms into a bucket: granted again 1 ms early", after)
			}
			r.Advance(time.Millisecond)
			if !r.Try(l, 10) {
				t.Errorf("%d ms into a bucket: an interval after its end all is not free", after)
			}
		}
	})
}

func TestGranularityJoinsTheGrantsOfABucket(t *testing.T) {
	const d = 100 * time.Millisecond
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, format := range rig.Formats {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl", rratelimiter.WithGranularity(d), rratelimiter.WithRecordFormat(format))
			r.SetRate(l, rratelimiter.PerSecond(1000))
			r.ToBucket(d, 10*time.Millisecond)
			end := r.Millis() + 90
			members, at := 1, []time.Time{time.UnixMilli(end), time.UnixMilli(end)}
			if format == rratelimiter.Redisson313 { // does without
				members, at = 4, []time.Time{r.Now(), r.Now().Add(60 * time.Millisecond)}
			}
			var last string
			for i := range 4 {
				if i == 2 {
					got, err := l.AcquireUpTo(t.Context(), 300)
					if got != 300 || err != nil {
						t.Fatal(got, err)
					}
				} else if i == 3 {
					results, err := r.Client.AllowAll(t.Context(), 2, l)
					if err != nil || !results[0].Allowed {
						t.Fatal(results, err)
					}
				} else if !r.Try(l, 7) {
					t.Fatal("not granted")
				}
				last = r.Prefix(format)
				r.Advance(20 * time.Millisecond)
			}
			r.SameState(l,
				rratelimiter.State{Rate: rratelimiter.PerSecond(1000), Available: 684, Used: 316, Records: members,
					Oldest: at[0], Newest: at[1], Consistent: true})
			if format == rratelimiter.Redisson313 {
				continue
			}
			// The record has the id of the last grant.
			member := r.Members(l)[0].Member
			mine, theirs := binary.BigEndian.Uint16([]byte(last[len(last)-2:])), binary.BigEndian.Uint16(
				[]byte(member[len(member)-6:]),
			)
			if mine-theirs != 1 {
				t.Errorf("%v: the record's id ends in %x, the next id in %x", format, theirs, mine)
			}
			r.Advance(20 * time.Millisecond)
			if !r.Try(l, 1) || len(r.Members(l)) != 2 {
				t.Errorf("%v: the next bucket has %d records beside the first one", format, len(r.Members(l))-1)
			}
		}
	})
}

func TestGranularityByTheServersClock(t *testing.T) {
	const d = time.Second
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.Advance(-20 * 365 * 24 * time.Hour)
		l := r.Limiter(
			"rl", rratelimiter.WithServerTime(), rratelimiter.WithGranularity(d),
			rratelimiter.WithRate(rratelimiter.PerMinute(100)),
		)
		start := time.Now()
		for range 3 {
			r.Try(l, 3)
		}
		results, err := r.Client.AllowAll(t.Context(), 3, l)
		r.Must(err)
		result, err := l.Allow(t.Context(), 3)
		r.Must(err)
		for _, got := range []time.Duration{results[0].ResetAfter, result.ResetAfter} {
			if got < time.Minute || got > time.Minute+d {
				t.Errorf("all is free after %v", got)
			}
		}
		end := time.Now()
		members := r.Members(l)
		var sum int64
		for _, m := range members {
			record, err := rratelimiter.UnpackRecord([]byte(m.Member))
			r.Must(err)
			sum += int64(record.Permits)
			at := time.UnixMilli(int64(m.Score))
			if int64(m.Score)%d.Milliseconds() != 0 || at.Before(start.Truncate(time.Millisecond)) ||
				at.After(end.Add(d)) {
				t.Errorf("a record is dated %v", at)
			}
		}
		if buckets := int(end.Sub(start)/d) + 2; sum != 15 || len(members) > buckets {
			t.Errorf("%d permits in %d records of at most %d buckets", sum, len(members), buckets)
		}
	})
}

// TestGranularityJoinsOnlyOwnRecords has records of all sorts in the same bucket.
func TestGranularityJoinsOnlyOwnRecords(t *testing.T) {
	const d = 50 * time.Millisecond
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, format := range rig.Formats[1:] {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl", rratelimiter.WithGranularity(d), rratelimiter.WithRecordFormat(format))
			other := r.Beside("other")
			r.SetRate(l, rratelimiter.PerSecond(1000))
			r.ToBucket(d, 3*time.Millisecond)
			end := r.Millis() + 47
			own := r.Prefix(format)
			foreign := []string{
				rig.MemberOf("12345678", 5), "\x10" + strings.Repeat("j", 16) + "\x02\x00\x00\x00",
				"\xf4\x1e\x87\x5c\x02\x00\x00\x00",
				"", "abc", own[:len(own)-2] + "\x03\x00\x00\x00", own + "\x00\x01\x00\x00\x00",
				strings.Repeat("\x00", len(own)+4),
			}
			r.AddRecords(l, end, foreign...)
			r.AddRecords(l, end+50, own+"\x05\x00\x00\x00") // of the next bucket
			r.AddRecords(l, end-50, own+"\x06\x00\x00\x00")
			r.Must(r.Redis.Del(t.Context(), rig.Keys(l)[keys.Value]).Err())
			r.Free(l)
			before := r.Members(l)
			theirs := other.Limiter("rl", rratelimiter.WithGranularity(d), rratelimiter.WithRecordFormat(format))
			for range 3 {
				if !r.Try(l, 2) || !other.Try(theirs, 3) {
					t.Fatal("not granted")
				}
			}
			var added []int64
			for _, m := range r.Members(l) {
				if !slices.Contains(before, m) {
					got, err := rratelimiter.UnpackRecord([]byte(m.Member))
					r.Must(err)
					added = append(added, int64(got.Permits))
				}
			}
			slices.Sort(added)
			if !slices.Equal(added, []int64{6, 9}) || len(r.Members(l)) != len(before)+2 {
				t.Errorf("%v: beside %d records, two clients wrote such of %v", format, len(before), added)
			}
		}
	})
}

// A batch beside one that has stalled joins no record: the retry of that one must find its own.
func TestGranularityOfABatchBesideAStalledOne(t *testing.T) {
	const d = 100 * time.Millisecond
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithGranularity(d))
		r.SetRate(l, rratelimiter.PerSecond(10))
		r.ToBucket(d, 10*time.Millisecond)
		r.Try(l, 3)
		_, err := rig.OneCall(t.Context(), l, protocol.BatchAsk{Groups: rig.Groups(2, 1), Apart: true})
		r.Must(err)
		if state := rig.State(t, l); state.Used != 5 || state.Records != 2 || !state.Oldest.Equal(state.Newest) {
			t.Errorf("%+v", state)
		}
	})
}

func TestGranularityBoundsTheRecords(t *testing.T) {
	rig.Long(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for _, d := range []time.Duration{2 * time.Millisecond, 7 * time.Millisecond, 100 * time.Millisecond} {
			const rate = 500
			r := rig.New(t, s)
			r.Wipe()
			others := r.Beside("other")
			l := r.Limiter("rl", rratelimiter.WithGranularity(d))
			limiters := []*rratelimiter.Limiter{
				l, l, others.Limiter("rl", rratelimiter.WithGranularity(2*time.Millisecond)), others.Limiter("rl"),
			}
			r.SetRate(l, rratelimiter.PerSecond(rate))
			var grants []window.Grant
			tag := r.Prefix(rratelimiter.Redisson317)[3:6]
			tries := 1500
			if !s.IsReal() {
				tries = 600 // it takes ten times as long for each
			}
			for range tries {
				r.Advance(time.Duration(random.IntN(5)) * time.Millisecond)
				n := 1 + random.Int64N(4)
				ok := r.Try(limiters[random.IntN(len(limiters))], n)
				if ok {
					grants = append(grants, window.Grant{Permits: n, Start: r.Now(), End: r.Now()})
				}
				if random.IntN(20) > 0 {
					continue
				}
				state, err := l.State(t.Context())
				if err != nil || !state.Consistent {
					t.Fatalf("%+v, %v", state, err)
				}
				var live, own int
				for _, m := range r.Members(l) {
					if m.Score > float64(r.Millis()-1000) {
						live++
						if strings.Contains(m.Member, "Go"+tag) {
							own++
						}
					}
				}
				if most := int(time.Second/d) + 2; own > most {
					t.Fatalf("with %v, %d records of one client live, at most %d may", d, own, most)
				}
			}
			if most, at := window.Largest(grants, time.Second); most > rate {
				t.Errorf("with %v, %d permits in the second from %v", d, most, at)
			}
			if len(grants) < tries/5 {
				t.Errorf("with %v, %d grants in %d tries", d, len(grants), tries)
			}
		}
	})
}

// TestGranularityReturnsExactWaits checks that permits are free at RetryAfter and not before, with
// records of clients with other buckets.
func TestGranularityReturnsExactWaits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range 40 {
			const rate = 20
			r := rig.New(t, s)
			r.Wipe()
			var limiters []*rratelimiter.Limiter
			for i, d := range []time.Duration{100 * time.Millisecond, 30 * time.Millisecond, time.Millisecond} {
				c := r.Beside(fmt.Sprint(i))
				limiters = append(limiters, c.Limiter("rl", rratelimiter.WithGranularity(d)))
			}
			r.SetRate(limiters[0], rratelimiter.PerSecond(rate))
			for r.Try(limiters[random.IntN(len(limiters))], 1+random.Int64N(5)) {
				r.Advance(time.Duration(random.IntN(60)) * time.Millisecond)
			}
			l, n := limiters[random.IntN(len(limiters))], 1+random.Int64N(rate)
			for {
				got, err := l.Allow(t.Context(), n)
				r.Must(err)
				if got.Allowed {
					n = rate
					continue
				}
				state, err := l.State(t.Context())
				r.Must(err)
				if reset := state.Newest.Sub(r.Now()) + time.Second; got.ResetAfter != reset {
					t.Errorf("all is free after %v, want %v", got.ResetAfter, reset)
				}
				r.Advance(got.RetryAfter - time.Millisecond)
				if r.Try(l, n) {
					t.Errorf("%d permits were free before %v", n, got.RetryAfter)
				}
				r.Advance(time.Millisecond)
				if !r.Try(l, n) {
					t.Errorf("%d permits were not free after %v", n, got.RetryAfter)
				}
				break
			}
		}
	})
}

// TestGranularityCountsItsOwnGrantInItsPlace: a call that grants some requests and refuses others
// returns when the refused permits are free, also if another client's record expires after the one
// that it writes.
func TestGranularityCountsItsOwnGrantInItsPlace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		other := r.Beside("other")
		l, coarse := r.Limiter("rl", rratelimiter.WithGranularity(10*time.Millisecond)),
			other.Limiter("rl", rratelimiter.WithGranularity(100*time.Millisecond))
		r.SetRate(l, rratelimiter.PerSecond(10))
		r.ToBucket(100*time.Millisecond, 5*time.Millisecond)
		other.Try(coarse, 4) // back after 1095 ms
		g, err := rig.OneCall(t.Context(), l, protocol.BatchAsk{Groups: rig.Groups(5, 1, 3, 1, 7, 1), Detail: true})
		r.Must(err)
		if g.Granted(0, protocol.Group{}) != 1 || g.Wait(1) != 1005*time.Millisecond ||
			g.Wait(2) != 1095*time.Millisecond ||
			g.First.ResetAfter != 1095*time.Millisecond || g.First.At != g.First.Now+5000 {
			t.Errorf("%+v", g)
		}

		// If its permits return last, all requests wait for them.
		r.Advance(200 * time.Millisecond)
		g, err = rig.OneCall(t.Context(), l, protocol.BatchAsk{Groups: rig.Groups(1, 1, 9, 1, 10, 1), Detail: true})
		r.Must(err)
		if g.Granted(0, protocol.Group{}) != 1 || g.Wait(1) != 895*time.Millisecond ||
			g.Wait(2) != 1005*time.Millisecond ||
			g.First.ResetAfter != 1005*time.Millisecond {
			t.Errorf("%+v", g)
		}
	})
}

func TestGranularityAndRelease(t *testing.T) {
	const d = 100 * time.Millisecond
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithGranularity(d))
		r.SetRate(l, rratelimiter.PerSecond(100))
		r.ToBucket(d, 20*time.Millisecond)
		first := time.UnixMilli(r.Millis() + 80)
		r.Try(l, 30)
		r.Try(l, 10)
		r.Advance(d)
		r.Try(l, 20)
		state := rratelimiter.State{
			Rate:      rratelimiter.PerSecond(100),
			Available: 70,
			Used:      30,
			Records:   2,
			Oldest:    first,
			Newest:    first.Add(d), Consistent: true,
		}
		if back := r.Release(l, 30); back != 30 {
			t.Errorf("%d came back", back)
		}
		r.SameState(l, state)
		if back := r.Release(l, 15); back != 15 {
			t.Errorf("%d came back", back)
		}
		state.Available, state.Used, state.Records, state.Oldest = 85, 15, 1, first.Add(d)
		r.SameState(l, state)
		r.Try(l, 5) // into the rest of its bucket
		state.Available, state.Used = 80, 20
		r.SameState(l, state)
		if back := r.Release(l, 99); back != 20 || r.Free(l) != 100 {
			t.Errorf("%d came back, %d are free", back, r.Free(l))
		}
	})
}

// TestGranularityIsClampedToTheRateInForce sets rates whose intervals are too short for the
// granularity.
func TestGranularityIsClampedToTheRateInForce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, test := range []struct{ interval, bucket int64 }{
			{60000, 1000}, {10000, 1000}, {9999, 999}, {1000, 100}, {25, 2}, {19, 1}, {10, 1}, {9, 1}, {1, 1},
		} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl", rratelimiter.WithGranularity(time.Second))
			r.SetRate(l, rratelimiter.Rate{Permits: 50, Interval: protocol.Millis(test.interval)})
			r.ToBucket(protocol.Millis(test.bucket), time.Millisecond%protocol.Millis(test.bucket))
			want := (r.Millis() + test.bucket - 1) / test.bucket * test.bucket
			if !r.Try(l, 2) {
				t.Fatal("not granted")
			}
			members := r.Members(l)
			if len(members) != 1 || int64(members[0].Score) != want {
				t.Errorf("an interval of %d ms: %v at %d, want a record at %d",
					test.interval, members, r.Millis(), want)
			}
			results, err := r.Client.AllowAll(t.Context(), 3, l)
			if err != nil || !results[0].Allowed ||
				results[0].ResetAfter != protocol.Millis(want-r.Millis()+test.interval) {
				t.Errorf("an interval of %d ms: %+v, %v", test.interval, results, err)
			}
		}
	})
}

func TestGranularityWithMoreThanARecordHolds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl", rratelimiter.WithGranularity(time.Second))
		r.WriteConfig(l, "rate", "1000000000000000", "interval", "60000", "type", "0")
		r.ToBucket(time.Second, 10*time.Millisecond)
		for _, n := range []int64{3_000_000_000, 1_294_967_295, 1, 9_000_000_000, 2_000_000_000} {
			if !r.Try(l, n) {
				t.Fatalf("%d were not granted", n)
			}
		}
		for range 20 {
			r.Try(l, 1)
		}
		const used = 15_294_967_316
		at := time.UnixMilli(r.Millis() + 990)
		state, err := l.State(t.Context())
		r.Must(err)
		if state.Used != used || !state.Consistent || state.Records < 4 || state.Records > 5 ||
			!state.Oldest.Equal(at) {
			t.Errorf("%+v", state)
		}
		full := false
		for _, m := range r.Members(l) {
			full = full || strings.HasSuffix(m.Member, "\xff\xff\xff\xff")
		}
		if !full {
			t.Errorf("no record holds %d", uint32(math.MaxUint32))
		}
		r.Advance(time.Minute + time.Second)
		if free := r.Free(l); free != 1e15 {
			t.Errorf("%d are free at last", free)
		}
	})
}

func TestGranularityWakesWaitersAtTheEndOfABucket(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithGranularity(100*ms))
		b.SleepTo(20 * ms)
		b.Granted("6 of 10", b.Acquire(l, 6), 20*ms)
		b.SleepTo(150 * ms)
		b.Granted("4 more", b.Acquire(l, 4), 150*ms)
		first, second := b.Acquire(l, 6), b.Acquire(l, 4)
		b.SleepTo(1200 * ms)
		b.Granted("the caller that needs the first grants back", first, 1100*ms)
		b.Granted("the caller that needs the others, too", second, 1200*ms)
		if calls := p.Wire.Calls(); calls > 8 {
			t.Errorf("that took %d calls", calls)
		}
	})
}

func TestGranularityHoldsAMillionPermitsInLittleMemory(t *testing.T) {
	const permits, grants, parts = 1_000_000, 5000, 1000
	s := redistest.Real(t)
	r := rig.New(t, s)
	l := r.Limiter("rl", rratelimiter.WithGranularity(time.Hour/parts))
	r.SetRate(l, rratelimiter.PerHour(permits))
	r.ToBucket(time.Hour/parts, 0)
	for range grants {
		r.Advance(time.Hour / grants)
		if !r.Try(l, permits/grants) {
			t.Fatal("not granted")
		}
	}
	bytes, err := r.Redis.MemoryUsage(t.Context(), rig.Keys(l)[keys.Permits], 0).Result()
	r.Must(err)
	state, err := l.State(t.Context())
	r.Must(err)
	t.Logf("%d permits in %d records take %d bytes", state.Used, state.Records, bytes)
	if state.Used != permits || state.Records > parts+2 || bytes > 200_000 {
		t.Errorf("%+v in %d bytes", state, bytes)
	}
}

func TestGranularityAndOptionsThatDontGoTogether(t *testing.T) {
	d, each := rratelimiter.WithGranularity(time.Second), rratelimiter.WithRecordPerRequest()
	closed := redis.NewClient(&redis.Options{})
	closed.Close()
	tests := map[string]struct {
		defaults, options []rratelimiter.LimiterOption
		wrong             bool
	}{
		"alone":                         {nil, []rratelimiter.LimiterOption{d}, false},
		"a record per request":          {nil, []rratelimiter.LimiterOption{d, each}, true},
		"a record per request, first":   {nil, []rratelimiter.LimiterOption{each, d}, true},
		"a record per request, default": {[]rratelimiter.LimiterOption{each}, []rratelimiter.LimiterOption{d}, true},
		"both defaults":                 {[]rratelimiter.LimiterOption{d, each}, nil, true},
		"granularity as default":        {[]rratelimiter.LimiterOption{d}, []rratelimiter.LimiterOption{each}, true},
		"a tenth of the own rate": {nil, []rratelimiter.LimiterOption{d,
			rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: 10 * time.Second})}, false},
		"more than a tenth": {nil, []rratelimiter.LimiterOption{d,
			rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: 9999 * time.Millisecond})}, true},
		"more than a tenth, enforced": {
			nil, []rratelimiter.LimiterOption{rratelimiter.WithEnforcedRate(rratelimiter.PerSecond(1)), d}, true,
		},
		"more than a tenth, default": {[]rratelimiter.LimiterOption{rratelimiter.WithRate(rratelimiter.PerSecond(1))},
			[]rratelimiter.LimiterOption{d}, true},
		"a finer one over a default": {[]rratelimiter.LimiterOption{d},
			[]rratelimiter.LimiterOption{
				rratelimiter.WithRate(rratelimiter.PerSecond(1)), rratelimiter.WithGranularity(time.Millisecond),
			}, false},
	}
	for name, test := range tests {
		l := rratelimiter.NewClient(closed, rratelimiter.WithLimiterDefaults(test.defaults...)).
			RateLimiter("rl", test.options...)
		if _, err := l.Exists(t.Context()); errors.Is(err, rratelimiter.ErrInvalidOption) != test.wrong ||
			errors.Is(err, redis.ErrClosed) == test.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Local grants, which have no record, do not make a client forget the records of the grants before
// them: a later call that is lost is not confused by these.
func TestLocalGrantsHaveNoRecord(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.PerMinute(100)), rratelimiter.WithGranularity(6*time.Second),
			rratelimiter.WithFallback(1),
		)
		b.SleepTo(10 * ms)
		b.Granted("by Redis", b.Try(l, 1), 10*ms)
		mend := p.Wire.Fail(rig.ErrRefused)
		for range 8 {
			b.Granted("locally", b.Try(l, 1), 10*ms)
		}
		mend()
		b.SleepTo(2 * time.Second)
		p.Wire.Lost.Store(true)
		if ok, err := l.TryAcquire(t.Context(), 3); !ok || err != nil {
			t.Errorf("the call whose first attempt is lost: %v, %v", ok, err)
		}
		if used := rig.State(t, l).Used; used != 4 || p.Wire.Lost.Load() {
			t.Errorf("%d permits are used", used)
		}
	})
}
