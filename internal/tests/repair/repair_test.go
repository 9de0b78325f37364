package repair

import (
	"fmt"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestRepairRebuildsFreePermitsFromRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, state := range brokenStates() {
			if state.real && !s.IsReal() || state.want != "" {
				continue
			}
			r := rig.New(t, s)
			l := r.Limiter("rl")
			state.make(r, l)
			before := r.Dump()
			would, err := l.Repair(t.Context(), rratelimiter.DryRun())
			r.Must(err)
			r.Unchanged(before, state.name+": a dry run")
			was, err := l.State(t.Context())
			r.Must(err)
			did, err := l.Repair(t.Context())
			r.Must(err)
			if !would.Changed {
				r.Unchanged(before, state.name+": a repair of nothing")
			}
			if did.Free = would.Free; did != would {
				t.Errorf("%s: the dry run says %+v, the repair %+v", state.name, would, did)
			}
			is, err := l.State(t.Context())
			r.Must(err)
			right := is.Used+is.Available == is.Rate.Permits || is.Used > is.Rate.Permits && is.Available == 0
			if would.Changed == was.Consistent || (would.Fault != "") != would.Changed || !right ||
				is.Used != was.Used {
				t.Errorf("%s: it was %+v, %+v was done, it is %+v", state.name, was, would, is)
			}
			if again, err := l.Repair(t.Context(), rratelimiter.DryRun()); err != nil || again.Changed {
				t.Errorf("%s: a second repair would change something: %+v, %v", state.name, again, err)
			}
		}
	})
}

func TestRepairReportsTheFault(t *testing.T) {
	r := rig.New(t, redistest.Embedded(t))
	l := r.Limiter("rl")
	for fault, value := range map[string]string{
		"free permits and those in records together were 2 more than the rate": "7",
		"free permits and those in records together were 3 less than the rate": "2",
		"free permits were no whole number":                                    "five",
		"free permits were missing":                                            "",
	} {
		r.Wipe()
		r.SetRate(l, rratelimiter.PerMinute(10))
		r.Try(l, 5)
		r.Must(r.Redis.Set(t.Context(), rig.Keys(l)[keys.Value], value, 0).Err())
		if value == "" {
			r.Must(r.Redis.Del(t.Context(), rig.Keys(l)[keys.Value]).Err())
		}
		if did, err := l.Repair(t.Context()); err != nil || did.Fault != fault || did.Free != 5 || did.Permits != 5 ||
			did.Records != 1 {
			t.Errorf("%q stored: %+v, %v", value, did, err)
		}
		if free := r.Free(l); free != 5 {
			t.Errorf("%d are free", free)
		}
	}
}

// A repair trusts the records; Repaired.Blocked is how long they leave no permit free.
func TestRepairReportsHowLongNothingIsFree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, c := range []struct {
			records map[int]uint32 // permits, by seconds before now
			want    time.Duration
		}{
			{nil, 0},
			{map[int]uint32{10: 3, 20: 6}, 0},
			{map[int]uint32{10: 3, 20: 7}, 40 * time.Second},
			// the first expiry only makes up for the excess of 1
			{map[int]uint32{10: 3, 20: 4, 30: 4}, 30 * time.Second},
			{map[int]uint32{10: 9, 20: 1, 30: 1_000_000}, 40 * time.Second},
			{map[int]uint32{10: 10, 20: 1}, 50 * time.Second},
			{map[int]uint32{59: 10}, time.Second},
			{map[int]uint32{60: 10}, 0}, // expired
			{map[int]uint32{-3600: 665_670_573, 1: 5}, time.Hour + time.Minute},
		} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			r.SetRate(l, rratelimiter.PerMinute(10))
			r.WriteValue(l, "9")
			for ago, permits := range c.records {
				r.AddRecords(l, r.Millis()-int64(ago)*1000, rig.MemberOf(fmt.Sprintf("%08d", ago), permits))
			}
			if got, err := l.Repair(t.Context(), rratelimiter.DryRun()); err != nil || got.Blocked != c.want ||
				(got.Free < 1) != (got.Blocked > 0 || c.records[60] > 0) {
				t.Errorf("with %v: %+v, %v; want %v", c.records, got, err, c.want)
			}
			if got, err := l.Reset(t.Context(), rratelimiter.DryRun()); err != nil || got.Blocked != 0 {
				t.Errorf("a reset with %v: %+v, %v", c.records, got, err)
			}
		}
	})
}

func TestRepairKeepsTTLs(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10))
		r.Try(l, 5)
		if _, err := l.Expire(t.Context(), time.Hour); err != nil {
			t.Fatal(err)
		}
		r.Must(r.Redis.Set(t.Context(), rig.Keys(l)[keys.Value], "1", 0).Err())
		if _, err := l.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.CheckTTL(time.Hour, l.Name(), rig.Keys(l)[keys.Value], rig.Keys(l)[keys.Permits])
	})
}

func TestResetForgetsGrantsAndKeepsTheRate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, rate := range []rratelimiter.Rate{
			rratelimiter.PerMinute(10),
			{Type: rratelimiter.PerClient, Permits: 10, Interval: time.Minute, KeepAlive: time.Hour},
		} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			r.SetRate(l, rate)
			r.Try(l, 7)
			before := r.Dump()
			if would, err := l.Reset(t.Context(), rratelimiter.DryRun()); err != nil || !would.Changed ||
				would.Records != 1 ||
				would.Permits != 7 {
				t.Errorf("it would do %+v, %v", would, err)
			}
			r.Unchanged(before, "a dry run")
			if did, err := l.Reset(t.Context()); err != nil || !did.Changed || did.Fault != "" || did.Was != 3 ||
				did.Free != 10 {
				t.Errorf("it did %+v, %v", did, err)
			}
			if again, err := l.Reset(t.Context()); err != nil || again.Changed {
				t.Errorf("the second time it did %+v, %v", again, err)
			}
			r.SameState(l, rratelimiter.State{Rate: rate, Available: 10, Consistent: true, TTL: rate.KeepAlive})
		}
	})
}
