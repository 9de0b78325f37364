package charge

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// A charge takes what is free, and owes the rest: an interval pays back the rate.
func TestAChargeCountsWhatIsNotFreeInLaterIntervals(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		mustCharge(t, "free permits", l, 4, result(true, 10, 6, 0, time.Second, time.Second))
		mustCharge(t, "one interval too many", l, 16, result(true, 10, 0, 2*time.Second, time.Second, 2*time.Second))
		r.Advance(500 * ms)
		mustCharge(t, "in debt", l, 5, result(false, 10, 0, 1500*ms, 500*ms, 2500*ms))
		if s := rig.State(t, l); s.Available != 0 || s.Used != 25 || s.Debt != 15 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		r.Advance(1500*ms - 1)
		rig.MustTry(t, l, 1, false)
		r.Advance(1)
		rig.MustTry(t, l, 1, true)
	})
}

// Without permits a charge only tells; with a negative number it is refused.
func TestAChargeOfNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		mustCharge(t, "unused", l, 0, result(true, 10, 10, 0, 0, 0))
		mustCharge(t, "all", l, 10, result(true, 10, 0, time.Second, time.Second, time.Second))
		r.Advance(200 * ms)
		mustCharge(t, "used up", l, 0, result(false, 10, 0, 800*ms, 800*ms, 800*ms))
		if _, err := l.Charge(t.Context(), -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
			t.Error(err)
		}
	})
}

// A charge writes few records, however many return until its permits are free.
func TestAChargeWritesFewRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		const permits = 500
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(permits)))
		for i, member := range rig.ManyMembers(permits) {
			r.AddRecords(l, r.Millis()+int64(i)*100, member)
		}
		r.WriteConfig(l, "rate", "500", "interval", "60000", "type", "0")
		r.WriteValue(l, "0")
		r.Advance(50 * time.Second)
		// without sharing records, a permit is free after 130 s
		if got, err := l.Charge(t.Context(), 2*permits); err != nil || got.RetryAfter < 130*time.Second ||
			got.RetryAfter > 137500*ms || got.ResetAfter != 179900*ms {
			t.Errorf("two intervals: %+v, %v", got, err)
		}
		if s := rig.State(t, l); s.Records > permits+20 || s.Debt != 2*permits || !s.Consistent {
			t.Errorf("%+v", s)
		}
	})
}

// A charge in debt reads the records of about one interval, however long the debt lasts: the permit
// that it waits for returns when only those of the last interval are left.
func TestAChargeInALongDebtReadsFewRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const permits, intervals = 100, 50
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerMinute(permits)), rratelimiter.WithMaxDebt(2*intervals))
		r.WriteConfig(l, "rate", "100", "interval", "60000", "type", "0")
		r.WriteValue(l, "-4900")
		for i, members := range slices.Collect(slices.Chunk(rig.ManyMembers(permits*intervals), permits)) {
			r.AddRecords(l, r.Millis()+int64(i)*60_000, members...)
		}
		var recording *redistest.Recording
		if s.IsReal() {
			recording = s.Monitor()
		}
		const last = intervals * time.Minute
		mustCharge(t, "in debt", l, 150, result(false, permits, 0, last+time.Minute, time.Minute, last+2*time.Minute))
		if s := rig.State(t, l); s.Debt != 5050 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if recording == nil {
			return
		}
		reads, charging := 0, false // other scripts add the records up: that of State, and in the background
		for _, c := range recording.Stop() {
			switch {
			case !c.Lua:
				charging = c.Name() == "EVALSHA" && c.Args[1] == protocol.ChargeScript.SHA ||
					c.Name() == "EVAL" && c.Args[1] == protocol.ChargeScript.Text
			case charging && c.Name() == "ZRANGE":
				reads++
			}
		}
		if reads == 0 || reads > 8 {
			t.Errorf("%d reads of a page of records", reads)
		}
	})
}
