package faults

import (
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// lease_test.go takes the server away while a process holds permits that it took ahead of demand
// (WithLease).

// ahead tells of calls that took some permits ahead.
type ahead chan struct{}

func (a ahead) Call(info rratelimiter.CallInfo) {
	if info.Leased >= 5 {
		select {
		case a <- struct{}{}:
		default:
		}
	}
}

// TestLeasesWhileTheServerIsAway: leases are granted from until they end; then callers see what
// they see without leases. Nothing of them is lost for longer than an interval.
func TestLeasesWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	const lease, away = 300 * time.Millisecond, callTimeout + 700*time.Millisecond
	rate := rratelimiter.Rate{Permits: 600, Interval: 3 * time.Second}
	var mu sync.Mutex
	var worst time.Duration
	t.Run("faults", func(t *testing.T) {
		for _, test := range []struct {
			name    string
			forgets bool // the server may forget what it had granted
			start   func(t *testing.T) (rdb rratelimiter.Redis, fail func() (failed time.Time), mend func())
		}{
			{name: "it hangs", start: func(t *testing.T) (rratelimiter.Redis, func() time.Time, func()) {
				server := redistest.Real(t)
				return server.Client(), func() time.Time { server.Pause(); return time.Now() }, server.Resume
			}},
			{name: "it dies", forgets: true, start: func(t *testing.T) (rratelimiter.Redis, func() time.Time, func()) {
				server := redistest.Real(t)
				return server.Client(), func() time.Time {
					server.Kill()
					return time.Now()
				}, func() { server.Restart() }
			}},
			{
				name:    "it fails over",
				forgets: true,
				start: func(t *testing.T) (rratelimiter.Redis, func() time.Time, func()) {
					servers := redistest.Sentinel(t, 2)
					master := servers.Master()
					return servers.Client(), func() time.Time { master.Pause(); return time.Now() }, func() {
						master.Resume()
						servers.Failover()
					}
				},
			},
		} {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				taken := make(ahead)
				rdb, fail, mend := test.start(t)
				limiter := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(taken)).
					RateLimiter("leased", rratelimiter.WithRate(rate), rratelimiter.WithLease(lease))
				enough := make(chan struct{})
				var got calls
				var loading sync.WaitGroup
				loading.Go(func() {
					got = load(4, 1, 40*time.Millisecond, enough, func(int) call {
						return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
					})
				})
				time.Sleep(2 * lease)
				// so that there is a lease, and it has just begun
				for <-taken; time.Now().UnixNano()%int64(lease) < int64(lease*3/4); <-taken {
				}
				failed := fail()
				time.Sleep(away)
				mending := time.Now()
				mend()
				recovered := firstGrant(t, limiter, time.Now())
				close(enough)
				loading.Wait()

				var last time.Duration
				leased := got.where(func(c call) bool {
					return c.Granted && c.Start.After(failed) && c.End.Before(mending)
				})
				for _, c := range leased {
					last = max(last, c.Start.Sub(failed))
				}
				errors := got.where(func(c call) bool { return c.err != nil })
				t.Logf(
					"%d calls, %d granted while it was away, up to %v after it failed, %d failed; back after %v",
					len(got),
					len(leased), last, len(errors), recovered,
				)
				if len(errors) == 0 {
					t.Error("the lease did not end")
				}
				if recovered > callTimeout+slack {
					t.Errorf("it took %v until permits were granted again", recovered)
				}
				bounded(t, got)
				judge := func(what string, part calls) {
					var grants []window.Grant
					for _, c := range part.where(isGranted) {
						grants = append(grants, window.Grant{Permits: 1, Start: c.Start, End: c.End})
					}
					if most, _ := window.Largest(grants, rate.Interval); most > rate.Permits {
						t.Errorf("%s a window holds %d permits", what, most)
					}
				}
				if test.forgets {
					judge("before it failed,", got.where(func(c call) bool { return c.Start.Before(mending) }))
					judge("after it came back,", got.where(func(c call) bool { return !c.Start.Before(mending) }))
				} else {
					judge("in all,", got)
				}
				// what is given back in the background is in time for that
				time.Sleep(callTimeout + rate.Interval + lease*5/4)
				if state, err := limiter.State(t.Context()); err != nil || state.Used != 0 || !state.Consistent {
					t.Errorf("an interval and a lease later: %+v, %v", state, err)
				}
				mu.Lock()
				defer mu.Unlock()
				worst = max(worst, last)
			})
		}
	})
	if worst == 0 { // with one server this can be: on a busy machine the lease is over once it is dead
		t.Error("no lease was granted from")
	}
	row{
		section: gone, fault: "it hangs, dies or fails over while leases of 300 ms are held (`WithLease`)",
		sees:   "grants, until the lease ends or has too few permits; then the same as without leases",
		within: "the last grant of a lease, after the fault, within", limit: lease * 5 / 4,
		after: "the permits of a lease are free again one interval after its end",
	}.proves(t, worst)
}
