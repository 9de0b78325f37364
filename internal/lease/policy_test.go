package lease

import (
	"math"
	"testing"
	"time"
)

// What is wanted is the demand expected until the end of the lease, and nothing for a while after a
// refusal.
func TestSurplus(t *testing.T) {
	const bucket = time.Second
	for _, test := range []struct {
		name          string
		pace          float64
		rest, refused time.Duration
		asked, left   int64
		ends          time.Duration
		want          int64
	}{
		{"unknown", -1, bucket, bucket, 7, 0, 0, 7},
		{"a whole lease", 100, bucket, bucket, 7, 0, 0, 100},
		{"the rest of it", 100, 100 * time.Millisecond, bucket, 7, 0, 0, 10},
		{"nearly nothing of it", 100, time.Microsecond, bucket, 7, 0, 0, 1},
		{"beside a lease that serves until its end", 100, bucket, bucket, 7, 20, 100 * time.Millisecond, 90},
		{"beside a lease that is used up before", 100, bucket, bucket, 7, 4, 100 * time.Millisecond, 96},
		{"less than two in a lease", 1.9, 500 * time.Millisecond, bucket, 7, 0, 0, 0},
		{"no demand", 0, bucket, bucket, 7, 0, 0, 0},
		{"after a refusal", 100, bucket, bucket - 1, 7, 0, 0, 0},
		{"very many", 1e300, bucket, bucket, 7, 0, 0, most},
		{"very many at once", -1, bucket, bucket, math.MaxInt64, 0, 0, most},
	} {
		if got := Surplus(test.pace, bucket, test.rest, test.refused, test.asked, test.left,
			test.ends); got != test.want {
			t.Errorf("%s: %d are wanted, not %d", test.name, got, test.want)
		}
	}
}

// The pace follows the demand up at once and down slowly, and falls while there is none.
func TestDemand(t *testing.T) {
	now := time.Now()
	var d Demand
	want := func(what string, want int64) {
		t.Helper()
		if got := d.Want(now, 10*time.Second, time.Second, 7, 0, 0); got != want {
			t.Errorf("%s: %d are wanted in a second, not %d", what, got, want)
		}
	}
	measure := func(n int64, more bool) {
		d.Granted(n)
		now = now.Add(time.Second)
		d.Measure(now, more)
	}
	d.Granted(1000) // before the first lease
	want("unknown", 7)
	d.Begin(now)
	measure(100, false)
	want("100 a second", 100)
	d.Granted(100)
	measure(200, true)
	want("more than 300 a second", 600)
	measure(0, false)
	want("none for a second", 300)
	now = now.Add(10 * time.Second)
	want("none for a lease", 150)
	d.Refused(now)
	want("after a refusal", 0)
	now = now.Add(-time.Second)
	want("a refusal in the future", 150)
}

func TestWhatIsWorthACall(t *testing.T) {
	for unused, want := range map[int64]bool{0: false, 1: false, 2: true, 1000: true} {
		if got := WorthACall(unused, 10_000, 10*time.Second, 200*time.Millisecond); got != want {
			t.Errorf("%d: %v", unused, got)
		}
	}
}
