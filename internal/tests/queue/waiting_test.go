package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// waiting_test.go tests the order of waiting callers, and when they are served.

func TestAcquireWaitsExactlyForTheOldestGrants(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("6 of 10", b.Acquire(l, 6), 0)
		b.SleepTo(300 * ms)
		b.Granted("4 more", b.Acquire(l, 4), 300*ms)
		first, second := b.Acquire(l, 5), b.Acquire(l, 5)
		b.SleepTo(1299 * ms)
		b.Granted("the caller that needs the first grant back", first, 1000*ms)
		b.Waits("the caller that needs the second one, too", second)
		b.SleepTo(1300 * ms)
		b.Granted("the caller that needs the second one, too", second, 1300*ms)
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(5)))
		var all []*rig.Call
		for i := range 40 {
			all = append(all, b.Acquire(l, int64(1+i*7%4)))
		}
		b.SleepTo(time.Minute)
		var used int64
		at := time.Duration(0)
		for i, c := range all {
			if n := int64(1 + i*7%4); used+n > 5 {
				at, used = at+time.Second, n
			} else {
				used += n
			}
			if i == 0 || c.At >= all[i-1].At {
				continue
			}
			t.Errorf("caller %d at %v, after caller %d at %v", i, c.At, i-1, all[i-1].At)
		}
		if last := all[len(all)-1]; !last.OK || last.At > at {
			t.Errorf("the last one was served at %v (%v), expected at most %v", last.At, last.OK, at)
		}
	})
}

func TestNoCallerOvertakesWaiters(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("8 of 10", b.Acquire(l, 8), 0)
		b.SleepTo(100 * ms)
		first := b.Acquire(l, 5)

		b.Ended("one that tries", b.Try(l, 1), false, 100*ms)
		b.Ended("one whose time is short", b.TryFor(l, 1, 500*ms), false, 100*ms)
		r, err := l.Allow(t.Context(), 2)
		if want := (rratelimiter.Result{
			Limit:      10,
			RetryAfter: 900 * ms,
			NextAfter:  900 * ms,
			ResetAfter: 900 * ms,
		}); r != want ||
			err != nil {
			t.Errorf("%+v, %v, expected %+v", r, err, want)
		}
		calls := p.Wire.Calls()
		if n, err := l.AcquireUpTo(t.Context(), 2); n != 0 || err != nil || p.Wire.Calls() != calls {
			t.Errorf("AcquireUpTo: %d, %v", n, err)
		}
		patient, behind := b.TryFor(l, 1, 2*time.Second), b.Acquire(l, 4)
		b.SleepTo(999 * ms)
		b.Waits("the first", first)
		b.Waits("the patient one", patient)
		b.SleepTo(1000 * ms)
		for _, c := range []*rig.Call{first, patient, behind} {
			b.Granted("one in the queue", c, 1000*ms)
		}
		if n, err := l.AcquireUpTo(t.Context(), 2); n != 0 || err != nil {
			t.Errorf("AcquireUpTo of an empty limiter: %d, %v", n, err)
		}
	})
}

// A stream of small requests does not delay a big one forever.
func TestBigRequestUnderAStreamOfSmallOnes(t *testing.T) {
	rig.Long(t)
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
		stop := make(chan struct{})
		var passed int // small ones granted while the big one waited
		var big atomic.Pointer[rig.Call]
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(2 * ms):
				}
				c := big.Load()
				r, err := l.Allow(t.Context(), 1)
				if err != nil {
					t.Error(err)
				}
				if r.Allowed && c != nil && !c.Ended.Load() {
					passed++
				}
			}
		}()
		b.SleepTo(1500 * ms)
		big.Store(b.Acquire(l, 50))
		b.SleepTo(2500 * ms)
		close(stop)
		synctest.Wait()
		if c := big.Load(); !c.OK || c.At > 2100*ms { // half of the permits granted in the second before have returned
			t.Errorf("granted: %v (%v) at %v", c.OK, c.Err, c.At)
		}
		if passed > 0 {
			t.Errorf("%d small ones passed it", passed)
		}
	})
}

// A thousand callers on 100 permits a second take the minimal time, and one call for each second.
func TestThousandCallersWait(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
		var all sync.WaitGroup
		plug := p.Wire.Hang()
		for range 1000 {
			all.Go(func() {
				if err := l.Acquire(t.Context(), 1); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		plug()
		all.Wait()
		if took := time.Since(b.Start); took != 9*time.Second {
			t.Errorf("took %v, expected 9 s", took)
		}
		if n := p.Wire.Calls(); n != 2+9 { // the first caller's, the others', and one for each second
			t.Errorf("%d calls", n)
		}
	})
}

// Many callers that cannot be served in time get their results from one call, not from one each.
func TestRefusedCallersShareOneCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("the first", b.Acquire(l, 10), 0)
		before := p.Wire.Calls()
		var all []*rig.Call
		resume := p.Wire.Hang()
		b.Try(l, 1)
		for range 100 {
			all = append(all, b.TryFor(l, 1, 500*ms))
		}
		resume()
		for _, c := range all {
			b.Ended("a refused caller", c, false, 0)
		}
		if calls := p.Wire.Calls() - before; calls > 3 {
			t.Errorf("%d calls", calls)
		}
	})
}

// The only process that uses a limiter never yields, even if its first call both grants and
// refuses.
func TestAloneTheQueueWakesExactly(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
		plug := p.Wire.Hang()
		b.Try(l, 101)
		var all []*rig.Call
		for range 4 {
			all = append(all, b.Acquire(l, 50))
		}
		plug()
		b.SleepTo(3 * time.Second)
		for i, c := range all {
			b.Granted("a caller", c, time.Duration(i/2)*time.Second)
		}
	})
}

// Several waiting callers take permits that return within 5 ms with one call, whichever process
// took them before. A caller that waits alone gets its permits on time.
func TestPermitsThatReturnTogetherTakeOneCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		rate := rratelimiter.WithRate(rratelimiter.PerSecond(5))
		holder := b.Process().RateLimiter("l", rate)
		for _, at := range []time.Duration{0, 3 * ms, 5 * ms, 9 * ms, 12 * ms} {
			b.SleepTo(at)
			b.Granted("a caller before", b.Acquire(holder, 1), at)
		}
		p := b.Process()
		l := p.RateLimiter("l", rate)
		var waiting []*rig.Call
		for range 4 {
			waiting = append(waiting, b.Acquire(l, 1))
		}
		before := p.Wire.Calls()
		b.SleepTo(1040 * ms)
		for i, c := range waiting {
			b.Granted("a caller", c, []time.Duration{1005 * ms, 1005 * ms, 1005 * ms, 1009 * ms}[i])
		}
		if n := p.Wire.Calls() - before; n != 2 {
			t.Errorf("%d calls", n)
		}
	})
}

// Permits return together, too, if the call that refuses the waiting callers grants some of them.
func TestPermitsThatReturnTogetherWithThoseOfTheCall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		p.Wire.There.Store(int64(ms))
		var all []*rig.Call
		for range 20 {
			all = append(all, b.Acquire(l, 1))
		}
		// The first call, which is under way, grants 1 permit, the second one 9, and the third one
		// all 10.
		p.CheckCalls("the others", 2, func() { b.SleepTo(2 * time.Second) })
		for _, c := range all {
			if !c.OK {
				t.Error("a caller was not granted")
			}
		}
	})
}

// On a short interval, permits return together only within a 200th of it.
func TestPermitsThatReturnTogetherOnAShortInterval(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := b.Process().RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: 3, Interval: 200 * ms}))
		for _, at := range []time.Duration{0, ms, 3 * ms} {
			b.SleepTo(at)
			b.Granted("a caller before", b.Acquire(l, 1), at)
		}
		first, second := b.Acquire(l, 1), b.Acquire(l, 1)
		b.SleepTo(240 * ms)
		b.Granted("the first", first, 201*ms)
		b.Granted("the second", second, 201*ms)
	})
}

// Processes whose callers wait do not ask for each record that returns.
func TestWaitingProcessesAskTogether(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		rate := rratelimiter.WithRate(rratelimiter.PerSecond(100))
		holder := b.Process().RateLimiter("l", rate)
		for range 20 {
			b.Try(holder, 5)
			time.Sleep(ms)
		}
		var waiting []*rig.Process
		var all []*rig.Call
		for range 4 {
			p := b.Process()
			waiting = append(waiting, p)
			for range 50 {
				all = append(all, b.Acquire(p.RateLimiter("l", rate), 1))
			}
		}
		calls := func() (n int64) {
			for _, p := range waiting {
				n += p.Wire.Calls()
			}
			return n
		}
		before := calls()
		b.SleepTo(1040 * ms)
		served := 0
		for _, c := range all {
			if c.Ended.Load() {
				served++
			}
		}
		// All records have expired after 20 ms, in which a process asks every 5 ms.
		if n := calls() - before; served != 100 || n > 4*5 {
			t.Errorf("%d served by %d calls", served, n)
		}
	})
}

// A caller whose permits another process took asks for what returns together, unless its time is
// over before.
func TestCallerThatWasBeaten(t *testing.T) {
	for _, test := range []struct{ timeout, at time.Duration }{{time.Minute, 1006 * ms}, {1004*ms + ms/2, 1004 * ms}} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			rate := rratelimiter.WithRate(rratelimiter.PerSecond(3))
			first, second := b.Process(), b.Process()
			l := first.RateLimiter("l", rate)
			for _, at := range []time.Duration{0, 3 * ms, 5 * ms} {
				b.SleepTo(at)
				b.Granted("a caller before", b.Acquire(l, 1), at)
			}
			winner, beaten := b.Acquire(l, 1), b.TryFor(second.RateLimiter("l", rate), 1, test.timeout-5*ms)
			second.Wire.There.Store(int64(ms))
			b.SleepTo(1020 * ms)
			b.Granted("the first one to ask", winner, 1000*ms)
			b.Granted("the one that was beaten", beaten, test.at)
		})
	}
}

// Without Redisson on the server, the queue always asks on time.
func TestQueueThatGetsAllIsOnTime(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		var all []*rig.Call
		for range 300 {
			all = append(all, b.Acquire(l, 1))
		}
		b.SleepTo(time.Minute)
		for i, c := range all {
			b.Granted(fmt.Sprint("caller ", i), c, time.Duration(i/10)*time.Second)
		}
	})
}

// A queue with more sizes than a call carries neither delays tries nor floods Redis with calls.
func TestTriesBehindALongQueueOfSizes(t *testing.T) {
	for _, opts := range [][]rratelimiter.LimiterOption{nil, {rratelimiter.WithRecordPerRequest()}} {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			p := b.Process()
			l := p.RateLimiter("l", append(opts, rratelimiter.WithRate(rratelimiter.PerSecond(900)))...)
			b.Granted("the first", b.Acquire(l, 900), 0)
			b.SleepTo(100 * ms)
			var queued []*rig.Call
			for i := range 600 {
				queued = append(queued, b.Acquire(l, int64(1+i%2)))
			}
			before := p.Wire.Calls()
			try, result := b.Try(l, 1), rratelimiter.Result{}
			allow := b.Call(func(ctx context.Context) (ok bool, err error) {
				result, err = l.Allow(ctx, 3)
				return result.Allowed, err
			})
			b.Ended("the one that tries", try, false, 100*ms)
			b.Ended("the one that asks", allow, false, 100*ms)
			if result.RetryAfter != 900*ms || result.ResetAfter != 900*ms || result.Limit != 900 {
				t.Errorf("%+v", result)
			}
			b.SleepTo(999 * ms)
			if calls := p.Wire.Calls() - before; calls > 5 {
				t.Errorf("%d calls while nothing could be granted", calls)
			}
			resume := p.Wire.Hang()
			b.SleepTo(1001 * ms)
			behind := b.Try(l, 1) // behind a queue that takes several calls: all of it is served first
			resume()
			b.SleepTo(1002 * ms)
			for _, c := range queued {
				b.Granted("one in the queue", c, 1001*ms)
			}
			b.Ended("the one behind", behind, false, 1001*ms)
		})
	}
}

// The wait in a reply counts from the time when the call was sent, not from the time when the reply
// arrived.
func TestTimeoutOnASlowWire(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		b.Granted("the first", b.Acquire(l, 10), 0)
		b.SleepTo(500 * ms)
		p.Wire.Back.Store(int64(300 * ms))
		timed := b.TryFor(l, 1, 550*ms) // refused at 800 ms; free at 1000 ms; timeout at 1050 ms
		b.SleepTo(2 * time.Second)
		b.Granted("the timed one", timed, 1300*ms)
	})
}

// A call that times out fails its own requests, and no others.
func TestCallThatTakesTooLong(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		log := &rig.Log{}
		p := b.Process(rratelimiter.WithCallTimeout(250*ms), rratelimiter.WithObserver(log))
		p.MayStall()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		p.Wire.Back.Store(int64(400 * ms))
		in := b.Acquire(l, 1)
		b.SleepTo(100 * ms)
		p.Wire.Back.Store(0)
		b.Granted("the caller that comes once the call has stalled", b.Acquire(l, 2), 100*ms)
		b.Granted("the caller that tries then", b.Try(l, 3), 100*ms)
		b.SleepTo(249 * ms)
		b.Waits("the caller that is in the call", in)
		b.SleepTo(250 * ms)
		b.Ended("the caller that is in the call", in, false, 250*ms)
		if !errors.Is(in.Err, rratelimiter.ErrOutcomeUnknown) || !errors.Is(in.Err, os.ErrDeadlineExceeded) ||
			errors.Is(in.Err, context.DeadlineExceeded) {
			t.Errorf("the caller that is in the call: %v", in.Err)
		}
		b.SleepTo(500 * ms) // the late reply is dropped
		if s := rig.State(t, l); s.Used != 6 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if f := log.All()[2]; f.Err == nil || f.Attempts != 1 || f.Callers != 1 || f.Denied != 1 ||
			f.Latency != 250*ms {
			t.Errorf("%+v", f)
		}
	})
}

// If Redis is far away, callers that retry as soon as they are answered do not just miss the next
// call.
func TestDistantCallsLingerForRetries(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		const takes, rounds = 20 * ms, 10
		p := b.Process()
		rig.Core(p.Client).Tune(limiter.Tuning{Patience: time.Minute})
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(10000)))
		p.Wire.Back.Store(int64(takes))
		b.Try(l, 1) // the following ones wait behind it
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				for range rounds {
					if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
						t.Error(ok, err)
					}
				}
			})
		}
		p.CheckCalls("a call a round", rounds, all.Wait)
		if took := time.Since(b.Start); took > (rounds+2)*(takes+takes/10) {
			t.Errorf("it took %v", took)
		}
		waiting := b.Acquire(l, 10000)
		b.SleepTo(time.Since(b.Start) + 2*time.Second)
		if !waiting.Ended.Load() {
			t.Error("the queue of a waiting caller was dropped")
		}
	})
}

// Almost no memory remains of unused limiters, and a queue in use is never dropped.
func TestQueuesAreDropped(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		limiter := func(i int) *rratelimiter.Limiter {
			return p.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		}
		long := limiter(0)
		b.Granted("the first one", b.Acquire(long, 1), 0)
		waiting := b.Acquire(long, 1)
		for i := range 2 * dispatch.SpareQueues {
			for name, ask := range rig.EveryWay(limiter(1 + i)) {
				if name == "Allow" || name == "TryAcquire" {
					if err := ask(t.Context(), 1); err != nil {
						t.Error(err)
					}
				}
			}
			if i%2 == 0 {
				b.Acquire(limiter(1+i), 1).Cancel()
			}
		}
		synctest.Wait()
		if all := rig.Core(p.Client).Inspect(); all.Queues != 1+dispatch.SpareQueues || all.StrayTimers != 0 {
			t.Errorf("%+v, not one queue in use and %d spare ones, without timers", all, dispatch.SpareQueues)
		}
		behind := b.Acquire(limiter(0), 1)
		synctest.Wait()
		if all := rig.Core(p.Client).Inspect(); all.Waiting != 2 || all.Busy != 1 {
			t.Error("another handle has another queue")
		} else {
			b.SleepTo(2 * time.Second)
			b.Granted("the caller that waited", waiting, time.Second)
			b.Granted("the caller that came behind", behind, 2*time.Second)
		}
		old := limiter(3 * dispatch.SpareQueues)
		b.Granted("a handle whose queue is parked", b.Try(old, 1), 2*time.Second)
		for i := range dispatch.SpareQueues {
			b.Granted("others", b.Try(limiter(1+i), 1), 2*time.Second)
		}
		if rig.LimiterCore(old).HasQueue() {
			t.Error("a dropped queue is held by its handle")
		}
		b.SleepTo(3 * time.Second)
		b.Granted("a handle whose queue was dropped", b.Try(old, 1), 3*time.Second)
	})
}

// The same holds for sets of limiters: a few are kept, and one that was dropped works as before.
func TestQueuesOfSetsAreDropped(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		limiter := func(i int) *rratelimiter.Limiter {
			return p.RateLimiter(fmt.Sprint("{l}", i), rratelimiter.WithRate(rratelimiter.PerMinute(1000)))
		}
		first := limiter(0)
		for _, sets := range []int{dispatch.SpareQueues / 2, 2 * dispatch.SpareQueues} {
			for i := range sets {
				all, err := p.AllowAll(t.Context(), 1, first, limiter(1+i))
				if err != nil || !all[0].Allowed {
					t.Fatalf("set %d: %+v, %v", i, all, err)
				}
			}
			synctest.Wait()
			kept := min(sets, dispatch.SpareQueues)
			if all := rig.Core(p.Client).Inspect(); all.Queues != kept || all.Busy != 0 {
				t.Errorf("%+v, expected %d idle queues", all, kept)
			}
		}
	})
}

// The same holds for limiters that are only looked at, such as those of penalties.
func TestQueuesOfLimitersThatArePeekedAreDropped(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		for i := range 2 * dispatch.SpareQueues {
			l := p.RateLimiter(fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerSecond(1)))
			if r, err := l.Peek(t.Context(), 1); err != nil || !r.Allowed {
				t.Fatalf("%+v, %v", r, err)
			}
			l.Health()
		}
		if all := rig.Core(p.Client).Inspect(); all.Queues > dispatch.SpareQueues {
			t.Errorf("%d queues are left", all.Queues)
		}
	})
}

// Health tells of the calls that another handle of the same limiter has made. It makes no queue.
func TestHealthOfAnotherHandle(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		limiter := func(name string) *rratelimiter.Limiter {
			return p.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(1)))
		}
		resume := p.Wire.Hang()
		b.Acquire(limiter("l"), 1)
		b.SleepTo(100 * ms)
		if silence := limiter("l").Health().Silence; silence != 100*ms {
			t.Errorf("silence for %v", silence)
		}
		if silence := limiter("other").Health().Silence; silence != 0 {
			t.Errorf("another limiter: silence for %v", silence)
		}
		if n := rig.Core(p.Client).Inspect().Queues; n != 1 {
			t.Errorf("%d queues", n)
		}
		b.End(resume)
	})
}

// When the context of all waiting callers ends, no call is made for those that have not left yet:
// it would take permits that nobody gets.
func TestCallersOfOneContextLeaveWithoutACall(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerHour(10)))
		b.Granted("the first", b.Acquire(l, 7), 0)
		ctx, cancel := context.WithCancel(t.Context())
		errs := make(chan error)
		// three permits are free: the first one in the queue waits, and the others behind it
		sizes := []int64{5, 1, 1, 1}
		for _, n := range sizes {
			go func() { errs <- l.Acquire(ctx, n) }()
			synctest.Wait()
		}
		before := p.Wire.Calls()
		cancel()
		for range sizes {
			if err := <-errs; !errors.Is(err, context.Canceled) || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("a caller whose context ended got %v", err)
			}
		}
		synctest.Wait()
		if n := p.Wire.Calls() - before; n != 0 {
			t.Errorf("%d calls", n)
		}
		b.Granted("what was free", b.Try(l, 3), 0)
	})
}

// After many callers whose requests end in all possible ways, no goroutine, timer or blocked
// connection remains.
func TestCrowdLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) { // a bubble fails by itself if one of its goroutines remains
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
		p.Wire.There.Store(int64(3 * ms))
		p.Wire.Back.Store(int64(2 * ms))
		var all sync.WaitGroup
		var mu sync.Mutex
		var granted int64
		var log []window.Grant
		for i := range 600 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				time.Sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(4*time.Second))))
				defer cancel()
				n, start := 1+r.Int64N(5), time.Now()
				var err error
				ok := false
				switch i % 4 {
				case 0:
					err = l.Acquire(ctx, n)
					ok = err == nil
				case 1:
					ok, err = l.TryAcquire(ctx, n)
				case 2:
					ok, err = l.TryAcquireTimeout(ctx, n, time.Duration(r.Int64N(int64(3*time.Second))))
				case 3:
					var result rratelimiter.Result
					result, err = l.Allow(ctx, n)
					ok = result.Allowed
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if ok {
					mu.Lock()
					defer mu.Unlock()
					granted += n
					log = append(log, window.Grant{Permits: n, Start: start, End: time.Now()})
				}
			})
		}
		all.Wait()
		if most, at := window.Largest(log, time.Second); most > 100 {
			t.Errorf("%d permits in the second from %v", most, at.Sub(b.Start))
		}
		if granted < 300 {
			t.Errorf("only %d permits were granted in %v", granted, time.Since(b.Start))
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if s := rig.State(t, l); s.Used != 0 || !s.Consistent {
			t.Errorf("%+v", s)
		}
		if i := rig.Core(p.Client).Inspect(); i.Waiting+i.Busy+i.StrayTimers+i.InFlight+i.Stalled+i.Queued != 0 {
			t.Errorf("%+v", i)
		}
	})
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * ms)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

// Permits of several grants within five ms become one grant in the next interval, so that many
// waiting callers cost few calls.
func TestGrantsThatReturnTogetherBecomeOne(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithRate(rratelimiter.PerSecond(6)))
		for at := range 3 {
			b.SleepTo(time.Duration(at) * ms)
			b.Granted("one of the first", b.Try(l, 2), time.Duration(at)*ms)
		}
		var waiting []*rig.Call
		for range 18 {
			waiting = append(waiting, b.Acquire(l, 1))
		}
		p.CheckCalls("three intervals", 3, func() { b.SleepTo(4 * time.Second) })
		for i, c := range waiting {
			b.Granted("the caller that waited", c, time.Duration(1+i/6)*time.Second+2*ms)
		}
	})
}
