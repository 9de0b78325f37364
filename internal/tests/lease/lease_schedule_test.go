package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// lease_schedule_test.go runs clients with and without leases through random schedules: clocks that
// differ and jump, crashes, lost requests and replies, slow connections, and rates that change. The
// same beside Redisson's script is in compat/differential.

// A story is one schedule.
type story struct {
	*rig.Bubble
	random   *rand.Rand
	rate     rratelimiter.Rate
	lease    time.Duration
	actors   []*actor
	ahead    time.Duration // by how much a clock is ahead of another one at most, at any time
	pending  sync.WaitGroup
	leased   *atomic.Int64 // permits that were taken ahead
	lost     *atomic.Int64 // requests and replies
	restarts int

	mu      sync.Mutex
	grants  []window.Grant
	changes []change
}

// An actor is a client with one limiter. It is replaced when it crashes.
type actor struct {
	*rig.Process
	limiter *rratelimiter.Limiter
	lease   bool
	server  bool
	skew    *atomic.Int64
}

// A change is another rate, or all grants forgotten.
type change struct {
	start, end time.Time
	permits    int64
	forgets    bool
}

// Call counts what is taken ahead.
func (s *story) Call(info rratelimiter.CallInfo) { s.leased.Add(info.Leased) }

// join starts the process of an actor.
func (s *story) join(a *actor) {
	opts := []rratelimiter.LimiterOption{rratelimiter.WithRate(s.rate)}
	if a.lease {
		opts = append(opts, rratelimiter.WithLease(s.lease))
	}
	if a.server {
		opts = append(opts, rratelimiter.WithServerTime())
	}
	skew := a.skew
	a.Process = s.Process(rratelimiter.WithObserver(s), rratelimiter.WithClock(func() time.Time {
		return time.Now().Add(time.Duration(skew.Load()))
	}))
	a.limiter = a.RateLimiter("l", opts...)
}

// ask makes one request in a goroutine of its own.
func (s *story) ask(a *actor, n int64) {
	way, l, start := s.random.IntN(6), a.limiter, time.Now()
	s.pending.Go(func() {
		var err error
		got := n
		switch way {
		case 0:
			got, err = l.AcquireUpTo(s.T.Context(), n)
		case 1:
			ctx, cancel := context.WithTimeout(s.T.Context(), s.rate.Interval/4)
			defer cancel()
			if err = l.Acquire(ctx, n); errors.Is(err, context.DeadlineExceeded) {
				got, err = 0, nil
			}
		case 2:
			var r []rratelimiter.Result
			if r, err = l.Client().AllowAllN(s.T.Context(), []int64{n}, l); err == nil && !r[0].Allowed {
				got = 0
			}
		default:
			var ok bool
			if ok, err = l.TryAcquire(s.T.Context(), n); !ok {
				got = 0
			}
		}
		if got == 0 || err != nil {
			return // of an error nothing is known; the tests of single calls look at these
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.grants = append(s.grants, window.Grant{Permits: got, Start: start, End: time.Now()})
	})
}

// upTo returns a random time up to d, in whole µs: scores are no finer, and windows are judged to
// the ns.
func (s *story) upTo(d time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(d) + 1)).Truncate(time.Microsecond)
}

// trouble causes a fault of an actor, or ends one.
func (s *story) trouble(a *actor) {
	switch s.random.IntN(4) {
	case 0: // the next reply is lost
		a.Wire.Cut.Store(a.Wire.Calls() + 1)
		s.lost.Add(1)
	case 1: // requests are lost for a while
		mend := a.Wire.Fail(io.ErrUnexpectedEOF)
		s.lost.Add(1)
		time.AfterFunc(s.upTo(s.lease), mend)
	case 2:
		a.Wire.There.Store(int64(s.upTo(s.lease)))
		a.Wire.Back.Store(int64(s.upTo(s.lease)))
		wire := a.Wire
		time.AfterFunc(s.upTo(4*s.lease), func() { wire.There.Store(0); wire.Back.Store(0) })
	case 3:
		a.Wire.Fail(io.ErrClosedPipe) // it sends nothing any more
		s.restarts++
		s.join(a)
	}
}

// heal ends all faults of an actor.
func (a *actor) heal() {
	a.Wire.Cut.Store(0)
	a.Wire.Fault.Store(nil)
	a.Wire.There.Store(0)
	a.Wire.Back.Store(0)
}

// change changes the rate.
func (s *story) change(a *actor, permits int64) {
	c := change{start: time.Now(), permits: permits, forgets: s.random.IntN(3) == 0}
	s.rate.Permits = permits
	a.heal()
	var opts []rratelimiter.SetOption
	if !c.forgets {
		opts = append(opts, rratelimiter.KeepState())
	}
	if err := a.limiter.SetRate(s.T.Context(), s.rate, opts...); err != nil {
		s.T.Error(err)
	}
	c.end = time.Now()
	s.changes = append(s.changes, c)
}

// judge checks all windows. Leases that others hold while the rate changes can be granted for late:
// windows that begin before that are bound only by the highest of the rates, and not at all where
// grants were forgotten.
func (s *story) judge(late time.Duration) (full bool) {
	check := func(what string, from, until time.Time, permits int64) {
		var part []window.Grant
		for _, g := range s.grants {
			if g.Start.After(from) && (until.IsZero() || g.End.Before(until)) {
				part = append(part, g)
			}
		}
		most, at := window.Largest(part, s.rate.Interval-s.ahead)
		if most > permits {
			s.T.Errorf("%s: %d permits of %d in the window from %v on", what, most, permits, at.Sub(s.Start))
		}
		full = full || most == permits
	}
	for i, c := range s.changes {
		var until, forgotten time.Time
		if i+1 < len(s.changes) {
			until = s.changes[i+1].start
		}
		check(fmt.Sprintf("after change %d", i), c.end.Add(late), until, c.permits)
		if i > 0 && !c.forgets {
			continue
		}
		highest := c.permits
		for _, next := range s.changes[i+1:] {
			if next.forgets {
				forgotten = next.start
				break
			}
			highest = max(highest, next.permits)
		}
		check(fmt.Sprintf("from change %d on", i), c.end.Add(late), forgotten, highest)
	}
	return full
}

// TestLeasesInRandomSchedules: no window of the interval holds more than the rate, and nothing is
// lost for longer than an interval and the time of a lease. Schedules are random, so there are more
// of them until enough has happened.
func TestLeasesInRandomSchedules(t *testing.T) {
	schedules := 40
	if testing.Short() || rig.RaceDetector {
		schedules = 5
	}
	var leased, lost atomic.Int64
	var full, grants, restarts int
	enough := func() bool {
		return leased.Load() >= int64(20*schedules) && lost.Load() >= int64(schedules) && restarts >= schedules/2 &&
			full >= schedules/2
	}
	first, played := rand.Uint64N(1<<32), 0
	for ; played < schedules || played < 8*schedules && !enough(); played++ {
		seed := first + uint64(played)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				s := &story{Bubble: b, random: rand.New(rand.NewPCG(seed, 1)), leased: &leased, lost: &lost}
				if s.play(); !t.Failed() {
					grants += len(s.grants)
					restarts += s.restarts
				}
				late := s.lease * 5 / 4
				if s.alone() {
					late = 0
				}
				if s.judge(late) {
					full++
				}
			})
		})
	}
	t.Logf(
		"%d schedules from seed %d on: %d grants, %d permits taken ahead, %d requests or replies lost, %d restarts, in %d a window was full",
		played, first, grants, leased.Load(), lost.Load(), restarts, full,
	)
	if !enough() {
		t.Error("too little happened to show anything")
	}
}

// alone reports whether only the first actor, which makes all changes, has leases.
func (s *story) alone() bool {
	return !slices.ContainsFunc(s.actors[1:], func(a *actor) bool { return a.lease })
}

func (s *story) play() {
	r := s.random
	s.rate = rratelimiter.Rate{
		Permits: []int64{8, 40, 400}[r.IntN(3)], Interval: []time.Duration{time.Second, 10 * time.Second}[r.IntN(2)],
	}
	s.lease = s.rate.Interval / time.Duration([]int{10, 20, 100}[r.IntN(3)])
	changes, jumps := r.IntN(3) == 0, r.IntN(3) == 0
	first := s.rate.Permits
	var ahead time.Duration
	if jumps && !changes {
		ahead = s.rate.Interval / 8
		s.ahead = 2 * ahead
	}
	for i := range 1 + r.IntN(4) {
		a := &actor{lease: i == 0 || r.IntN(2) == 0, server: r.IntN(4) == 0, skew: new(atomic.Int64)}
		if ahead > 0 {
			a.skew.Store(int64(s.upTo(2*ahead) - ahead))
		}
		s.join(a)
		s.actors = append(s.actors, a)
	}
	if err := s.actors[0].limiter.SetRate(s.T.Context(), s.rate); err != nil {
		s.T.Error(err)
	}
	s.changes = append(s.changes, change{start: s.Start, end: s.Start.Add(-2 * s.lease), permits: first})
	for range 80 {
		switch r.IntN(6) {
		case 0, 1:
			time.Sleep(s.upTo(s.lease / 4))
		case 2:
			time.Sleep(s.upTo(2 * s.lease))
		case 3:
			time.Sleep(s.upTo(s.rate.Interval / 8))
		}
		a := s.actors[r.IntN(len(s.actors))]
		switch r.IntN(24) {
		case 0, 1:
			s.trouble(a)
		case 2:
			if ahead > 0 {
				a.skew.Store(int64(s.upTo(2*ahead) - ahead))
			}
		case 3:
			if changes {
				who := s.actors[0] // if it is the only one with leases, they end with the change
				if !s.alone() {
					who = a
				}
				s.change(who, 1+r.Int64N(2*first))
			}
		default:
			for range 1 + r.IntN(8) {
				s.ask(a, 1+r.Int64N(max(1, s.rate.Permits/10)))
				synctest.Wait()
			}
		}
	}
	s.quiet()
}

// quiet ends all faults, and checks that all permits are free in time.
func (s *story) quiet() {
	for _, a := range s.actors {
		a.heal()
	}
	s.pending.Wait()
	time.Sleep(2 * s.lease) // what is under way in the background
	time.Sleep(s.rate.Interval + s.lease*5/4 + s.ahead)
	for _, a := range s.actors {
		free, err := a.limiter.AvailablePermits(s.T.Context())
		if err != nil || free != s.rate.Permits {
			s.T.Errorf("%d permits of %d are free in the end, %v", free, s.rate.Permits, err)
		}
		if state := rig.State(s.T, a.limiter); !state.Consistent {
			s.T.Errorf("%+v", state)
		}
	}
}
