package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// lease_test.go tests permits that are taken ahead (WithLease).

// Clients with leases, and one without, share a limiter in real time: by the callers' clocks no
// window of the interval holds more than the rate, at any demand; at a demand above the rate most
// of it is used.
func TestNoWindowAboveTheRateWithLeases(t *testing.T) {
	redis := redistest.Real(t)
	const lease, lasts = 10 * time.Millisecond, 800 * time.Millisecond
	rate := rratelimiter.Rate{Permits: 2000, Interval: 200 * time.Millisecond}
	for _, test := range []struct {
		name string
		opts []rratelimiter.LimiterOption
		pace time.Duration // between the requests of one caller
	}{
		{"little demand", nil, 3 * time.Millisecond},
		{"much demand", nil, 300 * time.Microsecond},
		{"more demand than the rate", nil, 0},
		{"by the server's time", []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}, 100 * time.Microsecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := &rig.Log{}
			var mu sync.Mutex
			var grants []window.Grant
			var all sync.WaitGroup
			began := time.Now()
			for process := range 4 {
				client := rratelimiter.NewClient(redis.Client(), rig.Patient, rratelimiter.WithObserver(calls))
				opts := append([]rratelimiter.LimiterOption{rratelimiter.WithRate(rate)}, test.opts...)
				if process > 0 {
					opts = append(opts, rratelimiter.WithLease(lease))
				}
				l := client.RateLimiter(t.Name(), opts...)
				for range 4 {
					all.Go(func() {
						var own []window.Grant
						for time.Since(began) < lasts {
							n, start := 1+rand.Int64N(3), time.Now()
							ok, err := l.TryAcquire(t.Context(), n)
							if err != nil {
								t.Error(err)
								return
							}
							if ok {
								own = append(own, window.Grant{Permits: n, Start: start, End: time.Now()})
							}
							if test.pace > 0 {
								time.Sleep(rand.N(2 * test.pace))
							} else if !ok {
								time.Sleep(100 * time.Microsecond)
							}
						}
						mu.Lock()
						defer mu.Unlock()
						grants = append(grants, own...)
					})
				}
			}
			all.Wait()
			var sum int64
			for _, g := range grants {
				sum += g.Permits
			}
			most, at := window.Largest(grants, rate.Interval)
			ideal := float64(rate.Permits) * (float64(lasts)/float64(rate.Interval) + 1)
			t.Logf("at most %d in a window, %d in sum, %.1f %% of what the rate allows, %d calls for %d requests",
				most, sum, 100*float64(sum)/ideal, len(calls.All()), len(grants))
			if most > rate.Permits || sum == 0 {
				t.Errorf("%d permits within an interval, from %v on", most, at)
			}
		})
	}
}

// Requests that a lease answers need no call; what it was not needed for comes back, and a change
// by this client ends it.
func TestALeaseAnswersWithoutACall(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		calls := &rig.Log{}
		client := rratelimiter.NewClient(s.Client(), rig.Patient, rratelimiter.WithObserver(calls))
		l := client.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.Rate{Permits: 100_000, Interval: 10 * time.Second}),
			rratelimiter.WithLease(time.Second))
		var granted atomic.Int64
		for range 5000 {
			ok, err := l.TryAcquire(t.Context(), 1)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			granted.Add(1)
		}
		if n := len(calls.All()); n > 100 {
			t.Errorf("%d calls for 5,000 requests", n)
		}
		// a change makes it void
		rig.Soon(t, "the end of the last refill", func() bool { return !rig.Core(client).Look("l").InFlight })
		// ends the lease
		if released, err := l.Release(t.Context(), 1); released != 1 || err != nil {
			t.Fatal(released, err)
		}
		leases := int64(1)
		for _, call := range calls.All() {
			if call.Leased > 0 {
				leases++
			}
		}
		rig.Soon(t, "the return of what is unused", func() bool {
			free, err := l.AvailablePermits(t.Context())
			counted := 100_000 - free + 1 - granted.Load()
			// of each lease, what is less than a hundredth in d is not given back
			return err == nil && counted >= 0 && counted < leases*100
		})
	})
}

// What a client changes ends its lease at once, and so does a caller that waits: it comes first.
func TestALeaseEnds(t *testing.T) {
	rate := rratelimiter.Rate{Permits: 1000, Interval: 10 * time.Minute}
	for name, end := range map[string]func(r *rig.Rig, l *rratelimiter.Limiter) error{
		"SetRate": func(r *rig.Rig, l *rratelimiter.Limiter) error {
			return l.SetRate(r.T.Context(), rate, rratelimiter.KeepState())
		},
		"Release": func(r *rig.Rig, l *rratelimiter.Limiter) error {
			_, err := l.Release(r.T.Context(), 1)
			return err
		},
		"Expire": func(r *rig.Rig, l *rratelimiter.Limiter) error {
			_, err := l.Expire(r.T.Context(), time.Hour)
			return err
		},
		"the clock": func(r *rig.Rig, _ *rratelimiter.Limiter) error { r.Advance(time.Minute); return nil },
		"Acquire": func(r *rig.Rig, l *rratelimiter.Limiter) error {
			ctx, cancel := context.WithCancel(r.T.Context())
			r.T.Cleanup(cancel)
			go l.Acquire(ctx, 1000)
			rig.Soon(r.T, "the wait", func() bool { return r.Client.Waiting()["l"] == 1 })
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				r := rig.New(t, s)
				rig.Core(r.Client).Tune(limiter.Tuning{Patience: time.Minute}) // requests overtake a stalled call
				l := r.Limiter("l", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute))
				rig.MustTry(t, l, 100, true)
				rig.MustTry(t, l, 50, true) // of 100 ahead
				if calls := r.Calls.Load(); calls > 2 {
					t.Fatalf("%d calls", calls)
				}
				if err := end(r, l); err != nil {
					t.Fatal(err)
				}
				switch taken := int64(150); name {
				case "the clock":
				case "Acquire":
					rig.MustTry(t, l, 1, false)
				case "Release":
					if free := r.Free(r.Limiter("l")); free != 1000-taken+1 {
						t.Errorf("%d are free", free)
					}
				default:
					rig.Soon(t, "the return of what is unused", func() bool {
						return r.Free(r.Limiter("l")) == 1000-taken
					})
				}
				if n := rig.Core(r.Client).Inspect().Leases; n != 0 && name != "the clock" {
					t.Errorf("%d leases", n)
				}
			})
		})
	}
}

// A change by this client is executed between the call of a lease and its reply, and so is a grant
// after it, in a record with the score of the lease. That record stays whole.
func TestALeaseFromBeforeAChangeTakesNothingFromLaterRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rate := rratelimiter.PerHour(1000)
		perClient := rate
		perClient.Type = rratelimiter.PerClient
		for name, change := range map[string]func(l *rratelimiter.Limiter) error{
			"SetRate": func(l *rratelimiter.Limiter) error { return l.SetRate(t.Context(), rate) },
			"SetRate to another type, KeepState": func(l *rratelimiter.Limiter) error {
				return l.SetRate(t.Context(), perClient, rratelimiter.KeepState())
			},
			"Release": func(l *rratelimiter.Limiter) error {
				_, err := l.Release(t.Context(), 1000)
				return err
			},
			"Reset": func(l *rratelimiter.Limiter) error {
				_, err := l.Reset(t.Context())
				return err
			},
		} {
			r := rig.New(t, s)
			r.Wipe()
			client, tap := r.Tapped()
			l := client.RateLimiter("l", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute))
			other := client.RateLimiter("l", rratelimiter.WithGranularity(time.Minute))
			tap.Plan(rig.Plan{Cut: true, Replies: 1, Then: func() {
				if err := change(other); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if ok, err := other.TryAcquire(t.Context(), 200); !ok || err != nil {
					t.Errorf("%s: %v, %v", name, ok, err)
				}
			}})
			rig.MustTry(t, l, 100, true)
			if n := rig.Core(client).Inspect().Leases; n != 0 {
				t.Errorf("%s: %d leases of permits that do not count", name, n)
			}
			time.Sleep(20 * time.Millisecond) // for a call in the background
			if free := r.Free(client.RateLimiter("l")); free != 800 {
				t.Errorf("%s: %d are free after 200 of 1000 were granted", name, free)
			}
		}
	})
}

// A change that is not sent, since its context has ended, loses nothing.
func TestAChangeThatIsNotSentKeepsTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, l, 100, true)
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := l.Expire(ended, time.Hour); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s := rig.State(t, l); s.Leased != 100 || s.Used != 200 {
			t.Errorf("%+v", s)
		}
	})
}

// A call that first enforces its rate brings a lease all the same.
func TestACallThatEnforcesItsRateBringsALease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.SetRate(r.Limiter("l"), rratelimiter.PerHour(500))
		l := r.Limiter("l",
			rratelimiter.WithEnforcedRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, l, 100, true)
		if s := rig.State(t, l); s.Leased != 100 || s.Used != 200 {
			t.Errorf("%+v", s)
		}
	})
}

// While a limiter is being changed, no lease is taken: the change could remove its record.
func TestNoLeaseDuringAChange(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute))
		rig.MustSet(t, l, rratelimiter.PerHour(1000))
		// the release is executed before
		tap.Plan(rig.Plan{Cut: true, Replies: 1, Then: func() { rig.MustTry(t, l, 100, true) }})
		if _, err := l.Release(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if s := rig.State(t, l); s.Leased != 0 || s.Used != 100 {
			t.Errorf("%+v", s)
		}
		rig.MustTry(t, l, 100, true)
		if s := rig.State(t, l); s.Leased == 0 {
			t.Errorf("after the change: %+v", s)
		}
	})
}

// A lease must not outlive the limiter, whose keys do not outlive its TTL.
func TestALeaseEndsWithTheLimiter(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("l", rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute))
		for _, lives := range []time.Duration{10 * time.Second, 10 * time.Minute} { // leases last 15 s at least
			r.Wipe()
			rig.MustTry(t, l, 1, true)
			if _, err := l.Expire(t.Context(), lives); err != nil {
				t.Fatal(err)
			}
			rig.MustTry(t, l, 100, true)
			if s := rig.State(t, l); (s.Leased > 0) != (lives > time.Minute) {
				t.Errorf("with a TTL of %v: %+v", lives, s)
			}
		}
	})
}

// What a rename replaces has no leases either.
func TestALeaseOfAReplacedLimiterEnds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		rate := rratelimiter.PerHour(1000)
		replaced := r.Limiter("to", rratelimiter.WithRate(rate), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, replaced, 100, true)
		from := r.Limiter("from", rratelimiter.WithRate(rate))
		rig.MustTry(t, from, 1, true)
		if err := from.Rename(t.Context(), "to"); err != nil {
			t.Fatal(err)
		}
		rig.MustTry(t, replaced, 1, true)
		if free := r.Free(r.Limiter("to")); free > 998 {
			t.Errorf("%d are free after 2 of 1000 were granted", free)
		}
	})
}

// If a call after a refill does not arrive, its retry does not take the record of the refill for
// its own.
func TestALostReplyAfterARefill(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerHour(10_000)), rratelimiter.WithLease(time.Minute))
		rig.MustTry(t, l, 100, true)
		rig.MustTry(t, l, 90, true) // of 100 ahead: more is asked for
		rig.Soon(t, "the refill", func() bool { return r.Free(r.Limiter("l")) < 9800 })
		tap.Plan(rig.Plan{Lost: true})
		rig.MustTry(t, l, 9999, false)
	})
}

// If the reply to the call that takes a lease is lost, the next attempt finds both what its caller
// was granted and the lease; nothing is taken twice.
func TestALostReplyWithALease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute))
		tap.Plan(rig.Plan{Cut: true})
		rig.MustTry(t, l, 100, true)
		if n := tap.Requests(); n != 2 {
			t.Errorf("%d requests", n)
		}
		rig.MustTry(t, l, 60, true) // of 100 ahead
		if n := tap.Requests(); n > 1 {
			t.Errorf("%d requests for what is leased", n)
		}
		rig.EndLeases(t, l)
		rig.Soon(t, "the return of what is unused", func() bool { return r.Free(r.Limiter("l")) == 1000-160 })
	})
}

// Redisson releases permits between the attempts of a call that takes a lease. The retry repairs
// the surplus, and so removes the record of the attempt itself; its caller still gets what was
// granted.
func TestALostReplyWithALeaseAndASurplus(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		client, tap := r.Tapped()
		l := client.RateLimiter("l",
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute))
		tap.Plan(rig.Plan{Cut: true, Then: func() { r.Must(r.Redis.Set(t.Context(), "{l}:value", 1000, 0).Err()) }})
		rig.MustTry(t, l, 100, true)
		if n := tap.Requests(); n != 2 {
			t.Errorf("%d requests", n)
		}
	})
}

// AllowAll is answered from leases if all limiters have one that is large enough; otherwise what it
// took goes back.
func TestAllowAllFromLeases(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		opts := []rratelimiter.LimiterOption{
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute),
		}
		a, b := r.Limiter("a", opts...), r.Limiter("b", opts...)
		rig.MustTry(t, a, 40, true)
		rig.MustTry(t, b, 10, true) // each has as many ahead
		before := r.Calls.Load()
		results, err := r.Client.AllowAllN(t.Context(), []int64{5, 5}, a, b)
		if err != nil || !results[0].Allowed || !results[1].Allowed || r.Calls.Load() != before {
			t.Errorf("%+v, %v, %d calls", results, err, r.Calls.Load()-before)
		}
		results, err = r.Client.AllowAllN(t.Context(), []int64{5, 500}, a, b)
		if err != nil || !results[0].Allowed || r.Calls.Load() == before {
			t.Errorf("more than is leased: %+v, %v", results, err)
		}
		for _, l := range []*rratelimiter.Limiter{a, b} {
			rig.EndLeases(t, l)
		}
		rig.Soon(
			t, "the return of what is unused",
			func() bool { return r.Free(r.Limiter("a")) == 950 && r.Free(r.Limiter("b")) == 485 },
		)
	})
}

// A grant from leases is returned to Redis, dated as the leases are.
func TestTakeAllFromLeases(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		opts := []rratelimiter.LimiterOption{
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute),
		}
		a, b := r.Limiter("a", opts...), r.Limiter("b", opts...)
		rig.MustTry(t, r.Limiter("a", opts[0]), 5, true)
		oldest := r.Now()
		r.Advance(time.Minute)
		rig.MustTry(t, a, 40, true)
		rig.MustTry(t, b, 10, true)
		before := r.Calls.Load()
		grants, results, err := r.Client.TakeAll(t.Context(), []int64{5, 6}, a, b)
		if err != nil || !results[1].Allowed || r.Calls.Load() != before {
			t.Fatalf("%+v, %v, %d calls", results, err, r.Calls.Load()-before)
		}
		for i, want := range []int64{5, 6} {
			if n, err := grants[i].Return(t.Context(), 10); n != want || err != nil {
				t.Errorf("%d of %d came back, %v", n, want, err)
			}
		}
		if s := rig.State(t, a); !s.Oldest.Equal(oldest) {
			t.Errorf("permits of %v came back: %+v", oldest, s)
		}
		for _, l := range []*rratelimiter.Limiter{a, b} {
			rig.EndLeases(t, l)
		}
		rig.Soon(
			t, "the return of what is unused",
			func() bool { return r.Free(r.Limiter("a")) == 955 && r.Free(r.Limiter("b")) == 990 },
		)
	})
}

// Names that were used once leave nothing behind once their leases are over.
func TestLeasesOfManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		for i := range 2 * dispatch.SpareQueues {
			l := client.RateLimiter(
				fmt.Sprint("name ", i), rratelimiter.WithRate(rratelimiter.PerMinute(10)),
				rratelimiter.WithLease(time.Second),
			)
			rig.MustTry(t, l, 1, true)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if i := rig.Core(client).Inspect(); i.Leases != 0 || i.Busy != 0 || i.Queues > dispatch.SpareQueues {
			t.Errorf("%+v", i)
		}
	})
}

// AllowAll takes leases for its limiters, if it is called again shortly after a call to Redis.
func TestAllowAllTakesLeases(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		opts := []rratelimiter.LimiterOption{
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute),
		}
		a, b := r.Limiter("a", opts...), r.Limiter("b", opts...)
		ask := func() {
			t.Helper()
			results, err := r.Client.AllowAll(t.Context(), 1, a, b)
			if err != nil || !results[0].Allowed || !results[1].Allowed {
				t.Fatal(results, err)
			}
		}
		ask()
		if n := rig.Core(r.Client).Inspect().Leases; n != 0 {
			t.Errorf("%d leases for names that were used once", n)
		}
		ask()
		rig.Soon(t, "the leases", func() bool { return rig.Core(r.Client).Inspect().Leases == 2 })
		before := r.Calls.Load()
		ask()
		if calls := r.Calls.Load() - before; calls > 2 { // those that refill the leases
			t.Errorf("%d calls for what is leased", calls)
		}
	})
}

// State tells what this client holds ahead of demand, through a handle with other options, too.
func TestStateTellsWhatIsLeased(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		opts := []rratelimiter.LimiterOption{
			rratelimiter.WithRate(rratelimiter.PerHour(1000)), rratelimiter.WithLease(time.Minute),
		}
		l, plain := r.Limiter("l", opts...), r.Limiter("l")
		leased := func(want int64) {
			t.Helper()
			for _, l := range []*rratelimiter.Limiter{l, plain} {
				if state, err := l.State(t.Context()); state.Leased != want || err != nil {
					t.Errorf("%d are leased, not %d (%v)", state.Leased, want, err)
				}
				if state, _, err := l.Glance(t.Context()); state.Leased != want || err != nil {
					t.Errorf("at a glance, %d are leased, not %d (%v)", state.Leased, want, err)
				}
			}
		}
		rig.MustTry(t, l, 100, true) // and as many ahead
		leased(100)
		rig.MustTry(t, l, 30, true)
		leased(70)
		r.Advance(2 * time.Minute)
		leased(0)
	})
}

// The demand for a limiter is remembered for the length of a lease after the last one, and then
// forgotten.
func TestTheNextLeaseIsAsLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := limittest.NewRealTime(t).Client()
		l := client.RateLimiter(
			"l", rratelimiter.WithRate(rratelimiter.PerMinute(100_000)), rratelimiter.WithLease(time.Second),
		)
		use := func(n int) {
			for range n {
				rig.MustTry(t, l, 1, true)
				time.Sleep(2 * time.Millisecond)
			}
		}
		leased := func() int64 {
			synctest.Wait()
			state, err := l.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return state.Leased
		}
		time.Sleep(100 * time.Millisecond) // buckets begin at whole seconds
		use(300)                           // until shortly before the next lease is taken
		time.Sleep(600 * time.Millisecond) // the lease is over, and was swept
		if n := leased(); n != 0 {
			t.Errorf("%d permits of a lease that is over", n)
		}
		for i := range 2 * dispatch.SpareQueues { // the limiter is not one of those used last
			rig.MustTry(t, client.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerMinute(10))), 1,
				true)
		}
		rig.MustTry(t, l, 1, true)
		if n := leased(); n < 100 || n > 1000 {
			t.Errorf("%d are leased for 0.7 s after about 300 requests in a second", n)
		}
		time.Sleep(2500 * time.Millisecond)
		synctest.Wait()
		if i := rig.Core(client).Inspect(); i.Leases != 0 || i.Busy != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// With the longest interval, all permits of a lease are free after the longest time that a Duration
// holds.
func TestLeaseOfTheLongestInterval(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithLease(time.Second),
			rratelimiter.WithRate(rratelimiter.Rate{Permits: 1000, Interval: rig.LongestInterval}))
		for range 100 {
			if r, err := l.Allow(t.Context(), 1); err != nil || !r.Allowed || r.ResetAfter < rig.LongestInterval/2 {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if calls := p.Wire.Calls(); calls > 20 {
			t.Errorf("%d calls", calls)
		}
	})
}
