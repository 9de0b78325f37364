package localgrant

import (
	"math"
	"testing"
	"time"
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
