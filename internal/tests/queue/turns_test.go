package queue

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// Four processes whose callers always wait get the same part of the rate, and no caller waits much longer than its fair turn. No
// permit is wasted. Without turns (fairshare.Share), a process got nothing for 25 fair turns.
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
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				random := rand.New(rand.NewPCG(1, 0))
				begin := time.Now().Add(10 * turn) // until then, the processes learn of each other
				end := begin.Add(time.Duration(c.turns) * turn)
				var mu sync.Mutex // guards random, granted and longest
				granted, longest := make([]int, processes), time.Duration(0)
				way := func() int64 { return int64(50+random.IntN(100)) * int64(time.Microsecond) } // travel time to the server, or back
				var all sync.WaitGroup
				for i := range processes {
					p := b.Process(rratelimiter.WithClientID(fmt.Sprint("go", i)))
					l := p.RateLimiter("l", rratelimiter.WithRate(c.rate))
					for range c.callers {
						all.Go(func() {
							for time.Now().Before(end) {
								mu.Lock()
								p.Wire.There.Store(way())
								p.Wire.Back.Store(way())
								mu.Unlock()
								came := time.Now()
								if err := l.Acquire(t.Context(), 1); err != nil {
									t.Error(err)
									return
								}
								mu.Lock()
								if now := time.Now(); !came.Before(begin) && now.Before(end) {
									granted[i]++
									longest = max(longest, now.Sub(came))
								}
								mu.Unlock()
							}
						})
					}
				}
				all.Wait()
				sum := 0
				for _, n := range granted {
					sum += n
				}
				t.Logf("%v permits; the longest wait was %v, a fair turn is %v", granted, longest, turn)
				if longest > 3*turn {
					t.Errorf("a caller waited for %v, a fair turn is %v", longest, turn)
				}
				for i, n := range granted {
					if part := float64(n) * processes / float64(sum); part < 0.85 || part > 1.15 {
						t.Errorf("process %d got %d of %d permits", i, n, sum)
					}
				}
				if most := int(c.rate.Permits * int64(end.Sub(begin)/c.rate.Interval)); sum+processes*c.callers < most*97/100 {
					t.Errorf("%d permits were granted in a time of %d", sum, most)
				}
			})
		})
	}
}
