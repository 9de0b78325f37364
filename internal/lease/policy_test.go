package lease

import (
	"math"
	"testing"
	"time"
)

// What is wanted is the demand expected until the end of the lease, and nothing for a while after a refusal.
func TestSurplus(t *testing.T) {
	const lasts = time.Second
	for _, test := range []struct {
		name          string
		pace          float64
		rest, refused time.Duration
		asked, want   int64
	}{
		{"unknown", -1, lasts, lasts, 7, 7},
		{"a whole lease", 100, lasts, lasts, 7, 100},
		{"the rest of it", 100, 100 * time.Millisecond, lasts, 7, 10},
		{"nothing of it", -1, 0, lasts, 7, 0},
		{"nearly nothing of it", 100, time.Microsecond, lasts, 7, 1},
		{"less than two in a lease", 1.9, 500 * time.Millisecond, lasts, 7, 0},
		{"no demand", 0, lasts, lasts, 7, 0},
		{"after a refusal", 100, lasts, lasts - 1, 7, 0},
		{"very many", math.Inf(1), lasts, lasts, 7, most},
		{"very many at once", -1, lasts, lasts, math.MaxInt64, most},
	} {
		if got := Surplus(test.pace, lasts, test.rest, test.refused, test.asked); got != test.want {
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
		if got := d.Want(now, 10*time.Second, time.Second, 7); got != want {
			t.Errorf("%s: %d are wanted in a second, not %d", what, got, want)
		}
	}
	measure := func(n int64, more bool) {
		began := now
		now = now.Add(time.Second)
		d.Measure(n, began, now, more)
	}
	want("unknown", 7)
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

// The figures of docs/guide/serve-from-memory.md, as rows of its table: however many processes share a limiter, leases of a fiftieth of the interval
// refuse next to nothing that a limiter without leases grants, use nearly all of the rate where all of it is in demand, and
// keep every window within it.
func TestPolicyInSimulation(t *testing.T) {
	for _, processes := range []int{1, 8, 64} {
		for _, demand := range []float64{.1, .5, .8, .9, 1, 1.2, 3} {
			for _, bursts := range []bool{false, true} {
				if bursts && demand != .5 && demand != .8 && demand != 1.2 {
					continue
				}
				of := scenario{
					rate: 10_000, interval: 10 * time.Second, processes: processes, demand: demand, bursts: bursts, intervals: 5,
				}
				plain := simulate(of)
				of.lease = of.interval / 50
				leased := simulate(of)
				falsely := leased.deniedPart() - plain.deniedPart()
				calls := float64(leased.calls) / float64(plain.calls)
				how := ""
				if bursts {
					how = ", in bursts"
				}
				t.Logf("| %d | %.0f %%%s | %.1f %% | %.1f %% | %.1f %% | %.1f %% | %.0f %% |", processes, 100*demand, how,
					100*plain.deniedPart(), 100*leased.deniedPart(), 100*plain.used, 100*leased.used, 100*calls)
				if leased.largest > of.rate || plain.largest > of.rate {
					t.Errorf("%d permits in a window with leases, %d without", leased.largest, plain.largest)
				}
				switch {
				case demand <= .9 && falsely > .001:
					t.Errorf("%.3f %% are denied, and %.3f %% without leases", 100*leased.deniedPart(), 100*plain.deniedPart())
				case demand > 1 && !bursts && leased.used < .97:
					t.Errorf("%.1f %% of the rate are used", 100*leased.used)
				case leased.used < plain.used-.03:
					t.Errorf("%.1f %% of the rate are used, and %.1f %% without leases", 100*leased.used, 100*plain.used)
				}
				if calls > 1.1 || processes == 1 && demand < .9 && calls > .15 {
					t.Errorf("leases make %.0f %% of the calls", 100*calls)
				}
			}
		}
	}
}

// Threads of Redisson that wait for permits get no less beside leases than beside processes without.
func TestRedissonBesideLeasesInSimulation(t *testing.T) {
	for _, demand := range []float64{.8, 1.2, 3} {
		of := scenario{rate: 10_000, interval: 10 * time.Second, processes: 2, demand: demand, java: 50, intervals: 5}
		plain := simulate(of)
		of.lease = of.interval / 50
		leased := simulate(of)
		part := func(r result) float64 { return 100 * float64(r.java) / float64(r.java+r.granted) }
		t.Logf("demand %3.0f %%: Redisson gets %.1f %% (plain %.1f %%), %.1f %% of the rate are used (plain %.1f %%)",
			100*demand, part(leased), part(plain), 100*leased.used, 100*plain.used)
		if leased.java < plain.java || leased.used < .97 || leased.largest > of.rate {
			t.Errorf("%+v, and without leases %+v", leased, plain)
		}
	}
}
