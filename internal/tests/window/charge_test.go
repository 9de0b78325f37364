package window

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// scoresOf returns the records of a limiter from the commands of a MONITOR, each held from when the
// server wrote it.
func scoresOf(t *testing.T, commands []redistest.Command, permits string) (scores []window.Score) {
	charges := false
	for _, c := range commands {
		if strings.HasPrefix(c.Name(), "EVAL") {
			charges = c.Args[1] == protocol.ChargeScript.SHA || c.Args[1] == protocol.ChargeScript.Text
		}
		if c.Name() != "ZADD" || c.Args[1] != permits {
			continue
		}
		for score, member := range c.Added() {
			at, ok := redistest.Micros(score)
			if !ok {
				t.Fatal(score)
			}
			scores = append(scores, window.Score{Permits: rig.PermitsOf(member), At: at, Added: c.Time.UnixMicro(),
				Charged: charges})
		}
	}
	return scores
}

// Two processes with callers that try and wait, one of which also charges: when a permit is
// granted, no more permits than the rate are held, those of a debt included. No interval pays back
// more than the rate.
func TestNoWindowAboveTheRateWithCharges(t *testing.T) {
	const permits, interval, lasts = 200, 250 * ms, 3 * time.Second
	server := redistest.Real(t)
	recording := server.Monitor()
	calls := &rig.Log{}
	var all sync.WaitGroup
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	ended := func(err error) {
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	for process := range 2 {
		client := rratelimiter.NewClient(server.Client(), rig.Patient, rratelimiter.WithObserver(calls))
		l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: permits, Interval: interval}))
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					ended(l.Acquire(ctx, 1+rand.Int64N(3)))
				}
			})
			all.Go(func() {
				for ctx.Err() == nil {
					_, err := l.TryAcquire(ctx, 1+rand.Int64N(3))
					ended(err)
					time.Sleep(rand.N(5 * ms))
				}
			})
		}
		if process == 0 {
			all.Go(func() {
				for ctx.Err() == nil {
					n := 1 + rand.Int64N(6)
					if rand.N(60) == 0 {
						n = permits
					}
					_, err := l.Charge(ctx, n)
					ended(err)
					time.Sleep(rand.N(40 * ms))
				}
			})
		}
	}
	all.Wait()
	scores := scoresOf(t, recording.Stop(), "{l}:permits")
	var charged, granted int64
	for i := range scores {
		if scores[i].Charged {
			charged += scores[i].Permits
		} else {
			granted += scores[i].Permits
		}
	}
	if most, at := window.LargestScores(scores, interval); most > permits {
		t.Errorf("%d permits are held when some are granted, in the window from %d", most, at)
	}
	var slowest time.Duration
	for _, call := range calls.All() {
		slowest = max(slowest, call.Latency)
	}
	for i := range scores {
		scores[i].Added, scores[i].Charged = 0, false
	}
	if most, at := window.LargestScores(scores, interval-slowest-ms); most > permits {
		t.Errorf("an interval pays back %d permits, from %d on; calls took up to %v", most, at, slowest)
	}
	t.Logf("%d permits granted, %d charged", granted, charged)
	if granted == 0 || charged == 0 {
		t.Error("nothing was granted or charged")
	}
}
