package window

import (
	"fmt"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// set_rate_test.go tests what a new rate does with the permits in use.

func TestSetRateForgetsOrKeeps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		perClient := func(n int64) rratelimiter.Rate {
			return rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: n, Interval: time.Minute}
		}
		tests := []struct {
			name   string
			before rratelimiter.Rate
			used   int64
			after  rratelimiter.Rate
			keep   bool
			free   int64 // right after
			// once the earlier grants have expired under the old rate; the new interval is longer
			later int64
		}{
			{"forgets", rratelimiter.PerMinute(10), 7, rratelimiter.PerMinute(10), false, 10, 10},
			{"keeps the same", rratelimiter.PerMinute(10), 7, rratelimiter.PerMinute(10), true, 3, 10},
			{"keeps in more", rratelimiter.PerMinute(10), 7, rratelimiter.PerMinute(20), true, 13, 20},
			{"keeps in less", rratelimiter.PerMinute(10), 7, rratelimiter.PerMinute(5), true, 0, 5},
			{"keeps in as much", rratelimiter.PerMinute(10), 7, rratelimiter.PerMinute(7), true, 0, 7},
			{"keeps for longer", rratelimiter.PerMinute(10), 7, rratelimiter.PerHour(10), true, 3, 3},
			{"keeps for shorter", rratelimiter.PerMinute(10), 7, rratelimiter.PerSecond(10), true, 10, 10},
			{"forgets another type", rratelimiter.PerMinute(10), 7, perClient(10), false, 10, 10},
			{"forgets another type, whatever is wanted", rratelimiter.PerMinute(10), 7, perClient(10), true, 10, 10},
			{"keeps one client's", perClient(10), 7, perClient(12), true, 5, 12},
			{"forgets one client's", perClient(10), 7, perClient(12), false, 12, 12},
			{"forgets one client's for all", perClient(10), 7, rratelimiter.PerMinute(12), true, 12, 12},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r := rig.New(t, s)
				r.Wipe()
				l := r.Limiter("rl")
				r.SetRate(l, test.before)
				r.Try(l, test.used)
				other := r.Beside("other").Limiter("rl")
				r.Try(other, 1)
				if test.before.Type == rratelimiter.Overall {
					r.Release(other, 1)
				}
				r.Advance(time.Second)
				var opts []rratelimiter.SetOption
				if test.keep {
					opts = append(opts, rratelimiter.KeepState())
				}
				if updated, err := l.UpdateRate(t.Context(), test.after, opts...); !updated || err != nil {
					t.Fatal(updated, err)
				}
				if got, err := l.Config(t.Context()); got != test.after || err != nil {
					t.Errorf("the rate is %v, %v", got, err)
				}
				state, err := l.State(t.Context())
				r.Must(err)
				if state.Available != test.free || !state.Consistent {
					t.Errorf("the state is %+v, want %d free", state, test.free)
				}
				if free := r.Free(l); free != test.free {
					t.Errorf("%d are free, want %d", free, test.free)
				}
				if test.before.Type == rratelimiter.PerClient &&
					r.Redis.Exists(t.Context(), "{rl}:value:other", "{rl}:permits:other").Val() != 2 {
					t.Error("another client's state is gone")
				}
				if test.before.Type != test.after.Type {
					for _, key := range []string{"{rl}:permits", "{rl}:permits:me"} {
						if n := r.Redis.Exists(t.Context(), key).Val(); n != 0 {
							t.Errorf("%q is still there", key)
						}
					}
				}
				r.Advance(time.Minute)
				if free := r.Free(l); free != test.later {
					t.Errorf("a minute later %d are free, want %d", free, test.later)
				}
				if !r.Try(l, test.later) || test.later < test.after.Permits && r.Try(l, 1) {
					t.Errorf("a minute later not exactly %d were granted", test.later)
				}
			})
		}
	})
}

func TestKeptGrantsAboveTheNewRateReturnInOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		l := r.Limiter("rl")
		r.SetRate(l, rratelimiter.PerMinute(10))
		for range 5 {
			r.Try(l, 2)
			r.Advance(time.Second)
		}
		r.SetRate(l, rratelimiter.PerMinute(3), rratelimiter.KeepState())
		r.Advance(55 * time.Second) // the first two have returned, eight are live
		for i, want := range []int64{0, 0, 0, 1, 3, 3} {
			if free := r.Free(l); free != want {
				t.Errorf("after %d records %d are free, want %d", i+1, free, want)
			}
			r.Advance(time.Second)
		}
	})
}

// TestANewRateBeforeItsRecordsAreAddedUp: very many records are added up after the rate was set.
// Until then nothing is free, and what returns pays first for what a lower rate owes.
func TestANewRateBeforeItsRecordsAreAddedUp(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, test := range []struct {
			name          string
			live, expired int
			old, rate     int64
			value         string
			want          string // free permits right afterwards
		}{
			{"lowered", 2500, 500, 3000, 100, "0", "-2400"},
			{"lowered, with more expired records than leave in one call", 3000, 2500, 10000, 100, "4500", "-2900"},
			{"raised", 2500, 0, 3000, 10000, "500", "0"},
			{"raised, and the free permits are those of another rate", 9000, 0, 5000, 10000, "0", "0"},
		} {
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			r.SetRate(l, rratelimiter.PerMinute(test.old))
			records := rig.ManyMembers(test.live + test.expired)
			r.AddRecords(l, r.Millis()-60_001, records[test.live:]...)
			r.AddRecords(l, r.Millis(), records[:test.live]...)
			r.WriteValue(l, test.value)
			request := protocol.SetRate{
				Now: rig.LimiterCore(l).Now(), Rate: protocol.Rate{Permits: test.rate, Interval: 60000}, Keep: true,
			}
			reply, err := rig.Core(r.Client).Topology().Run(t.Context(), new(script.Attempts), protocol.SetRateScript,
				true,
				rig.Keys(l), request.Args()...)
			r.Must(err)
			set, notes := request.Reply(reply)
			if !set || !notes.Has(protocol.Many|protocol.RebuildPending) {
				t.Errorf("%s: %v, %v", test.name, set, notes)
			}
			for notes.Has(protocol.RebuildPending) {
				g, err := rig.OneCall(t.Context(), l, protocol.BatchAsk{Rebuild: true})
				r.Must(err)
				notes = g.First.Notes
			}
			if free := r.Redis.Get(t.Context(), "{rl}:value").Val(); free != test.want {
				t.Errorf("%s: %s are free, want %s", test.name, free, test.want)
			}
		}
	})
}

// TestRatesThatAlternate: old and new processes of a deployment enforce two rates, each against the
// other. What is owed above the lower rate is not forgotten when the higher one returns, so an
// interval holds no more than the higher rate.
func TestRatesThatAlternate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		limiters := []*rratelimiter.Limiter{
			r.Limiter("rl", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(100))),
			r.Limiter("rl", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(50))),
		}
		granted, most := int64(0), int64(0)
		for i := range 20 {
			got, err := limiters[i%2].AcquireUpTo(t.Context(), 100)
			r.Must(err)
			granted += got
			most = max(most, r.Free(limiters[1]))
			r.Advance(time.Second)
		}
		if granted != 100 || most != 0 {
			t.Errorf("%d were granted in 20 s, and up to %d free, at rates of 100 and 50 a minute", granted, most)
		}
	})
}

// TestALoweredRateHoldsUnderLoad makes requests without a pause, so that there are always records.
func TestALoweredRateHoldsUnderLoad(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int64{20, 320} { // few records, and more than a refusal adds up
			r := rig.New(t, s)
			r.Wipe()
			l := r.Limiter("rl")
			r.SetRate(l, rratelimiter.PerMinute(n))
			r.WriteConfig(l, "rate", fmt.Sprint(n))
			r.WriteValue(l, "0")
			for i, member := range rig.ManyMembers(int(n)) {
				r.AddRecords(l, r.Millis()-60000+int64(i+1)*60000/n, member)
			}
			r.SetRate(l, rratelimiter.PerMinute(n/4), rratelimiter.KeepState())
			var granted int64
			for range n {
				r.Advance(time.Minute / time.Duration(n))
				got, err := l.AcquireUpTo(t.Context(), n)
				r.Must(err)
				granted += got
				state, err := l.State(t.Context())
				r.Must(err)
				if got > 0 && state.Used > n/4 {
					t.Fatalf("%d were granted, and %d live, of %d a minute", got, state.Used, n/4)
				}
				if !state.Consistent {
					t.Fatalf("the state is %+v", state)
				}
			}
			if granted != n/4 {
				t.Errorf("%d were granted in the first minute, want %d", granted, n/4)
			}
			// When the rate is raised again, no grant is forgotten.
			r.SetRate(l, rratelimiter.PerMinute(n/8), rratelimiter.KeepState())
			r.SetRate(l, rratelimiter.PerMinute(n), rratelimiter.KeepState())
			if free := r.Free(l); free != n-n/4 {
				t.Errorf("raised again, %d are free, want %d", free, n-n/4)
			}
		}
	})
}
