package localgrant

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
		if n, interval := part(of.fraction, of.rate, time.Second); n != of.want || interval != of.interval && interval-of.interval != 1 {
			t.Errorf("%v of %d: %d in %v, expected %d in %v", of.fraction, of.rate, n, interval, of.want, of.interval)
		}
	}
}

// A grant whose interval is over gives nothing back: its permits are free already, and those in use are of other grants.
func TestUntakeCountsWithinTheInterval(t *testing.T) {
	d := &Limiters{Most: 1}
	l := &Limiter{Key: "l", Own: 10, Interval: time.Second, Fraction: 1}
	start := time.Unix(1_700_000_000, 0)
	take := func(at time.Time) int64 {
		g, known := d.Decide(l, protocol.Ask{Groups: []protocol.Group{{Size: 4, Count: 1}}}, at, time.Second)
		if !known || g.At != at.UnixMicro() {
			t.Fatalf("%+v, %v", g, known)
		}
		return g.Free
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
