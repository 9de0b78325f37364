package window

import (
	"math/rand"
	"testing"
	"time"
)

// epoch is a whole second, so that offsets in the tables below are offsets in milliseconds, too.
var epoch = time.Unix(1_700_000_000, 0)

func grant(permits int64, start, end time.Duration) Grant {
	return Grant{Permits: permits, Start: epoch.Add(start), End: epoch.Add(end)}
}

func instant(permits int64, at time.Duration) Grant { return grant(permits, at, at) }

const ms = time.Millisecond

func TestLargestAtTheEdges(t *testing.T) {
	const interval = 100 * ms
	for _, c := range []struct {
		name    string
		grants  []Grant
		permits int64
		at      time.Duration // of the window's start
	}{
		{"one grant", []Grant{instant(3, 7*ms)}, 3, 7 * ms},
		{"two at the same instant", []Grant{instant(3, 7*ms), instant(4, 7*ms)}, 7, 7 * ms},
		{"exactly an interval apart", []Grant{instant(3, 0), instant(4, interval)}, 4, interval},
		{"a nanosecond less than an interval apart", []Grant{instant(3, 0), instant(4, interval-1)}, 7, 0},
		{"a nanosecond more than an interval apart", []Grant{instant(4, 0), instant(3, interval+1)}, 4, 0},
		{"the order of the log does not matter", []Grant{instant(3, 99*ms), instant(4, 0)}, 7, 0},
		{"equal windows: the earliest", []Grant{instant(5, 300*ms), instant(5, 0)}, 5, 0},
		{"a span counts where both ends are inside", []Grant{grant(3, 10*ms, 20*ms), instant(4, 109*ms)}, 7, 10 * ms},
		{"a span ends at the window's end", []Grant{instant(3, 0), grant(4, 90*ms, 100*ms)}, 4, 90 * ms},
		{"a span ends just inside", []Grant{instant(3, 0), grant(4, 90*ms, 99*ms)}, 7, 0},
		{"a span of an interval is certain nowhere", []Grant{grant(9, 0, 100*ms), instant(1, 50*ms)}, 1, 50 * ms},
		{"a span of one millisecond less is", []Grant{grant(9, 0, 99*ms), instant(1, 50*ms)}, 10, 0},
		{
			"a long span hides nothing else",
			[]Grant{grant(9, -time.Hour, time.Hour), instant(2, 0), instant(3, 1*ms)},
			5,
			0,
		},
		{"ends in the wrong order", []Grant{grant(3, 20*ms, 10*ms), instant(4, 109*ms)}, 7, 10 * ms},
		{"nothing, or less, granted", []Grant{instant(0, 0), instant(-5, 0), instant(2, 0)}, 2, 0},
		{
			"a chain counts only what fits",
			[]Grant{instant(1, 0), instant(2, 60*ms), instant(4, 120*ms), instant(8, 180*ms)},
			12, 120 * ms,
		},
		{
			"before 1970", []Grant{{3, time.Unix(-5, 0), time.Unix(-5, 0)}, {4, time.Unix(-5, 1), time.Unix(-5, 1)}}, 7,
			time.Unix(-5, 0).Sub(epoch),
		},
		{
			"within a millisecond before 1970",
			[]Grant{{3, time.Unix(0, -1), time.Unix(0, -1)}, {4, time.Unix(0, 99e6), time.Unix(0, 99e6)}}, 4,
			time.Unix(0, 99e6).Sub(epoch),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			permits, at := LargestAt(c.grants, interval, ms)
			if permits != c.permits || !at.Equal(epoch.Add(c.at)) {
				t.Errorf("got %d at %v, want %d at %v", permits, at.Sub(epoch), c.permits, c.at)
			}
		})
	}
}

func TestLargestOfNothing(t *testing.T) {
	for _, c := range []struct {
		name     string
		grants   []Grant
		interval time.Duration
	}{
		{"no grants", nil, time.Second},
		{"no permits", []Grant{instant(0, 0)}, time.Second},
		{"no interval", []Grant{instant(1, 0)}, 0},
		{"a negative interval", []Grant{instant(1, 0)}, -1 << 63},
		{"only a span that is too long", []Grant{grant(1, 0, time.Second)}, time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			if permits, at := Largest(c.grants, c.interval); permits != 0 || !at.IsZero() {
				t.Errorf("got %d at %v, want nothing", permits, at)
			}
		})
	}
}

// A limiter that counts in milliseconds lets a grant at 0.9 ms expire at interval + 0 ms. That is
// no violation, so LargestAt with that tick must not report it, while Largest must.
func TestMillisecondsAreNotHeldAgainstALimiter(t *testing.T) {
	const interval = 100 * ms
	grants := []Grant{instant(5, 900*time.Microsecond), instant(5, interval+100*time.Microsecond)}
	if permits, _ := LargestAt(grants, interval, ms); permits != 5 {
		t.Errorf("in milliseconds: got %d in one window, want 5", permits)
	}
	if permits, _ := Largest(grants, interval); permits != 10 {
		t.Errorf("in nanoseconds: got %d in one window, want 10", permits)
	}
	// A millisecond earlier it is a violation by any clock.
	grants[1] = instant(5, interval-900*time.Microsecond)
	if permits, _ := LargestAt(grants, interval, ms); permits != 10 {
		t.Errorf("a real fault: got %d in one window, want 10", permits)
	}
}

// For a limiter that keeps its limit in milliseconds no violation is reported; one permit more
// always is. The limiter here is a plain sliding log, and each grant is known only by the span
// around it.
func TestLargestAgainstASlidingLog(t *testing.T) {
	const rate, interval = 20, 50 * ms
	r := seeded(t)
	for _, excess := range []int64{0, 1} {
		var grants []Grant
		var live []int64 // scores in ms
		now := time.Duration(0)
		for range 5000 {
			now += time.Duration(r.Intn(int(3 * ms)))
			score := int64(now / ms)
			for len(live) > 0 && live[0] <= score-int64(interval/ms) {
				live = live[1:]
			}
			if int64(len(live)) >= rate+excess {
				continue
			}
			live = append(live, score)
			fuzz := time.Duration(r.Intn(int(200 * time.Microsecond)))
			grants = append(grants, grant(1, now-fuzz, now+fuzz/2))
		}
		permits, at := LargestAt(grants, interval, ms)
		if excess == 0 && permits > rate {
			t.Errorf("a correct limiter is accused of %d permits at %v", permits, at.Sub(epoch))
		}
		if excess == 1 && permits != rate+1 {
			t.Errorf("a limiter that is one permit off: got %d, want %d", permits, rate+1)
		}
	}
}

func TestLargestAgainstBruteForce(t *testing.T) {
	r := seeded(t)
	for round := range 3000 {
		interval := time.Duration(1+r.Intn(12)) * ms
		tick := []time.Duration{1, ms / 4, ms}[r.Intn(3)]
		grants := randomGrants(r, r.Intn(12))
		permits, at := LargestAt(grants, interval, tick)
		wantPermits, wantAt := bruteForce(grants, interval, tick)
		if permits != wantPermits || !at.Equal(wantAt) {
			t.Fatalf("round %d: got %d at %v, want %d at %v\ninterval %v, tick %v, grants %v",
				round, permits, at, wantPermits, wantAt, interval, tick, grants)
		}
	}
}

// bruteForce counts each window that starts with a grant and holds it, directly by the definition.
func bruteForce(grants []Grant, interval, tick time.Duration) (permits int64, at time.Time) {
	var cutGrants []Grant
	for _, g := range grants {
		cutGrants = append(cutGrants, Grant{g.Permits, g.Start.Truncate(tick), g.End.Truncate(tick)})
	}
	for _, first := range cutGrants {
		from, to := first.Start, first.Start.Add(interval)
		if !first.End.Before(to) {
			continue
		}
		var sum int64
		for _, g := range cutGrants {
			if !g.Start.Before(from) && g.End.Before(to) {
				sum += g.Permits
			}
		}
		if sum > permits || sum == permits && sum > 0 && from.Before(at) {
			permits, at = sum, from
		}
	}
	return permits, at
}

func randomGrants(r *rand.Rand, n int) []Grant {
	grants := make([]Grant, n)
	for i := range grants {
		start := time.Duration(r.Intn(40)) * ms / 2 // often equal, often exactly an interval apart
		length := time.Duration(0)
		if r.Intn(2) == 0 {
			length = time.Duration(r.Intn(60)) * ms / 4
		}
		grants[i] = grant(1+r.Int63n(4), start, start+length)
	}
	return grants
}

// seeded returns random numbers whose seed a failing test prints.
func seeded(t *testing.T) *rand.Rand {
	seed := time.Now().UnixNano()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewSource(seed))
}

func BenchmarkLargestOfAMillion(b *testing.B) {
	r := rand.New(rand.NewSource(1))
	grants := make([]Grant, 1_000_000)
	for i := range grants {
		start := time.Duration(r.Int63n(int64(time.Minute)))
		grants[i] = grant(1, start, start+time.Duration(r.Intn(200_000)))
	}
	for b.Loop() {
		if permits, _ := Largest(grants, time.Second); permits < int64(len(grants))/60 {
			b.Fatalf("%d permits in the largest window are fewer than the mean", permits)
		}
	}
}
