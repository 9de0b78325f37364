package redisson

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

// Four processes whose callers always wait get the same part of the rate, and no caller waits much
// longer than its fair turn. No permit is wasted. Without turns (fairshare.Share), a process got
// nothing for 25 fair turns.
func TestProcessesTakeTurns(t *testing.T) {
	const processes = 4
	for _, c := range []struct {
		rate    rratelimiter.Rate
		callers int // of each process
		turns   int // fair turns that are measured
	}{
		{rratelimiter.PerSecond(20), 10, 30},
		{rratelimiter.PerSecond(1), 4, 25},
		{rratelimiter.Rate{Permits: 10, Interval: 250 * ms}, 10, 30},
	} {
		t.Run(fmt.Sprint(c.rate), func(t *testing.T) {
			turn := time.Duration(processes*c.callers) * c.rate.Interval / time.Duration(c.rate.Permits)
			var mu sync.Mutex // guards the variables below
			granted, sum, longest := make([]int, processes), 0, time.Duration(0)
			m := meeting{
				rate: c.rate, gos: processes, callers: c.callers,
				early: 10 * turn, // the processes learn of each other
				granted: func(process int, waited time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					granted[process]++
					sum++
					longest = max(longest, waited)
				},
			}
			_, used := m.run(t, time.Duration(c.turns)*turn)
			t.Logf(
				"%v permits, %.1f %% of the rate; the longest wait was %v, a fair turn is %v", granted, 100*used,
				longest, turn,
			)
			if longest > 3*turn {
				t.Errorf("a caller waited for %v, a fair turn is %v", longest, turn)
			}
			for i, n := range granted {
				if part := float64(n) * processes / float64(sum); part < 0.85 || part > 1.15 {
					t.Errorf("process %d got %d of %d permits", i, n, sum)
				}
			}
			if used < 0.97 {
				t.Errorf("only %.1f %% of the rate was used", 100*used)
			}
		})
	}
}
