package fallback

import (
	"math"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

func TestPart(t *testing.T) {
	for _, of := range []struct {
		fraction float64
		rate     int64
		want     int64
		interval time.Duration
	}{
		{0, 10, 0, time.Second}, {1, 10, 10, time.Second}, {0.29, 100, 29, time.Second}, {1.0 / 3, 3, 1, time.Second},
		{0.19, 10, 1, time.Second}, {0.05, 10, 1, 2 * time.Second}, {1, math.MaxInt64, math.MaxInt64, time.Second},
		{math.SmallestNonzeroFloat64, 1, 1, math.MaxInt64 / 2},
	} {
		if n, interval := part(of.fraction, of.rate, time.Second); n != of.want ||
			interval != of.interval && interval-of.interval != 1 {
			t.Errorf("%v of %d: %d in %v, expected %d in %v", of.fraction, of.rate, n, interval, of.want, of.interval)
		}
	}
}

// A grant whose interval is over gives nothing back: its permits are free already, and those in use
// are of other grants.
func TestUntakeCountsWithinTheInterval(t *testing.T) {
	d := &Limiters{Most: 1}
	l := &Limiter{Key: "l", Own: 10, Interval: time.Second, Fraction: 1}
	start := time.Unix(1_700_000_000, 0)
	take := func(at time.Time) int64 {
		g, known := d.Decide([]*Limiter{l},
			protocol.BatchAsk{Groups: []protocol.Group{{Permits: protocol.Permits{First: 4}, Count: 1}}}, at,
			time.Second)
		if !known || g.First.At != at.UnixMicro() {
			t.Fatalf("%+v, %v", g, known)
		}
		return g.First.Free
	}
	take(start)
	if n := d.Untake(l, 4, start, start.Add(999*time.Millisecond)); n != 4 {
		t.Errorf("%d permits came back within the interval", n)
	}
	later := start.Add(2 * time.Second)
	take(later)
	if n, free := d.Untake(l, 4, start, later), take(later); n != 0 || free != 2 {
		t.Errorf("%d permits came back after the interval, and %d are free", n, free)
	}
}

// If the table is full, the entry of one limiter of AllowAll does not make room for that of another
// one: its grants would not be counted.
func TestAllowAllCountsItsGrants(t *testing.T) {
	limiter := func(key string, interval time.Duration) *Limiter {
		return &Limiter{Key: key, Own: 1, Interval: interval, Fraction: 1}
	}
	for most, decides := range map[int]bool{2: false, 3: true} {
		d, now := &Limiters{Most: most}, time.Unix(1_700_000_000, 0)
		decide := func(l *Limiter) int64 {
			groups := []protocol.Group{{Permits: protocol.Permits{First: 1}, Count: 1}}
			g, known := d.Decide([]*Limiter{l}, protocol.BatchAsk{Groups: groups}, now, time.Second)
			if !known {
				t.Fatalf("no decision on %s", l.Key)
			}
			return g.Granted(0, groups[0])
		}
		busy, a, b := limiter("busy", time.Second), limiter("a", time.Minute), limiter("b", time.Second)
		decide(busy)
		group, granted := protocol.Group{Permits: protocol.Permits{First: 1, Rest: []int64{1}}, Count: 1}, int64(0)
		g, known := d.Decide([]*Limiter{a, b}, protocol.BatchAsk{Groups: []protocol.Group{group}}, now, time.Second)
		if known != decides {
			t.Errorf("with room for %d limiters: %v", most, known)
		}
		if known {
			granted = g.Granted(0, group)
		}
		now = now.Add(2 * time.Second)
		if granted += decide(a); granted != 1 {
			t.Errorf("with room for %d limiters, %d permits of 1 are granted", most, granted)
		}
	}
}
