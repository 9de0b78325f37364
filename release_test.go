package rratelimiter_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// release_test.go tests Release.

func TestReleaseGivesBackTheOldestFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, f := range formats {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl", rratelimiter.WithRecordFormat(f))
			r.setRate(l, rratelimiter.PerMinute(20))
			for _, n := range []int64{3, 4, 5} {
				r.try(l, n)
				r.advance(time.Second)
			}
			records := r.members(l)
			start := r.now().Add(-3 * time.Second)
			if back := r.release(l, 5); back != 5 {
				t.Errorf("%d came back, want 5", back)
			}
			r.same(l, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 13, Used: 7, Records: 2,
				Oldest: start.Add(time.Second), Newest: start.Add(2 * time.Second), Consistent: true})
			shrunk := records[1].Member[:len(records[1].Member)-4] + "\x02\x00\x00\x00"
			if got, want := r.members(l), []stored{{shrunk, records[1].Score}, records[2]}; !slices.Equal(got, want) {
				t.Errorf("%v: the records are %x, want %x", f, got, want)
			}
			if back := r.release(l, 100); back != 7 {
				t.Errorf("%d came back of 7", back)
			}
			r.same(l, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 20, Consistent: true})
			if back := r.release(l, 1); back != 0 {
				t.Errorf("%d came back of none", back)
			}
		}

		// Permits that still count are never dated earlier than their grants.
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.setRate(l, rratelimiter.PerSecond(10))
		r.try(l, 5)
		r.advance(900 * time.Millisecond)
		r.try(l, 5)
		r.advance(50 * time.Millisecond)
		r.release(l, 5)
		r.advance(50 * time.Millisecond)
		if !r.try(l, 5) || r.try(l, 1) {
			t.Error("five used at 900 ms, five released: at 1000 ms not exactly five are free")
		}

		// Expired permits do not return twice.
		r.advance(time.Second)
		if back := r.release(l, 3); back != 0 {
			t.Errorf("%d came back of what had expired", back)
		}
		r.same(l, rratelimiter.State{Rate: rratelimiter.PerSecond(10), Available: 10, Consistent: true})
	})
}

func TestReleaseOfManyRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.config(l, "rate", "10000", "interval", "60000", "type", "0")
		r.set(l, "0")
		r.add(l, r.ms(), many(10000)...)
		if back := r.release(l, 9998); back != 9998 {
			t.Errorf("%d came back", back)
		}
		r.same(l, rratelimiter.State{Rate: rratelimiter.PerMinute(10000), Available: 9998, Used: 2, Records: 2, Oldest: r.now(),
			Newest: r.now(), Consistent: true})
		if back := r.release(l, math.MaxInt64); back != 2 {
			t.Errorf("%d came back", back)
		}
		r.same(l, rratelimiter.State{Rate: rratelimiter.PerMinute(10000), Available: 10000, Consistent: true})
	})
}

// TestAShrunkRecordKeepsOtherRecords has another record with the same bytes that the shrunk record would have.
func TestAShrunkRecordKeepsOtherRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, prefix := range []string{"\x0812345678", "\x08\xff\xff\xff\xff\xff\xff\xff\xff", "abcd", "ab", "a\xff", "\xff", "a", ""} {
			r := newRig(t, s, rratelimiter.WithCallTimeout(3*time.Second))
			r.wipe()
			l := r.limiter("rl")
			r.config(l, "rate", "20", "interval", "60000", "type", "0")
			r.set(l, "12")
			r.add(l, r.ms()-2000, prefix+"\x05\x00\x00\x00")
			r.add(l, r.ms()-1000, prefix+"\x03\x00\x00\x00")
			if back, err := l.Release(t.Context(), 2); back != 2 || err != nil {
				t.Fatalf("%x: released %d, %v", prefix, back, err)
			}
			r.same(l, rratelimiter.State{Rate: rratelimiter.PerMinute(20), Available: 14, Used: 6, Records: 2,
				Oldest: r.now().Add(-2 * time.Second), Newest: r.now().Add(-time.Second), Consistent: true})
		}
	})
}
