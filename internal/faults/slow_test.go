package faults

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// slow_test.go tests servers with a high latency, and one that hangs.

var hang = flag.Duration("hang", 5*time.Second, "how long a server hangs in TestHungServer")

// TestLatency: a server 200 ms away costs that time and nothing else.
func TestLatency(t *testing.T) {
	t.Parallel()
	const (
		callers = 64
		latency = 200 * time.Millisecond
		jitter  = 100 * time.Millisecond // more or less
	)
	rate := rratelimiter.Rate{Permits: 100, Interval: 700 * time.Millisecond}
	server := redistest.Real(t)
	setRate(t, server, "far", rate)
	p := newProxy(t, server.Addr)
	release := p.delay(replies, latency, jitter)
	defer release()
	rdb := server.Client(func(o *redis.Options) { o.Addr = p.proxy.Listen; o.ReadTimeout = time.Minute })
	// Calls that took a second would be late by default, and a busy machine adds to what the way
	// takes.
	limiter := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(20*time.Second)).RateLimiter("far")
	if _, err := limiter.TryAcquire(t.Context(), 1); err != nil { // the first connection takes a few round trips
		t.Fatal(err)
	}
	recording := watch(t, server, "far")
	over, counted := lastingUntil(2*time.Second, 2*rate.Permits)
	got := load(callers, 1, 5*time.Millisecond, over, func(int) call {
		n := 1 + rand.Int64N(3)
		return counted(ask(n, func() (bool, error) { return limiter.TryAcquire(t.Context(), n) }))
	})
	for _, c := range got.where(failed) {
		t.Error(c.err)
	}
	h := historyOf(t, recording.Stop(), "far", rate)
	h.judge(t, rate, got.where(isGranted))
	if granted := got.where(isGranted).permits(); h.permits() != granted || granted < 2*rate.Permits {
		t.Errorf("%d permits recorded, %d granted", h.permits(), granted)
	}
	row{
		section: slow, fault: "the way there and back takes 200 ms, ±100 ms",
		sees:   "calls take this time once or twice; no error if the round trip is shorter than `WithCallTimeout`",
		within: "half of the calls within", limit: 2*(latency+jitter) + 500*time.Millisecond,
		after: "exact",
	}.proves(t, got.percentile(50))
}

// TestHungServer: a server that hangs blocks no caller beyond its own deadline, and limiters work
// again without manual repair when it continues.
func TestHungServer(t *testing.T) { inRounds(t, hangServer) }

func hangServer(t *testing.T, r *round) {
	const (
		callers = 1000
		own     = 100 * time.Millisecond // time of a caller
		limit   = 150 * time.Millisecond
	)
	server := redistest.Real(t)
	rdb := server.Client()
	limiter := rratelimiter.NewClient(rdb).RateLimiter("hung", rratelimiter.WithRate(ample))
	if err := limiter.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	with := func(callers int, enough <-chan struct{},
		acquire func(ctx context.Context, caller int) (bool, error)) calls {
		return load(callers, 1, 20*time.Millisecond, enough, func(caller int) call {
			ctx, cancel := context.WithTimeout(t.Context(), own)
			defer cancel()
			return ask(1, func() (bool, error) { return acquire(ctx, caller) })
		})
	}
	atRest(t)
	goroutines := runtime.NumGoroutine()

	server.Pause()
	over := lasting(*hang)
	var got, idle calls
	var calling sync.WaitGroup
	// Measure the machine's own lateness with goroutines that only wait for a deadline.
	calling.Go(func() {
		idle = with(callers/4, over, func(ctx context.Context, _ int) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		})
	})
	calling.Go(func() {
		got = with(callers, over, func(ctx context.Context, caller int) (bool, error) {
			if caller%2 == 0 {
				return true, limiter.Acquire(ctx, 1)
			}
			return limiter.TryAcquire(ctx, 1)
		})
	})
	calling.Wait()
	server.Resume()
	recovered := firstGrant(t, limiter, time.Now())

	for _, c := range got {
		if !errors.Is(c.err, context.DeadlineExceeded) && !errors.Is(c.err, os.ErrDeadlineExceeded) {
			t.Fatalf("a caller's error is %v", c.err)
		}
	}
	t.Logf("it hung for %v: %d calls of %v, median %v, p99 %v, the last %v (callers who only wait: %v, %v, %v)",
		*hang, len(got), own, got.percentile(50), got.percentile(99), got.percentile(100),
		idle.percentile(50), idle.percentile(99), idle.percentile(100))
	r.proves(t, row{
		section: slow, fault: "the server hangs, 1,000 callers with 100 ms each",
		sees:   "the error of its context, which also wraps `ErrOutcomeUnknown` if its call was in flight",
		within: "99 of 100 return within", limit: limit, late: &lateness{idle.percentile(99) - own},
		after: "calls in flight may be recorded when the server continues",
	}, got.percentile(99))
	r.atMost("the last caller", got.percentile(100), own+slack)
	row{
		section: slow, fault: "the server goes on after it hung",
		sees: "grants", within: "the first grant within", limit: callTimeout + slack,
		after: "granted ≤ recorded ≤ granted + permits of callers with `ErrOutcomeUnknown`",
	}.proves(t, recovered)

	after := load(callers/10, 3, time.Millisecond, lasting(0), func(int) call {
		return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
	})
	for _, c := range after.where(failed) {
		t.Errorf("afterwards: %v", c.err)
	}
	atRest(t)
	balanced(t, 2+after.where(isGranted).permits(), got, limiter)
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
}

// balanced fails the test unless each granted permit is recorded, and at most those of calls with
// ErrOutcomeUnknown, and beside further permits, in addition.
func balanced(t *testing.T, beside int64, got calls, limiters ...*rratelimiter.Limiter) {
	t.Helper()
	given, doubtful := beside+got.where(isGranted).where(answered).permits(), got.where(isUnknown).permits()
	if recorded := used(t, limiters...); recorded < given || recorded > given+doubtful {
		t.Errorf("%d permits recorded, %d granted and %d of unknown outcome", recorded, given, doubtful)
	}
}

// TestClockSteps: the clock of one client is an hour wrong.
func TestClockSteps(t *testing.T) {
	for _, test := range []struct {
		step  time.Duration
		fault string
		sees  string
		after string
	}{
		{time.Hour, "one client's clock jumps ahead by an hour",
			"each call of this client frees the permits of the other clients. After the clock is right again, " +
				"the other clients can be refused for up to an hour and an interval",
			"has records with times in the future: `State().Newest` shows this; `SetRate` without `KeepState`, or " +
				"`rrl reset`, removes the records"},
		{-time.Hour, "one client's clock jumps back by an hour",
			"each call of another client frees the permits of this client. This client waits longer for the permits of the other clients",
			"exact again from the first call after the clock is right"},
	} {
		t.Run(test.step.String(), func(t *testing.T) {
			t.Parallel()
			clockStep(t, test.step)
			row{section: own, fault: test.fault, sees: test.sees, after: test.after}.proves(t, 0)
		})
	}
}

// clockStep calls two clients in turn, one of which has a wrong clock for a while, and counts their
// grants.
//
// The bounds meanwhile: the client that is ahead, of the two, is granted no more than the rate in
// any interval by its own clock, since no other client frees its permits. And between two calls of
// that one both together are granted no more than the rate. So only the other one can be granted
// more: the rate with each call of the one ahead.
func clockStep(t *testing.T, step time.Duration) {
	const asks = 600
	rate := rratelimiter.Rate{Permits: 20, Interval: time.Second}
	server := redistest.Real(t)
	at := time.Now().Truncate(time.Millisecond)
	wrong := time.Duration(0)
	right := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(func() time.Time { return at })).
		RateLimiter("clock", rratelimiter.WithRate(rate))
	other := rratelimiter.NewClient(server.Client(), rratelimiter.WithClock(func() time.Time { return at.Add(wrong) })).
		RateLimiter("clock", rratelimiter.WithRate(rate))
	random := rand.New(rand.NewPCG(7, uint64(step)))
	// take lets both call in random order for a while, and returns the grants of each, and the most
	// that both got between two calls of the one that is ahead.
	take := func() (byRight, byOther []window.Grant, most int64) {
		var since int64
		for range asks {
			at = at.Add(time.Duration(random.IntN(40)) * time.Millisecond)
			l, log, ahead, n := right, &byRight, wrong < 0, 1+random.Int64N(10)
			if random.IntN(2) == 0 {
				l, log, ahead = other, &byOther, wrong > 0
			}
			if ahead && random.IntN(4) > 0 {
				continue
			}
			if ahead {
				since, n = 0, 1 // so that it leaves most to the other one
			}
			got, err := l.AcquireUpTo(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			*log = append(*log, window.Grant{Permits: got, Start: at, End: at})
			since += got
			most = max(most, since)
		}
		return byRight, byOther, most
	}
	largest := func(logs ...[]window.Grant) int64 {
		var all []window.Grant
		for _, log := range logs {
			all = append(all, log...)
		}
		most, _ := window.Largest(all, rate.Interval)
		return most
	}
	byRight, byOther, _ := take()
	if most := largest(byRight, byOther); most != rate.Permits {
		t.Errorf("clocks in step: %d in a window, of %d", most, rate.Permits)
	}

	wrong = step
	byRight, byOther, between := take()
	ahead, behind := largest(byOther), largest(byRight)
	if step < 0 {
		ahead, behind = behind, ahead
	}
	t.Logf(
		"while one clock is wrong by %v: in a window %d for the one ahead, %d for the one behind, %d for both, of %d; %d between two calls of the one ahead",
		step, ahead, behind, largest(byRight, byOther), rate.Permits, between,
	)
	if ahead > rate.Permits {
		t.Errorf("the one ahead was granted %d in a window", ahead)
	}
	if between > rate.Permits {
		t.Errorf("between two calls of the one ahead %d were granted", between)
	}
	if behind <= rate.Permits {
		t.Errorf("the one behind was granted %d: then the page says too much", behind)
	}

	wrong = 0
	state, err := right.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if step > 0 {
		if future := state.Newest.Sub(at); future < step-2*rate.Interval || future > step {
			t.Errorf("the newest record is %v ahead", future)
		}
		result, err := right.Allow(t.Context(), rate.Permits)
		if err != nil || result.Allowed || result.RetryAfter < step-2*rate.Interval {
			t.Errorf("%+v, %v: what is dated in the future counts", result, err)
		}
		if err := right.SetRate(t.Context(), rate); err != nil {
			t.Fatal(err)
		}
		if ok, err := right.TryAcquire(t.Context(), rate.Permits); !ok || err != nil {
			t.Errorf("after SetRate: %v, %v", ok, err)
		}
	} else if state.Newest.After(at) || !state.Consistent {
		t.Errorf("%+v, at %v", state, at)
	}
	at = at.Add(rate.Interval) // what was granted before leaves
	byRight, byOther, _ = take()
	if most := largest(byRight, byOther); most != rate.Permits {
		t.Errorf("clocks in step again: %d in a window, of %d", most, rate.Permits)
	}
}

// TestServerTime: clients whose clocks are wrong by an hour keep the limit by the server's clock.
func TestServerTime(t *testing.T) {
	t.Parallel()
	rate := rratelimiter.Rate{Permits: 20, Interval: 200 * time.Millisecond}
	server := redistest.Real(t)
	var clients []*rratelimiter.Limiter
	for _, wrong := range []time.Duration{-time.Hour, 0, time.Hour} {
		clients = append(clients, rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(20*time.Second),
			rratelimiter.WithClock(func() time.Time { return time.Now().Add(wrong) })).
			RateLimiter("clock", rratelimiter.WithRate(rate), rratelimiter.WithServerTime()))
	}
	over, counted := lastingUntil(time.Second, 2*rate.Permits)
	got := load(len(clients), 1, time.Millisecond, over, func(caller int) call {
		return counted(ask(3, func() (bool, error) { return clients[caller].TryAcquire(t.Context(), 3) }))
	})
	for _, c := range got.where(failed) {
		t.Error(c.err)
	}
	var log []window.Grant
	for _, c := range got.where(isGranted) {
		log = append(log, window.Grant{Permits: c.Permits, Start: c.Start, End: c.End})
	}
	most, _ := window.Largest(log, rate.Interval)
	t.Logf("%d permits granted, %d in a window, of %d", got.where(isGranted).permits(), most, rate.Permits)
	if most > rate.Permits || got.where(isGranted).permits() < 2*rate.Permits {
		t.Errorf("%d permits granted, %d in a window, of %d", got.where(isGranted).permits(), most, rate.Permits)
	}
	dated := clients[0].Client().
		RateLimiter("dated", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithServerTime())
	ok, err := dated.TryAcquire(t.Context(), 1)
	state, stateErr := dated.State(t.Context())
	if !ok || err != nil || stateErr != nil || time.Until(state.Newest).Abs() > time.Minute {
		t.Errorf("%v, %v, %+v, %v", ok, err, state, stateErr)
	}
	row{
		section: own,
		fault:   "clocks are wrong by an hour, `WithServerTime`",
		sees:    "nothing",
		after:   "exact, by the server's clock",
	}.
		proves(t, 0)
}
