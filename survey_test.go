package rratelimiter

import (
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestGlanceSeesWhatStateSees(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, state := range brokenStates() {
			if state.real && !s.IsReal() || state.want != "" {
				continue
			}
			r := newRig(t, s)
			l := r.limiter("rl")
			state.make(r, l)
			before := r.dump()
			want, err := l.State(t.Context())
			r.must(err)
			if got, exact, err := l.Glance(t.Context()); err != nil || !exact || got != want {
				t.Errorf("%s: Glance says %+v, %v; State %+v", state.name, got, err, want)
			}
			r.unchanged(before, state.name+": a glance")
		}
	})
}

// A glance at many records reads few of them and still returns the free permits: it trusts the stored value.
func TestGlanceOfManyRecords(t *testing.T) {
	s := redistest.Shared(t)
	r := newRig(t, s)
	r.wipe()
	l := r.limiter("rl")
	r.setRate(l, PerMinute(10_000))
	for _, c := range []struct {
		live, expired int
		value         string
		want          State
	}{
		{2500, 0, "7500", State{Available: 7500, Used: 2500, Records: 2500, Consistent: true}},
		{2500, 10, "7490", State{Available: 7500, Used: 2500, Records: 2500, Consistent: true}},
		{10, 2500, "7490", State{Available: 9990, Used: 10, Records: 10, Consistent: true}},
		{10, 2500, "none", State{Available: 9990, Used: 10, Records: 10}},
		{2500, 2500, "5000", State{Available: 5000, Used: 5000, Records: 2500, Consistent: true}},
		{2500, 2500, "none", State{Available: 0, Used: 10000, Records: 2500}},
	} {
		r.must(r.rdb.Del(t.Context(), l.core.Keys()[keys.Permits]).Err())
		all := many(c.live + c.expired)
		r.add(l, r.ms(), all[:c.live]...)
		if c.expired > 0 {
			r.add(l, r.ms()-60_000, all[c.live:]...)
		}
		r.set(l, c.value)
		c.want.Rate, c.want.Oldest, c.want.Newest = PerMinute(10_000), r.now(), r.now()
		got, exact, err := l.Glance(t.Context())
		if got.Oldest.Equal(r.now()) && got.Newest.Equal(r.now()) {
			got.Oldest, got.Newest = r.now(), r.now()
		}
		if err != nil || exact || got != c.want {
			t.Errorf("%d live, %d expired, %s stored: %+v, %v", c.live, c.expired, c.value, got, err)
		}
	}
}

func TestSurveyReadsWhatIsStored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		none, err := l.core.Survey(t.Context(), 0, 10, false)
		r.must(err)
		if len(none.Fields) > 0 || none.Records > 0 || none.Keys[0] != (protocol.StoredKey{Name: "rl", Type: "none"}) {
			t.Errorf("of nothing it reads %+v", none)
		}
		r.config(l, "rate", "ten", "odd", "\x00\xff")
		r.set(l, "much")
		r.add(l, 1, "a", "b")
		r.add(l, 2, "\x00\xff")
		got, err := l.core.Survey(t.Context(), 0, 2, false)
		r.must(err)
		if got.Fields["rate"] != "ten" || got.Fields["odd"] != "\x00\xff" || got.Value != "much" || got.Own || got.Records != 3 ||
			!slices.Equal(got.Page, []protocol.StoredRecord{{Member: "\x00\xff", Score: 2}, {Member: "b", Score: 1}}) ||
			time.Since(got.At).Abs() > time.Minute || got.Keys[2] != (protocol.StoredKey{Name: "{rl}:permits", Type: "zset"}) {
			t.Errorf("it reads %+v", got)
		}
		if rest, err := l.core.Survey(t.Context(), 2, 2, false); err != nil || len(rest.Page) != 1 || rest.Page[0] != (protocol.StoredRecord{Member: "a", Score: 1}) {
			t.Errorf("the second page is %+v, %v", rest, err)
		}
		own, err := l.core.Survey(t.Context(), 0, 2, true)
		if err != nil || !own.Own || own.Records != 0 || own.Keys[1].Name != "{rl}:value:me" {
			t.Errorf("the client's pair is %+v, %v", own, err)
		}
		r.must(r.rdb.RPush(t.Context(), "{wrong}:value", "x").Err())
		r.must(r.rdb.PExpire(t.Context(), "{wrong}:value", time.Hour).Err())
		wrong, err := r.limiter("wrong").core.Survey(t.Context(), 0, 2, false)
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
		r.setRate(l, Rate{Type: PerClient, Permits: 10, Interval: time.Minute})
		pair := []string{l.core.Keys()[keys.ClientValue], l.core.Keys()[keys.ClientPermits]}
		collect := func(dry bool, want protocol.Collected) {
			t.Helper()
			if got, err := l.core.Collect(t.Context(), time.Hour, dry); err != nil || got != want {
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
			r.setRate(l, Rate{Type: PerClient, Permits: 10, Interval: time.Minute})
			r.must(r.rdb.RPush(t.Context(), l.core.Keys()[at], "mine").Err())
			before := r.dump()
			for _, dry := range []bool{true, false} {
				if got, err := l.core.Collect(t.Context(), time.Hour, dry); err != nil || got != protocol.Foreign {
					t.Errorf("with a list in %s: %v, %v", l.core.Keys()[at], got, err)
				}
			}
			r.unchanged(before, "collect")
		}
	})
}
