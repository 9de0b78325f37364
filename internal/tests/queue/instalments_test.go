package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// Callers that want more permits than the rate, and take them in instalments (WithInstalments).

func byInstalments(p *rig.Process, rate rratelimiter.Rate, opts ...rratelimiter.LimiterOption) *rratelimiter.Limiter {
	return p.RateLimiter("l", append(opts, rratelimiter.WithRate(rate), rratelimiter.WithInstalments())...)
}

// partly checks the error of a caller that took some of its permits.
func partly(b *rig.Bubble, what string, c *rig.Call, at time.Duration, taken int64, cause error) {
	b.T.Helper()
	b.Ended(what, c, false, at)
	var some *rratelimiter.PartlyTakenError
	if !errors.As(c.Err, &some) || some.Taken != taken || !errors.Is(c.Err, cause) {
		b.T.Errorf("%s: %v, not %d permits and %v", what, c.Err, taken, cause)
	}
}

// mustKeep sets another rate, under which what was granted still counts.
func mustKeep(t *testing.T, l *rratelimiter.Limiter, rate rratelimiter.Rate) {
	t.Helper()
	if err := l.SetRate(t.Context(), rate, rratelimiter.KeepState()); err != nil {
		t.Fatal(err)
	}
}

// A caller gets the rate in each interval, by one call for each, and keeps its place.
func TestInstalmentsComeInOrder(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := byInstalments(p, rratelimiter.PerSecond(20))
		before, mails, behind, small := b.Acquire(l, 20), b.Acquire(l, 190), b.Acquire(l, 10), b.Acquire(l, 1)
		b.SleepTo(500 * ms)
		b.Granted("the caller in front", before, 0)
		b.Waits("the mails", mails)
		if ok, err := l.TryAcquire(t.Context(), 1); ok || err != nil {
			t.Errorf("a try beside it: %v, %v", ok, err)
		}
		calls := p.Wire.Calls()
		b.SleepTo(20 * time.Second)
		b.Granted("the mails", mails, 10*time.Second)
		b.Granted("the caller behind, within the last instalment", behind, 10*time.Second)
		b.Granted("the last caller", small, 11*time.Second)
		if n := p.Wire.Calls() - calls; n > 13 {
			t.Errorf("%d calls for 10 instalments and 2 callers", n)
		}
	})
}

// Before the first reply the rate is not known.
func TestTheFirstCallMayWantInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(10))
		mails, behind := b.Acquire(l, 25), b.Acquire(l, 5)
		b.SleepTo(5 * time.Second)
		b.Granted("the mails", mails, 2*time.Second)
		b.Granted("the caller behind", behind, 2*time.Second)
	})
}

// Whoever leaves is told what it has. Its next instalment goes to those behind.
func TestACallerLeavesBetweenInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(20))
		mails, other, behind := b.Acquire(l, 200), b.Acquire(l, 200), b.Acquire(l, 20)
		b.SleepTo(2500 * ms)
		mails.Cancel()
		partly(b, "the mails", mails, 2500*ms, 60, context.Canceled)
		other.Cancel()
		if b.Ended("who has got nothing", other, false, 2500*ms); !errors.Is(other.Err, context.Canceled) ||
			errors.As(other.Err, new(*rratelimiter.PartlyTakenError)) {
			t.Error(other.Err)
		}
		b.SleepTo(4 * time.Second)
		b.Granted("the caller behind", behind, 3*time.Second)
	})
}

// A new rate is that of the next instalments; a rate of 0 ends the call.
func TestInstalmentsAtANewRate(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(20))
		mails := b.Acquire(l, 80) // at 0, 1 and 2 s 20 permits, at 3 and 4 s 10
		b.SleepTo(2500 * ms)
		mustKeep(t, l, rratelimiter.PerSecond(10))
		b.SleepTo(6 * time.Second)
		b.Granted("the mails", mails, 4*time.Second)
		mails = b.Acquire(l, 100) // at 6 and 7 s 10 permits, at 7.5 s 30, at 8.5 s 40, at 9.5 s 10
		b.SleepTo(7500 * ms)
		mustKeep(t, l, rratelimiter.PerSecond(40))
		b.SleepTo(10 * time.Second)
		b.Granted("more mails", mails, 9500*ms)
		mails = b.Acquire(l, 100)
		b.SleepTo(10400 * ms)
		mustKeep(t, l, rratelimiter.PerSecond(0))
		b.SleepTo(12 * time.Second)
		partly(b, "at a rate of 0", mails, 10400*ms, 30, rratelimiter.ErrExceedsRate)
	})
}

// Without the option, and by other methods, more permits than the rate are an error.
func TestOnlyAcquireTakesInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l, plain := byInstalments(p, rratelimiter.PerSecond(10)), perSecond(p, "plain", 10)
		for what, c := range map[string]*rig.Call{
			"without the option": b.Acquire(plain, 11),
			"TryAcquireTimeout":  b.TryFor(l, 11, time.Minute),
			"TryAcquire":         b.Try(l, 11),
			"AcquireAll":         acquireAll(b, 11, l, plain),
		} {
			if b.Ended(what, c, false, 0); !errors.Is(c.Err, rratelimiter.ErrExceedsRate) {
				t.Errorf("%s: %v", what, c.Err)
			}
		}
	})
}

func TestFailFastCountsAllInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(10), rratelimiter.WithFailFast())
		b.Granted("the first", b.Try(l, 10), 0)
		failedFast(b, "one instalment too many", acquireBy(b, l, 35, 3900*ms), 0, 4*time.Second)
		front := acquireBy(b, l, 35, 4100*ms)
		behind := acquireBy(b, l, 10, 4900*ms)
		b.SleepTo(6 * time.Second)
		b.Granted("the one in front", front, 4*time.Second)
		failedFast(b, "behind it", behind, 4*time.Second, 5*time.Second)
	})
}

// failsWhole checks that a caller by a deadline fails at once, and that nothing is taken for it.
func failsWhole(b *rig.Bubble, what string, l *rratelimiter.Limiter, n int64, deadline, free time.Duration) {
	b.T.Helper()
	now := time.Since(b.Start)
	before := rig.State(b.T, l).Used
	c := acquireBy(b, l, n, deadline)
	failedFast(b, what, c, now, free)
	if errors.As(c.Err, new(*rratelimiter.PartlyTakenError)) || rig.State(b.T, l).Used != before {
		b.T.Errorf("%s: %v, %d permits taken", what, c.Err, rig.State(b.T, l).Used-before)
	}
}

// A request for more than the rate is judged as a whole before its first permit is taken, also by
// the first call of a process, which does not know the rate.
func TestFailFastTakesNoInstalmentInVain(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		rate := rratelimiter.PerSecond(20)
		l := byInstalments(b.Process(), rate, rratelimiter.WithFailFast())
		rig.MustTrySet(t, b.Process().RateLimiter("l"), rate, true)
		failsWhole(b, "the first call", l, 200, 2*time.Second, 9*time.Second)
		failsWhole(b, "one more than the rate", l, 21, 500*ms, time.Second)
		failsWhole(b, "at the edge", l, 40, time.Second, time.Second)
		failsWhole(b, "a deadline that is over before the last instalment", l, 200, 9*time.Second, 9*time.Second)
		mails := acquireBy(b, l, 200, 9*time.Second+ms)
		b.SleepTo(10 * time.Second)
		b.Granted("just in time", mails, 9*time.Second)
	})
}

// What is in use counts. No caller is refused that can be in time: with 5 of 10 in use until 0.9 s,
// 25 can be taken by 2 s.
func TestFailFastKnowsWhatIsFreeForInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(10), rratelimiter.WithFailFast())
		b.Granted("the first", b.Try(l, 5), 0)
		b.SleepTo(100 * ms)
		failsWhole(b, "one more than fit", l, 26, 2500*ms, 3*time.Second)
		mails := acquireBy(b, l, 25, 2200*ms)
		b.SleepTo(3 * time.Second)
		b.Granted("five and two intervals", mails, 2100*ms)
	})
}

// Each instalment is judged, too. A caller that has some permits already is told how many.
func TestFailFastBetweenInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(10), rratelimiter.WithFailFast())
		mails := acquireBy(b, l, 20, 1500*ms)
		b.SleepTo(500 * ms)
		mustKeep(t, b.Process().RateLimiter("l"), rratelimiter.PerSecond(5))
		b.SleepTo(3 * time.Second)
		var late *rratelimiter.NotInTimeError
		if partly(b, "the mails", mails, time.Second, 10, mails.Err); !errors.As(mails.Err, &late) {
			t.Error(mails.Err)
		}
	})
}

// A rate that was lowered since the last reply is known before the first permit is taken.
func TestFailFastLearnsTheRateBeforeItTakesInstalments(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l := byInstalments(b.Process(), rratelimiter.PerSecond(20), rratelimiter.WithFailFast())
		b.Granted("the first", b.Try(l, 1), 0)
		mustKeep(t, b.Process().RateLimiter("l"), rratelimiter.PerSecond(2))
		b.SleepTo(time.Second)
		failsWhole(b, "at the new rate", l, 22, 6*time.Second, 11*time.Second)
	})
}

// TestRandomInstalments: callers of two processes come and leave. They want permits of one limiter,
// some of them more than its rate, or of two limiters at once. By the records in Redis no window
// holds more than the rate, and all that callers took was granted. Each caller gets all it wants or
// is told what it has. Nearly nothing is wasted: the last permit is granted a few intervals after a
// limiter that serves its callers one by one would have granted it.
func TestRandomInstalments(t *testing.T) {
	for seed := range int64(proof.Or(10, 3)) {
		rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
			random := rand.New(rand.NewSource(seed))
			rate := rratelimiter.Rate{
				Permits:  2 + random.Int63n(8),
				Interval: time.Duration(1+random.Intn(3)) * time.Second,
			}
			processes := []*rig.Process{b.Process(), b.Process()}
			limiters := map[*rig.Process][]*rratelimiter.Limiter{}
			for _, p := range processes {
				for _, name := range []string{"{t}a", "{t}b"} {
					limiters[p] = append(limiters[p],
						p.RateLimiter(name, rratelimiter.WithRate(rate), rratelimiter.WithInstalments()))
				}
			}
			logs := []map[string]redis.Z{{}, {}}
			look := func() {
				for i, key := range []string{"{t}a:permits", "{t}b:permits"} {
					for _, z := range processes[0].Redis.ZRangeWithScores(t.Context(), key, 0, -1).Val() {
						logs[i][fmt.Sprint(z.Member)] = z
					}
				}
			}
			var wants []*want
			for range 40 {
				until := time.Since(b.Start) + time.Duration(random.Intn(3000))*ms
				for time.Since(b.Start) < until {
					b.SleepTo(min(until, time.Since(b.Start)+300*ms))
					look()
				}
				p, n, w := processes[random.Intn(2)], 1+random.Int63n(
					rate.Permits,
				), &want{at: time.Since(b.Start), permits: []int64{0, 0}}
				switch random.Intn(4) {
				case 0: // one limiter, in instalments
					n += random.Int63n(3 * rate.Permits)
					fallthrough
				case 1, 2:
					w.permits[random.Intn(2)] = n
				default:
					w.permits = []int64{n, n}
				}
				if random.Intn(8) == 0 {
					w.patience = time.Duration(1+random.Intn(8000)) * ms
				}
				w.call = w.ask(b, p, limiters[p])
				wants = append(wants, w)
			}
			waits := func(w *want) bool { return !w.call.Ended.Load() }
			for look(); time.Since(b.Start) < 10*time.Minute && slices.ContainsFunc(wants, waits); look() {
				b.SleepTo(time.Since(b.Start) + 300*ms)
			}
			var ideal, last time.Duration
			for i, log := range logs {
				end, granted := checkTaken(t, fmt.Sprintf("seed %d, limiter %d", seed, i), wants, i, log, rate)
				ideal, last = max(ideal, end), max(last, granted)
			}
			if last > ideal+3*rate.Interval {
				t.Errorf("seed %d: the last permit of %v was granted at %v, ideally at %v", seed, rate, last, ideal)
			}
		})
	}
}

// checkTaken compares what callers took from a limiter with its records. It returns when the last
// permit would have been granted ideally, and when it was.
func checkTaken(
	t *testing.T, what string, wants []*want, limiter int, log map[string]redis.Z, rate rratelimiter.Rate,
) (ideal, last time.Duration) {
	t.Helper()
	var taken, stored int64
	for i, w := range wants {
		n := w.permits[limiter]
		var some *rratelimiter.PartlyTakenError
		if n > 0 && errors.As(w.call.Err, &some) {
			n = some.Taken
		} else if w.call.Err != nil {
			n = 0
		}
		if n == 0 {
			continue
		}
		taken += n
		if !w.call.Ended.Load() {
			t.Errorf("%s: caller %d waits for %v permits", what, i, w.permits)
		}
		ideal = max(ideal, w.at) + time.Duration(n)*rate.Interval/time.Duration(rate.Permits)
		last = max(last, w.call.At)
	}
	var scores []window.Score
	for _, z := range log {
		r, err := rratelimiter.UnpackRecord([]byte(z.Member.(string)))
		if err != nil {
			t.Fatal(err)
		}
		stored += int64(r.Permits)
		scores = append(
			scores, window.Score{Permits: int64(r.Permits), At: int64(1000 * z.Score), Added: int64(1000 * z.Score)},
		)
	}
	if most, _ := window.LargestScores(scores, rate.Interval); most > rate.Permits {
		t.Errorf("%s: a window holds %d permits of %v", what, most, rate)
	}
	if stored < taken {
		t.Errorf("%s: the callers have %d permits, Redis %d", what, taken, stored)
	}
	return ideal, last
}

// Callers of another process that take permits whenever some are free do not stop the caller, nor
// it them.
func TestInstalmentsBesideABusyClient(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		l, other := byInstalments(b.Process(), rratelimiter.PerSecond(10)), b.Process().RateLimiter("l")
		b.Granted("the first", b.Try(l, 3), 0)
		b.SleepTo(300 * ms)
		mails := b.Acquire(l, 100)
		var byOther atomic.Int64
		for range 3 {
			go func() {
				for !mails.Ended.Load() && other.Acquire(t.Context(), 1) == nil {
					byOther.Add(1)
				}
			}()
		}
		b.SleepTo(2 * time.Minute)
		if !mails.OK || mails.At > time.Minute || byOther.Load() < 100 { // with half of all permits it would be 20 s
			t.Errorf("granted %v at %v, %v; the other client had %d permits",
				mails.OK, mails.At, mails.Err, byOther.Load())
		}
	})
}

// A limiter with a keep-alive of one interval is still there when the next instalment is due.
func TestInstalmentsKeepTheLimiterAlive(t *testing.T) {
	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
		p := b.Process()
		l := p.RateLimiter("l", rratelimiter.WithInstalments())
		rig.MustSet(t, l, rratelimiter.Rate{Permits: 5, Interval: time.Second, KeepAlive: time.Second})
		p.Wire.Back.Store(int64(5 * ms))
		mails := b.Acquire(l, 15)
		b.SleepTo(10 * time.Second)
		b.Granted("the mails", mails, 2*time.Second+10*ms) // the first call learns the rate
	})
}
