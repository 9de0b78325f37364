package rratelimiter_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// Batches of several limiters that share a command.

// A sharing is limiters of one client whose calls are made at once, in one run of a pipeline.
type sharing struct {
	*rig
	client   *rratelimiter.Client
	tap      *tap
	limiters []*rratelimiter.Limiter
	sizes    []int64 // of the requests
	errs     []error
	granted  []bool
}

// newSharing returns so many limiters, of 10 permits a minute, that have been called once. They are to be asked for 1, 2 or 3
// permits.
func newSharing(t *testing.T, s *redistest.Server, limiters int, options ...rratelimiter.LimiterOption) *sharing {
	r := newRig(t, s)
	r.wipe()
	c, tap := r.tapped()
	a := &sharing{
		rig: r, client: c, tap: tap,
		sizes: make([]int64, limiters), errs: make([]error, limiters), granted: make([]bool, limiters),
	}
	options = append(options, rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	for i := range limiters {
		a.limiters = append(a.limiters, c.RateLimiter(fmt.Sprint("rl", i), options...))
		mustTry(t, a.limiters[i], 1, true)
		a.sizes[i] = int64(1 + i%3)
	}
	rratelimiter.ClientCore(c).Tune(dispatch.Tuning{Patience: time.Minute, RunsInFlight: 1})
	return a
}

// ask asks each limiter for its size at once. The plans are for their run and for the requests that follow. It
// returns the number of requests, without that of another limiter which they wait for.
func (a *sharing) ask(plans ...plan) int {
	first := a.client.RateLimiter("first", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	a.tap.requests()
	a.tap.plan(append([]plan{{then: func() {
		soon(a.t, "the batches", func() bool { return rratelimiter.ClientCore(a.client).Inspect().Queued == len(a.limiters) })
	}}}, plans...)...)
	var asked sync.WaitGroup
	asked.Go(func() { mustTry(a.t, first, 1, true) })
	soon(a.t, "the first call", func() bool { return rratelimiter.ClientCore(a.client).Inspect().InFlight == 1 })
	for i, l := range a.limiters {
		asked.Go(func() { a.granted[i], a.errs[i] = l.TryAcquire(a.t.Context(), a.sizes[i]) })
	}
	asked.Wait()
	return a.tap.requests() - 1
}

// want checks that a limiter granted its request once.
func (a *sharing) want(i int) {
	a.t.Helper()
	if !a.granted[i] || a.errs[i] != nil {
		a.t.Errorf("limiter %d: %v, %v", i, a.granted[i], a.errs[i])
	}
	if s := state(a.t, a.limiters[i]); s.Used != 1+a.sizes[i] || s.Records != 2 || !s.Consistent {
		a.t.Errorf("limiter %d: %+v", i, s)
	}
}

// TestBatchesOfManyLimitersShareCommands counts the commands on a real server.
func TestBatchesOfManyLimitersShareCommands(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a := newSharing(t, s, 40)
		monitor := func() []redistest.Command { return nil }
		if s.IsReal() {
			monitor = redistest.Monitor(t, s.Addr).Stop
		}
		if n := a.ask(); n != 1 {
			t.Errorf("%d requests", n)
		}
		commands := 0
		for _, c := range monitor() {
			if strings.EqualFold(c.Args[0], "evalsha") {
				commands++
			}
		}
		if s.IsReal() && commands != 1+3 { // for the limiter in front, and for 16, 16 and 8 limiters
			t.Errorf("%d commands", commands)
		}
		for i := range a.limiters {
			a.want(i)
		}
	})
}

// TestLostReplyOfSharedCommand: each batch finds its own grant.
func TestLostReplyOfSharedCommand(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, p := range map[string]plan{"reply lost": {cut: true}, "request lost": {lost: true}, "half of it": {half: true}} {
			a := newSharing(t, s, 9)
			if n := a.ask(p); n != 1+9 {
				t.Errorf("%s: %d requests", name, n)
			}
			for i := range a.limiters {
				a.want(i)
			}
		}
	})
}

// TestSharedCommandServesOnlyPlainGrants: the other batches get a command of their own, and an error of one limiter
// concerns no other.
func TestSharedCommandServesOnlyPlainGrants(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		a := newSharing(t, s, 9)
		others := a.limiter("rl3") // another client takes what this one believes to be free
		a.try(others, 9)
		a.set(a.limiters[4], "7") // less than the rate and the records: to be repaired
		a.ask()
		if a.granted[3] || a.errs[3] != nil {
			t.Errorf("an exhausted limiter: %v, %v", a.granted[3], a.errs[3])
		}
		if s := state(t, a.limiters[4]); !a.granted[4] || a.errs[4] != nil || s.Used != 1+2 {
			t.Errorf("a limiter that lost permits: %v, %v, %+v", a.granted[4], a.errs[4], s)
		}
		for _, i := range []int{0, 1, 2, 5, 6, 7, 8} {
			a.want(i)
		}

		a = newSharing(t, s, 9)
		a.must(a.rdb.Del(t.Context(), "{rl5}:value").Err())
		a.must(a.rdb.LPush(t.Context(), "{rl5}:value", "a list").Err())
		a.ask()
		if a.errs[5] == nil || !strings.Contains(a.errs[5].Error(), "WRONGTYPE") {
			t.Errorf("a limiter with a key of another type: %v", a.errs[5])
		}
		for _, i := range []int{0, 1, 2, 3, 4, 6, 7, 8} {
			a.want(i)
		}
	})
}

// TestOneLimiterTwiceInASharedCommand: limiters of one name with different options, and of two names with the same state,
// have batches of their own.
func TestOneLimiterTwiceInASharedCommand(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, name := range []string{"rl0", "{rl0}"} {
			a := newSharing(t, s, 2)
			a.limiters[1] = a.client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithDenyCache(1))
			a.sizes = []int64{6, 6}
			a.ask()
			if a.granted[0] == a.granted[1] || a.errs[0] != nil || a.errs[1] != nil {
				t.Errorf("%s: granted %v, %v", name, a.granted, a.errs)
			}
			if s := state(t, a.limiters[0]); s.Used != 1+6 || !s.Consistent {
				t.Errorf("%s: %+v", name, s)
			}
		}
	})
}

// TestPlainGrantsOfSeveralLimiters: shared commands and AllowAll count what has expired, and leave to the other paths what
// is to be repaired.
func TestPlainGrantsOfSeveralLimiters(t *testing.T) {
	const limiters = 3
	ways := map[string]func(a *sharing) int64{ // each returns how many permits it takes of each limiter
		"shared command": func(a *sharing) int64 {
			for i := range a.limiters {
				a.sizes[i] = 2
			}
			a.ask()
			return 2
		},
		"AllowAll": func(a *sharing) int64 {
			result, err := a.client.AllowAll(a.t.Context(), 2, a.limiters...)
			a.must(err)
			for i, r := range result {
				a.granted[i] = r.Allowed
			}
			return 2
		},
	}
	states := map[string]struct {
		prepare func(a *sharing) // after one permit was taken of each limiter
		used    int64            // by what was taken before
		records int
	}{
		"a live record":        {func(a *sharing) { a.advance(59_999 * ms) }, 1, 1},
		"one that has expired": {func(a *sharing) { a.advance(time.Minute) }, 0, 0},
		"two that have expired": {func(a *sharing) {
			a.advance(ms)
			for _, l := range a.limiters {
				a.try(l, 3)
			}
			a.advance(time.Minute)
		}, 0, 0},
		"one expired, one live": {func(a *sharing) {
			a.advance(30 * time.Second)
			for _, l := range a.limiters {
				a.try(l, 3)
			}
			a.advance(30 * time.Second)
		}, 3, 1},
		"free permits above the rate": {func(a *sharing) { a.set(a.limiters[1], "99") }, 1, 1},
		"lost permits, at a check": {func(a *sharing) {
			a.advance(30 * time.Second)
			for _, l := range a.limiters {
				a.try(l, 1)
			}
			a.advance(31 * time.Second)
			a.set(a.limiters[1], "5")
		}, 1, 1},
	}
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for way, take := range ways {
			for name, state := range states {
				t.Run(way+", "+name, func(t *testing.T) {
					a := newSharing(t, s, limiters)
					state.prepare(a)
					n := take(a)
					for i, l := range a.limiters {
						got, err := l.State(t.Context())
						a.must(err)
						if !a.granted[i] || a.errs[i] != nil || got.Used != state.used+n || got.Records != state.records+1 || !got.Consistent {
							t.Errorf("limiter %d: %v, %v, %+v", i, a.granted[i], a.errs[i], got)
						}
					}
				})
			}
		}
	})
}
