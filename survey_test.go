package rratelimiter_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestSurveyReadsWhatIsStored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		none, err := rratelimiter.LimiterCore(l).Survey(t.Context(), 0, 10, false)
		r.must(err)
		if len(none.Fields) > 0 || none.Records > 0 || none.Keys[0] != (protocol.StoredKey{Name: "rl", Type: "none"}) {
			t.Errorf("of nothing it reads %+v", none)
		}
		r.config(l, "rate", "ten", "odd", "\x00\xff")
		r.set(l, "much")
		r.add(l, 1, "a", "b")
		r.add(l, 2, "\x00\xff")
		got, err := rratelimiter.LimiterCore(l).Survey(t.Context(), 0, 2, false)
		r.must(err)
		if got.Fields["rate"] != "ten" || got.Fields["odd"] != "\x00\xff" || got.Value != "much" || got.Own || got.Records != 3 ||
			!slices.Equal(got.Page, []protocol.StoredRecord{{Member: "\x00\xff", Score: 2}, {Member: "b", Score: 1}}) ||
			time.Since(got.At).Abs() > time.Minute || got.Keys[2] != (protocol.StoredKey{Name: "{rl}:permits", Type: "zset"}) {
			t.Errorf("it reads %+v", got)
		}
		if rest, err := rratelimiter.LimiterCore(l).Survey(t.Context(), 2, 2, false); err != nil || len(rest.Page) != 1 || rest.Page[0] != (protocol.StoredRecord{Member: "a", Score: 1}) {
			t.Errorf("the second page is %+v, %v", rest, err)
		}
		own, err := rratelimiter.LimiterCore(l).Survey(t.Context(), 0, 2, true)
		if err != nil || !own.Own || own.Records != 0 || own.Keys[1].Name != "{rl}:value:me" {
			t.Errorf("the client's pair is %+v, %v", own, err)
		}
		r.must(r.rdb.RPush(t.Context(), "{wrong}:value", "x").Err())
		r.must(r.rdb.PExpire(t.Context(), "{wrong}:value", time.Hour).Err())
		wrong, err := rratelimiter.LimiterCore(r.limiter("wrong")).Survey(t.Context(), 0, 2, false)
		if err != nil || wrong.Keys[1].Type != "list" || wrong.Keys[1].TTL < 59*time.Minute {
			t.Errorf("of a wrong type it reads %+v, %v", wrong, err)
		}
	})
}

func TestCollectRemovesOnlyUnusedKeys(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.setRate(l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Minute})
		pair := []string{keysOf(l)[keys.ClientValue], keysOf(l)[keys.ClientPermits]}
		collect := func(dry bool, want protocol.Collected) {
			t.Helper()
			if got, err := rratelimiter.LimiterCore(l).Collect(t.Context(), time.Hour, dry); err != nil || got != want {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		}
		collect(false, protocol.Gone)
		r.try(l, 3)
		r.advance(time.Hour + time.Minute - time.Millisecond)
		collect(false, protocol.InUse)
		r.advance(time.Millisecond)
		collect(false, protocol.Temporary)
		for _, key := range pair {
			r.must(r.rdb.Persist(t.Context(), key).Err())
		}
		collect(true, protocol.Removed)
		if r.rdb.Exists(t.Context(), pair...).Val() != 2 {
			t.Error("a dry run has removed something")
		}
		collect(false, protocol.Removed)
		if r.rdb.Exists(t.Context(), pair...).Val() != 0 || r.rdb.Exists(t.Context(), "rl").Val() != 1 {
			t.Error("the wrong keys were removed")
		}
	})
}

func TestCollectLeavesKeysOfAnotherProgram(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, at := range []int{keys.ClientValue, keys.ClientPermits} {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl")
			r.setRate(l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Minute})
			r.must(r.rdb.RPush(t.Context(), keysOf(l)[at], "mine").Err())
			before := r.dump()
			for _, dry := range []bool{true, false} {
				if got, err := rratelimiter.LimiterCore(l).Collect(t.Context(), time.Hour, dry); err != nil || got != protocol.Foreign {
					t.Errorf("with a list in %s: %v, %v", keysOf(l)[at], got, err)
				}
			}
			r.unchanged(before, "collect")
		}
	})
}
