package charge

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// model_test.go compares random stories of charges and tries with the promise: each permit of a
// charge counts from when a caller that waits would have had it, or up to an eighth of an interval
// later. A permit is a time here: from when on it counts.

// permits returns the times of all permits that count, in order.
func permits(r *rig.Rig, l *rratelimiter.Limiter, interval time.Duration) (all []time.Time) {
	records, err := r.Redis.ZRangeWithScores(r.T.Context(), rig.Keys(l)[keys.Permits], 0, -1).Result()
	r.Must(err)
	for _, one := range records {
		at := time.UnixMicro(int64(one.Score * 1000))
		for range rig.PermitsOf(one.Member.(string)) {
			if at.Add(interval).After(r.Now()) {
				all = append(all, at)
			}
		}
	}
	return all
}

// dates returns from when on n permits count that are charged now, beside those that count.
func dates(all []time.Time, rate int64, interval time.Duration, n int64, now time.Time) (dated []time.Time) {
	all = slices.Clone(all)
	for range n {
		at := now
		if before := len(all) - int(rate); before >= 0 { // as many, and one more, return before it is free
			at = all[before].Add(interval)
		}
		dated = append(dated, at)
		place, _ := slices.BinarySearchFunc(all, at, func(a, b time.Time) int { return a.Compare(b) })
		all = slices.Insert(all, place, at)
	}
	return dated
}

// mostInAWindow returns the largest number of permits that count from within an interval.
func mostInAWindow(all []time.Time, interval time.Duration) (most int64) {
	for i, at := range all {
		n := int64(0)
		for _, before := range all[:i+1] {
			if before.After(at.Add(-interval)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// A debtor is a limiter in a random story.
type debtor struct {
	*rig.Rig
	*rapid.T
	limiter *rratelimiter.Limiter
	rate    rratelimiter.Rate
	most    int64 // permits of a debt
	slack   time.Duration
}

func TestChargesCountAsIfTheyHadWaited(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, stories := rig.New(t, s), 0
		rapid.Check(t, func(rt *rapid.T) {
			stories++
			draw := func(what string, most int) int { return rapid.IntRange(0, most).Draw(rt, what) }
			debt := int64(draw("debt", 5))
			rate := rratelimiter.Rate{Permits: int64(1 + draw("rate", 19)),
				Interval: time.Duration(200+draw("interval", 800)) * ms}
			opts := []rratelimiter.LimiterOption{rratelimiter.WithRate(rate), rratelimiter.WithMaxDebt(int(debt))}
			d := &debtor{Rig: r, T: rt, rate: rate, most: debt * rate.Permits, slack: rate.Interval / 8}
			d.limiter = r.Limiter(fmt.Sprint("l", stories), opts...)
			d.charges(0)
			for range 1 + draw("steps", 11) {
				r.Advance(time.Duration(draw("pause", int(rate.Interval/ms))) * ms)
				switch n := int64(draw("permits", int(3*rate.Permits))); draw("step", 3) {
				case 0:
					d.tries(min(n, rate.Permits))
				case 1:
					d.obeys(d.charges(n))
				default:
					d.charges(n)
				}
				if s := rig.State(t, d.limiter); !s.Consistent || s.Debt != max(0, s.Used-rate.Permits) {
					rt.Fatalf("%+v", s)
				}
			}
		})
	})
}

func (d *debtor) permits() []time.Time { return permits(d.Rig, d.limiter, d.rate.Interval) }

// charges charges n permits, and checks from when on they count. It returns the time until a permit
// is free.
func (d *debtor) charges(n int64) time.Duration {
	before := d.permits()
	free := d.rate.Permits - int64(len(before))
	counted := max(0, min(n, free+d.most))
	result, err := d.limiter.Charge(d.Rig.T.Context(), n)
	if err != nil && !errors.Is(err, rratelimiter.ErrDebtBound) || (err != nil) != (counted < n) {
		d.Fatalf("%d of %d permits count, and the error is %v", counted, n, err)
	}
	if result.Allowed != (free > 0) || result.Remaining != max(0, free-counted) {
		d.Fatalf("%d permits are free, and %d are charged: %+v", free, counted, result)
	}
	after := d.permits()
	added := slices.Clone(after)
	for _, at := range before {
		i := slices.IndexFunc(added, at.Equal)
		added = slices.Delete(added, i, i+1)
	}
	want := dates(before, d.rate.Permits, d.rate.Interval, counted, d.Now())
	if len(added) != len(want) {
		d.Fatalf("%d permits count, want %d", len(added), len(want))
	}
	for i, at := range added {
		late := at.Sub(want[i])
		if late < 0 || late > d.slack || late > 0 && int64(i) < free {
			d.Fatalf("permit %d of %d counts from %v on, and would be had at %v", i, len(added), at, want[i])
		}
	}
	if most := mostInAWindow(after, d.rate.Interval); most > d.rate.Permits {
		d.Fatalf("an interval pays back %d permits", most)
	}
	d.tells(result, after)
	return result.RetryAfter
}

// tells checks the times in a result.
func (d *debtor) tells(result rratelimiter.Result, all []time.Time) {
	var retry, next, reset time.Duration
	if owed := len(all) - int(d.rate.Permits); owed >= 0 {
		retry = all[owed].Add(d.rate.Interval).Sub(d.Now())
	}
	if len(all) > 0 {
		next, reset = all[0].Add(d.rate.Interval).Sub(d.Now()), all[len(all)-1].Add(d.rate.Interval).Sub(d.Now())
	}
	if result.RetryAfter != retry || result.NextAfter != next || result.ResetAfter != reset {
		d.Fatalf("%+v, want %v, %v, %v", result, retry, next, reset)
	}
}

// tries asks for n permits, and checks that they are granted if they are free.
func (d *debtor) tries(n int64) {
	if n == 0 {
		return
	}
	if free := d.rate.Permits - int64(len(d.permits())); d.Try(d.limiter, n) != (n <= free) {
		d.Fatalf("%d of %d free permits", n, free)
	}
}

// obeys waits until a permit is free, and checks that it is then, and not before.
func (d *debtor) obeys(retry time.Duration) {
	if retry == 0 {
		return
	}
	d.Advance(retry - ms)
	early := d.Try(d.limiter, 1)
	d.Advance(ms)
	if early || !d.Try(d.limiter, 1) {
		d.Fatalf("a permit is free %v later, or was before: %v", retry, early)
	}
}
