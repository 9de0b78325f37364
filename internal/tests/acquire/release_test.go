package acquire

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// release_test.go tests Release.

func TestReleaseGivesBackTheOldestFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, f := range rig.Formats {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl", rratelimiter.WithRecordFormat(f))
			r.SetRate(l, rratelimiter.PerMinute(20))
			for _, n := range []int64{3, 4, 5} {
				r.Try(l, n)
				r.Advance(time.Second)
			}
			records := r.Members(l)
			start := r.Now().Add(-3 * time.Second)
			if back := r.Release(l, 5); back != 5 {
				t.Errorf("%d came back, want 5", back)
			}
			r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 13, Used: 7, Records: 2,
				Oldest: start.Add(time.Second), Newest: start.Add(2 * time.Second), Consistent: true})
			shrunk := records[1].Member[:len(records[1].Member)-4] + "\x02\x00\x00\x00"
			if got, want := r.Members(l),
				[]rig.Stored{{Member: shrunk, Score: records[1].Score}, records[2]}; !slices.Equal(
				got, want,
			) {
				t.Errorf("%v: the records are %x, want %x", f, got, want)
			}
			if back := r.Release(l, 100); back != 7 {
				t.Errorf("%d came back of 7", back)
			}
			r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 20, Consistent: true})
			if back := r.Release(l, 1); back != 0 {
				t.Errorf("%d came back of none", back)
			}
		}

		// Permits that still count are never dated earlier than their grants.
		r := rig.New(t, s)
		r.Wipe()
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerSecond(10))
		r.Try(l, 5)
		r.Advance(900 * time.Millisecond)
		r.Try(l, 5)
		r.Advance(50 * time.Millisecond)
		r.Release(l, 5)
		r.Advance(50 * time.Millisecond)
		if !r.Try(l, 5) || r.Try(l, 1) {
			t.Error("five used at 900 ms, five released: at 1000 ms not exactly five are free")
		}

		// Expired permits do not return twice.
		r.Advance(time.Second)
		if back := r.Release(l, 3); back != 0 {
			t.Errorf("%d came back of what had expired", back)
		}
		r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerSecond(10), Available: 10, Consistent: true})
	})
}

func TestReleaseOfManyRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.WriteConfig(l, "rate", "10000", "interval", "60000", "type", "0")
		r.WriteValue(l, "0")
		r.AddRecords(l, r.Millis(), rig.ManyMembers(10000)...)
		if back := r.Release(l, 9998); back != 9998 {
			t.Errorf("%d came back", back)
		}
		r.SameState(
			l,
			rratelimiter.State{
				Rate:      rratelimiter.PerMinute(10000),
				Available: 9998,
				Used:      2,
				Records:   2,
				Oldest:    r.Now(),
				Newest:    r.Now(), Consistent: true,
			},
		)
		if back := r.Release(l, math.MaxInt64); back != 2 {
			t.Errorf("%d came back", back)
		}
		r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(10000), Available: 10000, Consistent: true})
	})
}

// TestAShrunkRecordKeepsOtherRecords has another record with the same bytes that the shrunk record
// would have.
func TestAShrunkRecordKeepsOtherRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, prefix := range []string{
			"\x0812345678", "\x08\xff\xff\xff\xff\xff\xff\xff\xff", "abcd", "ab", "a\xff", "\xff", "a", "",
		} {
			r := rig.New(t, s, rratelimiter.WithCallTimeout(3*time.Second))
			r.Wipe()
			l := r.Limiter("rl")
			r.WriteConfig(l, "rate", "20", "interval", "60000", "type", "0")
			r.WriteValue(l, "12")
			r.AddRecords(l, r.Millis()-2000, prefix+"\x05\x00\x00\x00")
			r.AddRecords(l, r.Millis()-1000, prefix+"\x03\x00\x00\x00")
			if back, err := l.Release(t.Context(), 2); back != 2 || err != nil {
				t.Fatalf("%x: released %d, %v", prefix, back, err)
			}
			r.SameState(l, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 14, Used: 6, Records: 2,
				Oldest: r.Now().Add(-2 * time.Second), Newest: r.Now().Add(-time.Second), Consistent: true})
		}
	})
}
