package window

import (
	"sync"
	"testing"
	"time"
)

// In whatever order grants are added within the slack, and whenever Largest is called, a Checker
// returns the result of the log.
func TestCheckerAgreesWithLargest(t *testing.T) {
	r := seeded(t)
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		interval := time.Duration(1+r.Intn(500)) * ms
		checker := NewChecker(interval)
		var grants []Grant
		now := time.Duration(0)
		for range 20_000 {
			now += time.Duration(r.Intn(int(4 * ms)))
			back := time.Duration(r.Intn(int(300 * ms)))
			grants = append(grants, grant(1+r.Int63n(5), now-back-time.Duration(r.Intn(int(20*ms))), now-back))
		}
		for i, g := range grants {
			checker.Add(g)
			if r.Intn(1000) == 0 {
				permits, at := checker.Largest()
				if want, wantAt := Largest(grants[:i+1], interval); permits != want || !at.Equal(wantAt) {
					t.Fatalf("round %d, after %d grants: got %d at %v, want %d at %v",
						round, i+1, permits, at, want, wantAt)
				}
			}
		}
		permits, at := checker.Largest()
		if want, wantAt := Largest(grants, interval); permits != want || !at.Equal(wantAt) {
			t.Fatalf("round %d: got %d at %v, want %d at %v", round, permits, at, want, wantAt)
		}
		if late := checker.Late(); late != 0 {
			t.Fatalf("round %d: %d grants counted as late, none was", round, late)
		}
	}
}

func TestCheckerForgetsWhatIsPast(t *testing.T) {
	const interval, perInterval = 100 * ms, 200
	checker := NewChecker(interval)
	most := 0
	for i := range 500_000 {
		checker.Add(instant(1, time.Duration(i)*interval/perInterval))
		most = max(most, checker.Held())
	}
	// Two intervals and a second are 2,400 grants; doubling may hold twice that.
	if most > 2*2400+sweepAt {
		t.Errorf("held up to %d grants", most)
	}
	if permits, _ := checker.Largest(); permits != perInterval {
		t.Errorf("got %d permits in a window, want %d", permits, perInterval)
	}
}

func TestCheckerSaysWhatCameTooLate(t *testing.T) {
	checker := NewChecker(100 * ms)
	checker.Add(instant(1, 0))
	checker.Add(instant(1, time.Hour))
	checker.Largest() // drops the first
	const slackEnds = time.Hour - time.Second - 100*ms
	for _, c := range []struct {
		name string
		at   time.Duration
		late int64
	}{
		{"long ago", 50 * ms, 1},
		{"just beyond the slack", slackEnds - 1*ms, 2},
		{"just within the slack", slackEnds, 2},
		{"a moment ago", time.Hour - 1*ms, 2},
	} {
		checker.Add(instant(1, c.at))
		if late := checker.Late(); late != c.late {
			t.Errorf("%s: got %d late grants, want %d", c.name, late, c.late)
		}
	}
}

func TestCheckerNamesTheEarliestWindow(t *testing.T) {
	checker := NewChecker(100 * ms)
	checker.Add(instant(5, 500*ms))
	checker.Largest()
	checker.Add(instant(5, 300*ms)) // reported late, but within the slack
	if permits, at := checker.Largest(); permits != 5 || !at.Equal(epoch.Add(300*ms)) {
		t.Errorf("got %d at %v, want 5 at 300ms", permits, at.Sub(epoch))
	}
}

func TestCheckerOfNothing(t *testing.T) {
	checker := NewChecker(time.Second)
	checker.Add(instant(0, 0))
	for range 2 { // a call must not change the result
		if permits, at := checker.Largest(); permits != 0 || !at.IsZero() {
			t.Errorf("got %d at %v, want nothing", permits, at)
		}
	}
	checker.Add(instant(2, -60*365*24*time.Hour)) // before 1970
	if permits, at := checker.Largest(); permits != 2 || checker.Late() != 0 {
		t.Errorf("got %d at %v with %d late, want 2 and none late", permits, at, checker.Late())
	}
	checker.Add(instant(3, -60*365*24*time.Hour))
	if permits, _ := checker.Largest(); permits != 5 || checker.Late() != 0 {
		t.Errorf("got %d with %d late, want 5 and none late", permits, checker.Late())
	}
}

func TestCheckerIsForManyGoroutines(t *testing.T) {
	const workers, each = 8, 5000
	checker := NewChecker(time.Minute)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				checker.Add(instant(1, time.Duration(i*workers+w)*time.Microsecond))
				if i%1000 == 0 {
					checker.Largest()
				}
			}
		})
	}
	group.Wait()
	if permits, _ := checker.Largest(); permits != workers*each {
		t.Errorf("got %d permits, want %d", permits, workers*each)
	}
}

func BenchmarkCheckerAdd(b *testing.B) {
	checker := NewChecker(time.Second)
	i := 0
	for b.Loop() {
		checker.Add(instant(1, time.Duration(i)*10*time.Microsecond))
		i++
	}
	if permits, _ := checker.Largest(); permits > 100_000 {
		b.Fatalf("%d permits in a window that can hold 100,000", permits)
	}
}
