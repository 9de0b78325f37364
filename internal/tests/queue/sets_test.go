package queue

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// Callers that wait for several limiters at once (AcquireAll), alone and among callers of single
// limiters.

// acquireAll makes a call of Client.AcquireAll.
func acquireAll(b *rig.Bubble, n int64, limiters ...*rratelimiter.Limiter) *rig.Call {
	return b.Call(func(ctx context.Context) (bool, error) {
		err := limiters[0].Client().AcquireAll(ctx, n, limiters...)
		return err == nil, err
	})
}

// perSecond returns a limiter with so many permits a second.
func perSecond(p *rig.Process, name string, n int64) *rratelimiter.Limiter {
	return p.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(n)))
}

// free returns how many permits of a limiter are free.
func free(t *testing.T, l *rratelimiter.Limiter) int64 {
	t.Helper()
	state, err := l.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return state.Available
}

func TestAcquireAllWaitsForTheSlowest(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		fast, slow := perSecond(p, "{t}fast", 1), p.RateLimiter(
			"{t}slow", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: 3 * time.Second}),
		)
		b.Granted("the first caller", acquireAll(b, 1, fast, slow), 0)
		second, third := acquireAll(b, 1, fast, slow), acquireAll(b, 1, fast, slow)
		b.SleepTo(1500 * time.Millisecond)
		if n := free(t, fast); n != 1 {
			t.Errorf("%d permits are free while nobody can use them", n)
		}
		b.SleepTo(6 * time.Second)
		b.Granted("the second", second, 3*time.Second)
		b.Granted("the third", third, 6*time.Second)
	})
}

// TestSetsAndSinglesAreServedInOrder: each caller in front of another one gets its permits first,
// however they return.
func TestSetsAndSinglesAreServedInOrder(t *testing.T) {
	for _, each := range []int{1, 5} { // callers in a row
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			rate := int64(2 * each)
			p := b.Process()
			x, y := perSecond(p, "{t}x", rate), perSecond(p, "{t}y", rate)
			b.Granted("who takes all", acquireAll(b, rate, x, y), 0)
			for round := range 3 {
				for range each {
					single, set := b.Acquire(x, 1), acquireAll(b, 1, x, y)
					at := time.Duration(1+round) * time.Second
					defer func() {
						b.Granted("a single", single, at)
						b.Granted("a set", set, at)
					}()
				}
			}
			b.SleepTo(10 * time.Second)
		})
	}
}

func TestSetsAndSinglesTakeTurns(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 1), perSecond(p, "{t}y", 1)
		b.Granted("who takes all", acquireAll(b, 1, x, y), 0)
		var calls []*rig.Call
		for range 3 {
			calls = append(calls, b.Acquire(x, 1), acquireAll(b, 1, y, x), acquireAll(b, 1, x, y), b.Acquire(x, 1))
		}
		b.SleepTo(20 * time.Second)
		for i, call := range calls {
			b.Granted("a caller", call, time.Duration(1+i)*time.Second)
		}
	})
}

// A caller that takes instalments keeps its place until it has the last one. Permits that return
// early between two instalments do not go to a set behind it.
func TestASetBehindACallerThatTakesInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x := p.RateLimiter("{t}x", rratelimiter.WithRate(rratelimiter.PerSecond(10)), rratelimiter.WithInstalments(),
			rratelimiter.WithFailFast())
		y := perSecond(p, "{t}y", 10)
		b.Granted("the first caller", b.Try(x, 10), 0)
		mails := acquireBy(b, x, 25, 10*time.Second) // the first instalment has 5 permits
		b.SleepTo(500 * ms)
		if n, err := perSecond(b.Process(), "{t}x", 10).Release(t.Context(), 10); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		set := acquireAll(b, 5, x, y)
		b.SleepTo(900 * ms)
		b.Waits("the set", set)
		b.SleepTo(20 * time.Second)
		b.Granted("the mails", mails, 3*time.Second)
		b.Granted("the set", set, 3*time.Second)
	})
}

// A caller in front that ends without its permits leaves them to a set behind it.
func TestASetBehindACallerThatFailsLooksAgain(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 2), perSecond(p, "{t}y", 2)
		p.Wire.Back.Store(int64(ms))
		large, set := b.Acquire(x, 3), acquireAll(b, 1, x, y)
		b.SleepTo(10 * time.Second)
		b.Ended("the caller of more than the rate", large, false, ms)
		b.Granted("the set", set, 2*ms)
	})
}

// The first set waits for x alone. That the one behind it waits for y, and longer, does not delay
// it.
func TestASetDoesNotWaitForPermitsOfTheOneBehindIt(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 1), p.RateLimiter(
			"{t}y", rratelimiter.WithRate(rratelimiter.Rate{Permits: 2, Interval: 3 * time.Second}), rratelimiter.WithFailFast(),
		)
		b.Granted("who takes one of each", acquireAll(b, 1, x, y), 0)
		by := func(deadline time.Duration, ofY int64) *rig.Call {
			return b.Call(func(ctx context.Context) (bool, error) {
				ctx, cancel := context.WithDeadline(ctx, b.Start.Add(deadline))
				defer cancel()
				err := p.AcquireAllN(ctx, []int64{ofY, 1}, y, x)
				return err == nil, err
			})
		}
		first := by(2*time.Second, 1)
		by(3010*ms, 2)
		b.SleepTo(10 * time.Second)
		b.Granted("the first set", first, time.Second)
	})
}

// A call for a set that was under way while a set in front of it got its permits kept these free
// once more: it is made again.
func TestASetIsAskedForAgainOnceOneInFrontHasItsPermits(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 10), perSecond(p, "{t}y", 10)
		b.Granted("who takes all", b.Acquire(x, 10), 0)
		first := acquireAll(b, 1, x, y)
		p.Wire.Back.Store(int64(5 * ms))
		b.SleepTo(1002 * ms)
		second := b.Call(func(ctx context.Context) (bool, error) {
			err := p.AcquireAllN(ctx, []int64{9, 1}, y, x)
			return err == nil, err
		})
		b.SleepTo(10 * time.Second)
		b.Granted("the first set", first, 1005*ms)
		b.Granted("the second set", second, 1012*ms)
	})
}

// TestASetThatWaitsLongDelaysNobody: while a set waits for one limiter, others take the permits of
// the other one. A permit that is back in time is not kept for the set.
func TestASetThatWaitsLongDelaysNobody(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		fast, slow := perSecond(p, "{t}fast", 1), p.RateLimiter(
			"{t}slow", rratelimiter.WithRate(rratelimiter.Rate{Permits: 1, Interval: 10 * time.Second}),
		)
		b.Granted("who takes all", acquireAll(b, 1, fast, slow), 0)
		b.SleepTo(500 * time.Millisecond)
		set := acquireAll(b, 1, fast, slow)
		var singles []*rig.Call
		for range 11 {
			singles = append(singles, b.Acquire(fast, 1))
		}
		b.SleepTo(20 * time.Second)
		b.Granted("the set", set, 10*time.Second)
		for i, call := range singles {
			at := time.Duration(1+i) * time.Second
			if i >= 9 {
				at += time.Second // the tenth permit is the set's
			}
			b.Granted("a single", call, at)
		}
	})
}

// waysToWait are the ways to wait for 8 permits of x, in one of them of z, too. An end is that of a
// timeout, or that of the context for WithFailFast.
var waysToWait = []struct {
	name string
	opts []rratelimiter.LimiterOption // of x
	ask  func(b *rig.Bubble, end time.Duration, x, z *rratelimiter.Limiter) *rig.Call
}{
	{"Acquire", nil, func(b *rig.Bubble, _ time.Duration, x, _ *rratelimiter.Limiter) *rig.Call {
		return b.Acquire(x, 8)
	}},
	{"TryAcquireTimeout", nil, func(b *rig.Bubble, end time.Duration, x, _ *rratelimiter.Limiter) *rig.Call {
		return b.TryFor(x, 8, end-time.Since(b.Start))
	}},
	{
		"WithFailFast", []rratelimiter.LimiterOption{rratelimiter.WithFailFast()},
		func(b *rig.Bubble, end time.Duration, x, _ *rratelimiter.Limiter) *rig.Call {
			return acquireBy(b, x, 8, end)
		},
	},
	{"AcquireAll", nil, func(b *rig.Bubble, _ time.Duration, x, z *rratelimiter.Limiter) *rig.Call {
		return acquireAll(b, 8, x, z)
	}},
	{"TryAcquireAllTimeout", nil, func(b *rig.Bubble, end time.Duration, x, z *rratelimiter.Limiter) *rig.Call {
		return b.Call(func(ctx context.Context) (bool, error) {
			return x.Client().TryAcquireAllTimeout(ctx, 8, end-time.Since(b.Start), x, z)
		})
	}},
}

// A setInFront is a process whose callers wait behind a set. The set is of x, which has 10 permits
// in 3 s, and of y, which has 5 in 30 s: these are taken at the start.
type setInFront struct {
	*rig.Bubble
	*rig.Process
	x, y *rratelimiter.Limiter
	ask  func(end time.Duration) *rig.Call // waits for 8 permits of x, behind the set
}

// behindASet runs a test with each of waysToWait.
func behindASet(t *testing.T, test func(s *setInFront)) {
	for _, way := range waysToWait {
		t.Run(way.name, func(t *testing.T) {
			rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
				s := &setInFront{Bubble: b, Process: b.Process()}
				ten := rratelimiter.WithRate(rratelimiter.Rate{Permits: 10, Interval: 3 * time.Second})
				five := rratelimiter.WithRate(rratelimiter.Rate{Permits: 5, Interval: 30 * time.Second})
				s.x, s.y = s.RateLimiter("{t}x", append(way.opts, ten)...), s.RateLimiter("{t}y", five)
				z := s.RateLimiter("{t}z", ten)
				s.ask = func(end time.Duration) *rig.Call { return way.ask(b, end, s.x, z) }
				b.Granted("who takes all of y", b.Try(s.y, 5), 0)
				test(s)
			})
		})
	}
}

// set makes a call for permits of x and of y. Its first reply is late.
func (s *setInFront) set(late time.Duration, x, y int64) *rig.Call {
	s.Wire.Back.Store(int64(late))
	defer s.Wire.Back.Store(0)
	return s.Call(func(ctx context.Context) (bool, error) {
		err := s.AcquireAllN(ctx, []int64{x, y}, s.x, s.y)
		return err == nil, err
	})
}

// TestBehindASetWhoseReplyIsLate: until the first reply to a set, its permits are kept free. If the
// reply says that the set waits long for another limiter, those behind it get them at once.
func TestBehindASetWhoseReplyIsLate(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		set := s.set(15*ms, 5, 5)
		call := s.ask(2 * time.Second)
		s.Waits("behind the set", call)
		s.SleepTo(31 * time.Second)
		s.Granted("behind the set", call, 15*ms)
		s.Granted("the set", set, 30*time.Second)
	})
}

// TestBehindASetWhileTheOwnCallStalls: what a reply to the set changes counts also for a request
// whose own call has stalled.
func TestBehindASetWhileTheOwnCallStalls(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		s.MayStall()
		set := s.set(15*ms, 5, 5)
		s.Wire.Back.Store(int64(25 * ms))
		call := s.ask(2 * time.Second)
		s.Wire.Back.Store(0)
		s.SleepTo(31 * time.Second)
		s.Granted("behind the set", call, 25*ms)
		s.Granted("the set", set, 30*time.Second)
	})
}

// TestBehindASetThatIsGrantedLate: a call that was executed after the grant, and before that was
// known, is made again.
func TestBehindASetThatIsGrantedLate(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		s.SleepTo(31 * time.Second)
		set := s.set(15*ms, 2, 5)
		call := s.ask(33 * time.Second)
		s.SleepTo(40 * time.Second)
		s.Granted("the set", set, 31*time.Second+15*ms)
		s.Granted("behind the set", call, 31*time.Second+15*ms)
	})
}

// TestBehindASecondSet: a set behind another one waits at least as long. This is known before a
// reply says so, which may be many seconds later.
func TestBehindASecondSet(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		first := s.set(0, 5, 5)
		s.SleepTo(16 * time.Second) // the polls have grown
		second := s.set(0, 5, 5)
		call := s.ask(18 * time.Second)
		s.SleepTo(61 * time.Second)
		s.Granted("behind both", call, 16*time.Second)
		s.Granted("the first set", first, 30*time.Second)
		s.Granted("the second set", second, 60*time.Second)
	})
}

// TestBehindASetThatWaitsLongerThanExpected: another process takes the permits of y when these
// return. So those of x are left to others again.
func TestBehindASetThatWaitsLongerThanExpected(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		set := s.set(0, 5, 5)
		s.SleepTo(28 * time.Second) // in less than an interval of x, y has permits
		call := s.ask(38 * time.Second)
		s.Waits("behind the set", call)
		s.Wire.There.Store(int64(5 * ms))
		s.SleepTo(30*time.Second + ms)
		other := s.Bubble.Process().RateLimiter("{t}y")
		s.Granted("another process", s.Try(other, 5), 30*time.Second+ms)
		s.SleepTo(61 * time.Second)
		s.Granted("behind the set", call, 30*time.Second+10*ms)
		s.Granted("the set", set, 60*time.Second+6*ms)
	})
}

// TestBehindASetThatLeaves: once the caller of a set leaves, those behind it are served.
func TestBehindASetThatLeaves(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		s.SleepTo(28 * time.Second) // in less than an interval of x, y has permits
		set := s.set(0, 5, 5)
		call := s.ask(38 * time.Second)
		s.SleepTo(29 * time.Second)
		s.Waits("behind the set", call)
		set.Cancel()
		s.Granted("behind the set", call, 29*time.Second)
	})
}

// TestInVainBehindASetWhoseReplyIsLate: once the first reply to the set says that its permits stay
// kept, those who wait in vain are refused.
func TestInVainBehindASetWhoseReplyIsLate(t *testing.T) {
	behindASet(t, func(s *setInFront) {
		s.SleepTo(28 * time.Second) // in less than an interval of x, y has permits
		set := s.set(15*ms, 5, 5)
		call := s.ask(30 * time.Second)
		s.Waits("behind the set", call)
		s.SleepTo(40 * time.Second)
		s.Granted("the set", set, 30*time.Second)
		if call.OK { // it has no end
			s.Granted("behind the set", call, 33*time.Second)
		} else {
			s.Ended("behind the set", call, false, 28*time.Second+15*ms)
		}
	})
}

// TestWhoLeavesMakesRoom: once a caller in front leaves, those behind it are served, of a set or
// not.
func TestWhoLeavesMakesRoom(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 2), perSecond(p, "{t}y", 2)
		b.Granted("one permit of each", acquireAll(b, 1, x, y), 0)
		big, set := b.Acquire(x, 2), acquireAll(b, 1, x, y)
		b.Waits("a set behind a single", set)
		b.SleepTo(200 * time.Millisecond)
		big.Cancel()
		b.Granted("a set behind a single that has left", set, 200*time.Millisecond)

		bigSet, single := acquireAll(b, 2, x, y), b.Acquire(x, 1)
		b.SleepTo(1100 * time.Millisecond)
		b.Waits("a single behind a set", single)
		bigSet.Cancel()
		b.Granted("a single behind a set that has left", single, 1100*time.Millisecond)
		if bigSet.OK || !errors.Is(bigSet.Err, context.Canceled) {
			t.Errorf("the set that has left: %v, %v", bigSet.OK, bigSet.Err)
		}
	})
}

func TestTryAcquireAllTimeout(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 1), perSecond(p, "{t}y", 1)
		try := func(timeout time.Duration) *rig.Call {
			return b.Call(func(ctx context.Context) (bool, error) {
				return p.TryAcquireAllTimeout(ctx, 1, timeout, x, y)
			})
		}
		b.Granted("the first", try(0), 0)
		b.Ended("without a timeout", try(0), false, 0)
		b.Ended("not free in time", try(900*time.Millisecond), false, 0)
		second, behind := try(1100*time.Millisecond), try(1100*time.Millisecond)
		b.SleepTo(3 * time.Second)
		b.Granted("free in time", second, time.Second)
		b.Ended("behind it", behind, false, time.Second)
	})
}

// TestSetsKeepNothing: after callers of sets have come and gone, nothing is left of them, and a
// lease is taken again.
func TestSetsKeepNothing(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		leased := rratelimiter.WithLease(100 * time.Millisecond)
		x := p.RateLimiter("{t}x", rratelimiter.WithRate(rratelimiter.PerSecond(1000)), leased)
		y := p.RateLimiter("{t}y", rratelimiter.WithRate(rratelimiter.PerSecond(1000)), leased)
		var calls []*rig.Call
		for i := range 40 {
			call := acquireAll(b, 400, x, y)
			if calls = append(calls, call); i%4 == 3 {
				call.Cancel()
			}
		}
		b.SleepTo(20 * time.Second)
		got := 0
		for _, call := range calls {
			if call.OK {
				got++
			}
		}
		if waiting := p.Waiting(); got != 30 || len(waiting) != 0 {
			t.Errorf("%d are granted, waiting are %v", got, waiting)
		}
		before := p.Wire.Calls()
		for range 100 {
			b.Granted("a single", b.Try(x, 1), 20*time.Second)
		}
		if calls := p.Wire.Calls() - before; calls > 10 {
			t.Errorf("100 singles took %d calls, with a lease", calls)
		}
	})
}

// TestManySetsShareCalls: callers of one set that wait are served together, in the order of their
// arrival.
func TestManySetsShareCalls(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		const callers, rate = 1000, 100
		p := b.Process()
		x, y := perSecond(p, "{t}x", rate), perSecond(p, "{t}y", rate)
		var calls []*rig.Call
		before := p.Wire.Calls()
		for range callers {
			calls = append(calls, acquireAll(b, 1, x, y))
		}
		b.SleepTo(20 * time.Second)
		for i, call := range calls {
			b.Granted("a caller", call, time.Duration(i/rate)*time.Second)
		}
		if n := p.Wire.Calls() - before; n > rate+2*callers/rate {
			t.Errorf("%d calls", n)
		}
	})
}

func TestAcquireAllReportsErrors(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x, y := perSecond(p, "{t}x", 5), perSecond(p, "{t}y", 2)
		for what, want := range map[*rig.Call]error{
			acquireAll(b, 3, x, y):                           rratelimiter.ErrExceedsRate,
			acquireAll(b, 0, x, y):                           rratelimiter.ErrInvalidPermits,
			acquireAll(b, 1, x, p.RateLimiter("{t}no rate")): rratelimiter.ErrNotInitialized,
			acquireAll(b, 3, y, x):                           rratelimiter.ErrExceedsRate,
		} {
			synctest.Wait()
			if !what.Ended.Load() || !errors.Is(what.Err, want) {
				t.Errorf("%v, want %v", what.Err, want)
			}
		}
		if n := free(t, x); n != 5 {
			t.Errorf("%d of 5 permits are free", n)
		}
		twice := []*rratelimiter.Limiter{x, x}
		b.Granted("a limiter listed twice", acquireAll(b, 2, twice...), 0)
		waits := acquireAll(b, 2, twice...)
		b.SleepTo(time.Second)
		b.Granted("listed twice, waiting", waits, time.Second)
	})
}

// TestSetsAreFair: callers that ask again and again for one limiter, for another one and for both
// get about the same, and nobody waits much longer than its turn.
func TestSetsAreFair(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		const workers, rate, seconds = 50, 20, 100
		p := b.Process()
		x, y := perSecond(p, "{t}x", rate), p.RateLimiter(
			"{t}y", rratelimiter.WithRate(rratelimiter.Rate{Permits: 5 * rate, Interval: 5 * time.Second}),
		)
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
		defer cancel()
		var got [workers]int
		var longest [workers]time.Duration
		for i := range workers {
			limiters := [][]*rratelimiter.Limiter{{x, y}, {x, y}, {y, x}, {x}, {y}}[i%5]
			go func() {
				for {
					started := time.Now()
					if p.AcquireAll(ctx, 1, limiters...) != nil {
						return
					}
					got[i]++
					longest[i] = max(longest[i], time.Since(started))
				}
			}()
		}
		b.SleepTo((seconds + 1) * time.Second)
		const turn = 40 * time.Second / rate // 40 workers want a permit of each limiter
		least, most := slices.Min(got[:]), slices.Max(got[:])
		if total := slices.Max(longest[:]); least < seconds/3 || most > 2*least || total > turn+6*time.Second {
			t.Errorf("%v grants, longest waits %v", got, longest)
		}
	})
}

// A want is what one caller of a random story wants, and what became of it.
type want struct {
	at       time.Duration // of its arrival
	permits  []int64       // of each limiter; 0: none
	patience time.Duration // after it the caller leaves; 0: never
	call     *rig.Call
}

// TestRandomSetsAndSingles: whoever comes and leaves, in any order, no window of a limiter exceeds
// its rate, and nobody waits much longer than if each limiter served its callers one by one in the
// order of their arrival.
func TestRandomSetsAndSingles(t *testing.T) {
	for seed := range int64(proof.Or(10, 4)) {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			random := rand.New(rand.NewSource(seed))
			p := b.Process()
			var limiters []*rratelimiter.Limiter
			var rates []rratelimiter.Rate
			for i := range 3 {
				rate := rratelimiter.Rate{
					Permits:  2 + random.Int63n(6),
					Interval: time.Duration(1+random.Intn(5)) * time.Second,
				}
				rates = append(rates, rate)
				limiters = append(limiters, p.RateLimiter(fmt.Sprint("{t}", i), rratelimiter.WithRate(rate)))
			}
			var wants []*want
			for range 60 {
				w := &want{permits: make([]int64, len(rates))}
				for n := 1 + random.Intn(len(rates)); n > 0; n-- {
					w.permits[random.Intn(len(rates))] = 1 + random.Int63n(2)
				}
				if seed%2 == 1 && random.Intn(4) == 0 {
					w.patience = time.Duration(random.Intn(5000)) * time.Millisecond
				}
				b.SleepTo(time.Since(b.Start) + time.Duration(random.Intn(700))*time.Millisecond)
				w.at = time.Since(b.Start)
				w.call = w.ask(b, p, limiters)
				wants = append(wants, w)
			}
			b.SleepTo(10 * time.Minute)
			for i, rate := range rates {
				checkWindows(t, fmt.Sprintf("seed %d, limiter %d", seed, i), wants, i, rate)
			}
			checkTurns(t, fmt.Sprintf("seed %d", seed), wants, rates)
		})
	}
}

// ask makes the call of w.
func (w *want) ask(b *rig.Bubble, p *rig.Process, limiters []*rratelimiter.Limiter) *rig.Call {
	var of []*rratelimiter.Limiter
	var permits []int64
	for i, n := range w.permits {
		if n > 0 {
			of, permits = append(of, limiters[i]), append(permits, n)
		}
	}
	return b.Call(func(ctx context.Context) (bool, error) {
		if w.patience > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, w.patience)
			defer cancel()
		}
		err := error(nil)
		if len(of) == 1 {
			err = of[0].Acquire(ctx, permits[0]) // in instalments, if the limiter has them
		} else {
			err = p.AcquireAllN(ctx, permits, of...)
		}
		return err == nil, err
	})
}

// checkWindows checks that no interval has more permits of a limiter than its rate.
func checkWindows(t *testing.T, what string, wants []*want, limiter int, rate rratelimiter.Rate) {
	t.Helper()
	for _, last := range wants {
		sum := int64(0)
		for _, w := range wants {
			if w.call.OK && w.call.At > last.call.At-rate.Interval && w.call.At <= last.call.At {
				sum += w.permits[limiter]
			}
		}
		if last.call.OK && sum > rate.Permits {
			t.Errorf("%s: %d permits in the interval until %v", what, sum, last.call.At)
		}
	}
}

// checkTurns compares the times of grants with those of limiters that serve their callers one by
// one, in order of arrival. A caller of several limiters may wait an interval of each longer than
// that, and delays others as long.
func checkTurns(t *testing.T, what string, wants []*want, rates []rratelimiter.Rate) {
	t.Helper()
	slack := time.Duration(0)
	for _, rate := range rates {
		slack += rate.Interval
	}
	turns := make([]time.Duration, len(wants)) // 0: it leaves
	for i, w := range wants {
		if w.patience > 0 {
			continue
		}
		turn := w.at
		for j, other := range wants[:i] {
			for limiter, n := range w.permits {
				if n > 0 && other.permits[limiter] > 0 {
					turn = max(turn, turns[j])
				}
			}
		}
		for limiter := 0; limiter < len(rates); limiter++ {
			used, oldest := int64(0), time.Duration(math.MaxInt64)
			for j, other := range wants[:i] {
				if other.permits[limiter] > 0 && other.patience == 0 && turns[j] > turn-rates[limiter].Interval {
					used += other.permits[limiter]
					oldest = min(oldest, turns[j])
				}
			}
			if n := w.permits[limiter]; n > 0 && used+n > rates[limiter].Permits {
				turn = oldest + rates[limiter].Interval
				limiter = -1 // all again, at that time
			}
		}
		turns[i] = turn
		if !w.call.OK || w.call.At > turn+slack {
			t.Errorf(
				"%s: caller %d, who came at %v for %v, was served at %v (%v), its turn was at %v", what, i, w.at,
				w.permits,
				w.call.At, w.call.Err, turn,
			)
		}
	}
}

// A limiter with a keep-alive lives on while a caller waits for another one of its set, whatever
// else is asked of it, and whether they are asked in one step or one after the other.
func TestAcquireAllKeepsLimitersAlive(t *testing.T) {
	for how, names := range map[string][2]string{
		"in one step":                   {"{t}short", "{t}long"},
		"in order, in front of another": {"a", "b"},
		"in order, behind another":      {"b", "a"},
	} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			short := p.RateLimiter(names[0])
			long := p.RateLimiter(names[1], rratelimiter.WithRate(rratelimiter.PerMinute(2)))
			rate := rratelimiter.Rate{Permits: 5, Interval: time.Second, KeepAlive: 2 * time.Second}
			rig.MustTrySet(t, short, rate, true)
			b.Granted("all of the other one", b.Try(long, 2), 0)
			caller := acquireAll(b, 1, short, long)
			calls := p.Wire.Calls()
			b.SleepTo(30300 * ms)
			b.Granted(how+": another caller", b.Call(func(ctx context.Context) (bool, error) {
				return b.Process().RateLimiter(names[0]).TryAcquire(ctx, 1)
			}), 30300*ms)
			b.SleepTo(61 * time.Second)
			if late := 10 * ms; !caller.OK || caller.At < time.Minute || caller.At > time.Minute+late {
				t.Errorf("%s: the caller ended with %v at %v", how, caller.Err, caller.At)
			}
			if n := p.Wire.Calls() - calls; n > 100 {
				t.Errorf("%s: %d calls in a minute", how, n)
			}
		})
	}
}

// While a caller waits, Redis keeps each limiter of a set for more than its keep-alive, whichever
// of them refuses.
func TestEachLimiterOfASetIsKeptForItsCaller(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for how, rdb := range map[string]rratelimiter.Redis{
			"in one step": s.Client(), "in order": struct{ rratelimiter.Redis }{s.Client()},
		} {
			t.Run(how, func(t *testing.T) {
				r := rig.New(t, s)
				r.Wipe()
				c := rratelimiter.NewClient(rdb)
				rate := rratelimiter.Rate{Permits: 5, Interval: 10 * time.Second, KeepAlive: 10 * time.Second}
				limiters := make([]*rratelimiter.Limiter, 3)
				for i, name := range []string{"a", "b", "c"} {
					limiters[i] = c.RateLimiter(name)
					rig.MustSet(t, limiters[i], rate)
				}
				rig.MustTry(t, limiters[1], 5, true)
				ctx, leave := context.WithCancel(t.Context())
				waited := make(chan error)
				go func() { waited <- c.AcquireAll(ctx, 1, limiters...) }()
				for _, l := range limiters {
					rig.Soon(t, "limiter "+l.Name()+" is kept", func() bool {
						return r.Redis.PTTL(t.Context(), l.Name()).Val() > rate.Interval+rate.Interval/100
					})
				}
				leave()
				if err := <-waited; !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	})
}

// A call that keeps a limiter takes no permits, however high its rate is, and reads a keep-alive
// behind all expired records.
func TestALimiterStaysForItsCaller(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		r.Wipe()
		ctx := t.Context()
		l := rratelimiter.NewClient(s.Client()).RateLimiter("l")
		const rate, expired = 5_000_000_000, 5000
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(r.Redis.HSet(ctx, "l", "rate", rate, "interval", 10_000, "type", 0, "keepAliveTime", 10_000).Err())
		must(r.Redis.Set(ctx, rig.Keys(l)[keys.Value], rate-expired, 0).Err())
		records := make([]redis.Z, expired)
		for i := range records {
			id := binary.LittleEndian.AppendUint64(nil, uint64(i))
			member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, id, 1)
			must(err)
			records[i] = redis.Z{Score: float64(i + 1), Member: string(member)}
		}
		must(r.Redis.ZAdd(ctx, rig.Keys(l)[keys.Permits], records...).Err())
		kept, err := rig.LimiterCore(l).Stay(ctx)
		if want := 10*time.Second + time.Second/2; err != nil || kept != want {
			t.Errorf("it stays for %v, %v, expected %v", kept, err, want)
		}
		if state, err := l.State(ctx); err != nil || state.Used != 0 {
			t.Errorf("%d permits are taken, %v", state.Used, err)
		}
	})
}

// Who waits behind a set that cannot have its permits before its own timeout is not refused for it.
func TestBehindASetWhoseTimeoutEndsFirst(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		x := p.RateLimiter("{t}x", rratelimiter.WithRate(rratelimiter.Rate{Permits: 10, Interval: 100 * ms}))
		y := p.RateLimiter("{t}y", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		ask := func(timeout time.Duration, of ...*rratelimiter.Limiter) *rig.Call {
			return b.Call(func(ctx context.Context) (bool, error) {
				return p.TryAcquireAllTimeout(ctx, 1, timeout, of...)
			})
		}
		p.Wire.Back.Store(int64(3 * ms))
		first := ask(20*ms, x, y)
		b.SleepTo(ms)
		short := ask(20*ms, y, x)
		b.SleepTo(6 * ms)
		long := ask(1000*ms, x, y)
		b.SleepTo(2 * time.Second)
		b.Granted("the first set", first, 3*ms)
		if !short.Ended.Load() || short.OK {
			t.Error("the set with a short timeout is not refused")
		}
		b.Granted("the set behind it", long, 1003*ms)
	})
}
