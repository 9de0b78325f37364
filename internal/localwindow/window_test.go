package localwindow

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/window"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 12345, time.UTC)

// A window that stays within a limit grants no more than it in any interval, and at least 70 % of
// what the rate allows.
func TestNoIntervalHoldsMoreThanTheLimit(t *testing.T) {
	const limit = 5
	for _, interval := range []time.Duration{time.Second, 7 * time.Millisecond, time.Hour + 3, 3} {
		random := rand.New(rand.NewPCG(1, uint64(interval)))
		var w Window
		var grants []window.Grant
		var sum int64
		now := start
		for range 5000 {
			now = now.Add(time.Duration(random.Int64N(max(int64(interval)/7, 2))))
			w.Turn(now, interval)
			if n := 1 + random.Int64N(3); n <= limit-w.Used() {
				w.Take(n)
				sum += n
				grants = append(grants, window.Grant{Permits: n, Start: now, End: now})
			}
		}
		if most, at := window.Largest(grants, interval); most != limit {
			t.Errorf("%v: %d permits in the interval from %v on, not up to %d", interval, most, at, limit)
		}
		if ideal := limit * float64(now.Sub(start)) / float64(interval); interval > 10 && float64(sum) < 0.7*ideal {
			t.Errorf("%v: %d permits granted, of %.0f", interval, sum, ideal)
		}
	}
}

func TestUntilIsTheMomentOfReturn(t *testing.T) {
	var w Window
	now := start
	w.Turn(now, time.Second)
	w.Take(3)
	w.Turn(now.Add(500*time.Millisecond), time.Second)
	w.Take(2)
	now = now.Add(700 * time.Millisecond)
	w.Turn(now, time.Second)
	for n, want := range []time.Duration{0, 300, 300, 300, 800, 800, 0} {
		if got := w.Until(now, int64(n)); got != want*time.Millisecond {
			t.Errorf("%d permits return after %v, not %v ms", n, got, want)
		}
	}
	returned := now.Add(w.Until(now, 3))
	if w.Turn(returned.Add(-1), time.Second); w.Used() != 5 {
		t.Errorf("%d in use before permits return", w.Used())
	}
	if w.Turn(returned, time.Second); w.Used() != 2 {
		t.Errorf("%d in use when 3 have returned", w.Used())
	}
}

func TestUntakeTakesTheNewestBack(t *testing.T) {
	var w Window
	w.Turn(start, time.Second)
	w.Take(3)
	now := start.Add(500 * time.Millisecond)
	w.Turn(now, time.Second)
	w.Take(2)
	w.Untake(4)
	if w.Used() != 1 || w.Until(now, 1) != 500*time.Millisecond {
		t.Errorf("%d in use, for %v", w.Used(), w.Until(now, 1))
	}
	if w.Untake(4); w.Used() != 0 {
		t.Errorf("%d in use", w.Used())
	}
}

// Permits in use never return early, however the clock and the interval change.
func TestClockAndIntervalChange(t *testing.T) {
	var w Window
	w.Turn(start, time.Second)
	w.Take(3)
	if w.Turn(start.Add(-time.Hour), time.Second); w.Used() != 3 {
		t.Errorf("%d in use after the clock went back", w.Used())
	}
	later := start.Add(900 * time.Millisecond)
	if w.Turn(later, time.Minute); w.Used() != 3 || w.Until(later, 3) != time.Minute {
		t.Errorf("%d in use, for %v, after the interval grew", w.Used(), w.Until(later, 3))
	}
	if w.Turn(later, math.MaxInt64); w.Used() != 3 || w.Until(later, 3) < longest {
		t.Errorf("%d in use, for %v, with the longest interval", w.Used(), w.Until(later, 3))
	}
	if !w.Empty(later.Add(2 * longest)) {
		t.Errorf("%d in use at the end of time", w.Used())
	}
	later = later.Add(2 * longest)
	w.Turn(later, time.Second)
	w.Take(2)
	w.Turn(later.Add(500*time.Millisecond), time.Second)
	w.Take(1)
	later = later.Add(1200 * time.Millisecond)
	if w.Turn(later, time.Minute); w.Used() != 1 || w.Until(later, 1) != time.Minute {
		t.Errorf("%d in use, for %v, after the interval grew when 2 had returned", w.Used(), w.Until(later, 1))
	}
	if !new(Window).Empty(later) {
		t.Error("a window that was never used is in use")
	}
}
