package compat

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// suite_test.go has the behaviours that Redisson's own suite tests, seen from Java, while Go uses
// the same limiter: Go takes permits where the test says so, and reads the limiter all the time.
// Each behaviour is named after the test cases that it covers; the code is our own.

// A behaviour is what Java must observe.
type behaviour struct {
	name  string
	since string // the first version that has it; "" all
	run   func(b *bench, name string)
}

var behaviours = []behaviour{
	{"testKeepAliveTime", "3.38.0", suiteKeepAlive},
	{"testExpire", "", suiteExpire},
	{"testExpire2", "", suiteExpire2},
	{"testRateValue", "", suiteRateValue},
	{"testAcquisitionInterval", "", suiteAcquisitionInterval},
	{"testRateConfig", "", suiteRateConfig},
	{"testAvailablePermits", "", suiteAvailable},
	{"testUpdateRateConfig testChangeRate", "", suiteChangeRate},
	{"testPermitsExceeding", "", suiteExceeding},
	{"testZeroTimeout testTryAcquire", "", suiteTimeout},
	{"testAcquire", "", suiteAcquire},
	{"testRemove", "", suiteRemove},
	{"testConcurrency", "", func(b *bench, name string) { suiteConcurrency(b, name, false) }},
	{"testConcurrency2", "", func(b *bench, name string) { suiteConcurrency(b, name, true) }},
	{"testSetStateArgs", "4.4.0", suiteSetKeepingState},
	{"testUpdateRate", "4.4.0", suiteUpdateRate},
	{"testRelease", "3.52.0", suiteRelease},
}

func TestRedissonsSuite(t *testing.T) {
	server := redistest.Real(t)
	for _, version := range []string{"3.17.5", "4.7.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			java := redisson.Start(t, version, redisson.Addr(server.Addr))
			for _, s := range behaviours {
				if before(version, s.since) {
					continue
				}
				t.Run(s.name, func(t *testing.T) {
					b := &bench{T: t, ctx: t.Context(), rdb: server.Client(), java: java}
					name := "suite:" + version + ":" + strings.ReplaceAll(s.name, " ", "+")
					b.look(name)
					s.run(b, name)
				})
			}
		})
	}
}

// look makes a separate Go client read everything about the limiter until the test ends, and fails
// on impossible values.
func (b *bench) look(name string) {
	b.Helper()
	l := b.client().RateLimiter(name)
	ctx, stop := context.WithCancel(context.WithoutCancel(b.ctx))
	var wg sync.WaitGroup
	b.Cleanup(func() {
		stop()
		wg.Wait()
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			_, err := l.AvailablePermits(ctx)
			if err == nil {
				_, err = l.TTL(ctx)
			}
			var state rratelimiter.State
			if err == nil {
				state, err = l.State(ctx)
			}
			switch {
			case err != nil && !errors.Is(err, rratelimiter.ErrNotInitialized) && ctx.Err() == nil:
				b.Errorf("a Go client that only reads: %v", err)
				return
			case err == nil && (state.Available < 0 || state.Available > state.Rate.Permits):
				b.Errorf("a Go client that only reads sees %+v", state)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

// keys returns how many keys a limiter has.
func (b *bench) keys(name string) int {
	return int(b.rdb.Exists(b.ctx, name, valueKey(name), permitsKey(name)).Val())
}

func (b *bench) gone(name string) {
	b.Helper()
	b.eventually("no key is left", 10*time.Second, func() bool { return b.keys(name) == 0 })
	want(b, "Java's isExists", false)(b.java.Exists(b.ctx, name))
	if _, err := b.java.TryAcquire(b.ctx, name, 1); err == nil || !strings.Contains(err.Error(), "not initialized") {
		b.Fatalf("Java's tryAcquire without a limiter: %v", err)
	}
	if n := b.keys(name); n != 0 {
		b.Fatalf("%d keys came back", n)
	}
}

// suiteKeepAlive: calls of Java keep the limiter alive; reads by Go do not.
func suiteKeepAlive(b *bench, name string) {
	const alive = 1500 * time.Millisecond
	rate := redisson.Rate{Permits: 10, Interval: 200 * time.Millisecond, KeepAlive: alive}
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, rate))
	last := time.Now()
	for end := last.Add(2 * alive); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		asked := time.Now()
		if _, err := b.java.TryAcquire(b.ctx, name, 1); err != nil && asked.Sub(last) < alive/2 &&
			time.Since(last) < alive {
			b.Fatalf("%v after its last use: %v", time.Since(last), err)
		} else if err != nil {
			// the machine stalled and the limiter expired
			want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, rate))
		}
		last = asked
	}
	b.gone(name)
}

// suiteExpire: a TTL that Java sets also ends the state that Go wrote.
func suiteExpire(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Hour}))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 1))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	want(b, "Java's expire", true)(b.java.Expire(b.ctx, name, 500*time.Millisecond))
	b.gone(name)
}

// suiteExpire2: state that either side writes after a TTL was set gets that TTL.
func suiteExpire2(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Hour}))
	want(b, "Java's expire", true)(b.java.Expire(b.ctx, name, time.Minute))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 1))
	b.stateLives(name, time.Minute)
	want(b, "Java's expire", true)(b.java.Expire(b.ctx, name, 500*time.Millisecond))
	b.gone(name)
}

// suiteRateValue: under concurrent use Java never sees more free permits than the rate, nor fewer
// than 0.
func suiteRateValue(b *bench, name string) {
	l := b.limiter(name)
	const rate = 10
	want(b, "Java's trySetRate", true)(
		b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: rate, Interval: 200 * time.Millisecond}),
	)
	var wg sync.WaitGroup
	for until := time.Now().Add(1500 * time.Millisecond); time.Now().Before(until); {
		wg.Go(func() {
			if _, err := l.TryAcquire(b.ctx, 3); err != nil {
				b.Error(err)
			}
		})
		_, err := b.java.TryAcquire(b.ctx, name, 2)
		b.must("Java's tryAcquire", err)
		free, err := b.java.Available(b.ctx, name)
		b.must("Java's availablePermits", err)
		if free < 0 || free > rate {
			b.Fatalf("Java sees %d of %d permits free", free, rate)
		}
		wg.Wait()
	}
	b.eventually("all permits are free again", 10*time.Second, func() bool {
		free, err := b.java.Available(b.ctx, name)
		b.must("Java's availablePermits", err)
		return free == rate
	})
}

// suiteAcquisitionInterval: permits that Go and Java took at different times expire at different
// times.
func suiteAcquisitionInterval(b *bench, name string) {
	l := b.limiter(name)
	const interval = time.Second
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 2, Interval: interval}))
	first := time.Now()
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	time.Sleep(interval / 3)
	second := time.Now()
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 1))
	for i, taken := range []time.Time{first, second} {
		b.must("Java's acquire", b.java.Acquire(b.ctx, name, 1))
		if passed := time.Since(taken); passed < interval-time.Millisecond { // a grant's time is truncated to ms
			b.Fatalf("permit %d came back after %v", i, passed)
		}
	}
}

// suiteRateConfig: both read the same rate, and a second trySetRate does not change it.
func suiteRateConfig(b *bench, name string) {
	l := b.limiter(name)
	rate := redisson.Rate{Type: redisson.PerClient, Permits: 1, Interval: 5 * time.Second}
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, rate))
	want(b, "Go's TrySetRate", false)(l.TrySetRate(b.ctx, rratelimiter.PerMinute(100)))
	want(b, "Java's trySetRate",
		false)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 100, Interval: time.Minute}))
	want(b, "Java's getConfig", rate)(b.java.Config(b.ctx, name))
	want(b, "Go's Config", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 1, Interval: 5 * time.Second})(
		l.Config(b.ctx),
	)
}

// suiteAvailable: without a rate there are no permits, then the rate less what was taken, then all
// again.
func suiteAvailable(b *bench, name string) {
	l := b.limiter(name)
	if _, err := b.java.Available(b.ctx, name); err == nil {
		b.Fatal("Java's availablePermits succeeds without a rate")
	}
	want(b, "Java's trySetRate",
		true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 10, Interval: time.Minute}))
	want(b, "Java's availablePermits", int64(10))(b.java.Available(b.ctx, name))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 4))
	want(b, "Java's availablePermits", int64(6))(b.java.Available(b.ctx, name))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 6))
	want(b, "Java's availablePermits", int64(0))(b.java.Available(b.ctx, name))
}

// suiteChangeRate: a new rate applies at once, on both sides.
func suiteChangeRate(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 1, Interval: time.Minute}))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	want(b, "Java's tryAcquire", false)(b.java.TryAcquire(b.ctx, name, 1))
	rate := redisson.Rate{Type: redisson.Overall, Permits: 2, Interval: time.Hour}
	b.must("Java's setRate", b.java.SetRate(b.ctx, name, rate))
	want(b, "Java's getConfig", rate)(b.java.Config(b.ctx, name))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 1))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 1))
	want(b, "Java's tryAcquire", false)(b.java.TryAcquire(b.ctx, name, 1))
	b.must("Go's SetRate", l.SetRate(b.ctx, rratelimiter.Rate{Permits: 3, Interval: time.Hour}))
	want(b, "Java's availablePermits", int64(3))(b.java.Available(b.ctx, name))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 3))
}

// suiteExceeding: a request above the rate is an error, and takes nothing.
func suiteExceeding(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Minute}))
	if _, err := b.java.TryAcquire(b.ctx, name, 6); err == nil ||
		!strings.Contains(err.Error(), "exceed defined rate") {
		b.Fatalf("Java's tryAcquire of more than the rate: %v", err)
	}
	if _, err := l.TryAcquire(b.ctx, 6); !errors.Is(err, rratelimiter.ErrExceedsRate) {
		b.Fatalf("Go's TryAcquire of more than the rate: %v", err)
	}
	want(b, "Java's availablePermits", int64(5))(b.java.Available(b.ctx, name))
}

// suiteTimeout: without time to wait Java is refused at once; with enough time it gets the permits
// that Go had.
func suiteTimeout(b *bench, name string) {
	l := b.limiter(name)
	const interval = time.Second
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: interval}))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquireTimeout(b.ctx, name, 2, 0))
	taken := time.Now()
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 3))
	granted, err := b.java.TryAcquireTimeout(b.ctx, name, 5, 0)
	b.must("Java's tryAcquire", err)
	if granted && time.Since(taken) < interval {
		b.Fatal("Java got what was taken")
	}
	want(b, "Java's tryAcquire", true)(b.java.TryAcquireTimeout(b.ctx, name, 5, 20*time.Second))
	if passed := time.Since(taken); passed < interval-time.Millisecond {
		b.Fatalf("Java got what was taken %v ago", passed)
	}
}

// suiteAcquire: Java waits until the permits that Go has expire, and no shorter.
func suiteAcquire(b *bench, name string) {
	l := b.limiter(name)
	const interval = 700 * time.Millisecond
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: interval}))
	for range 2 {
		taken := time.Now()
		b.must("Go's Acquire", l.Acquire(b.ctx, 5))
		b.must("Java's acquire", b.java.Acquire(b.ctx, name, 1))
		if passed := time.Since(taken); passed < interval-time.Millisecond {
			b.Fatalf("Java got after %v what Go had taken", passed)
		}
	}
}

// suiteRemove: a limiter that Java deletes is gone for Go, and can be created again.
func suiteRemove(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's delete", false)(b.java.Delete(b.ctx, name))
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Minute}))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 5))
	want(b, "Java's delete", true)(b.java.Delete(b.ctx, name))
	if _, err := l.TryAcquire(b.ctx, 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
		b.Fatalf("Go's TryAcquire: %v", err)
	}
	b.gone(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Minute}))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 5))
}

// suiteConcurrency: threads and goroutines together never get more than the rate in any interval.
func suiteConcurrency(b *bench, name string, blocked bool) {
	l := b.limiter(name)
	const rate, interval, lasting = 40, 400 * time.Millisecond, 1500 * time.Millisecond
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: rate, Interval: interval}))
	monitor := redistest.Monitor(b, b.rdb.Options().Addr)
	var mu sync.Mutex
	var grants []window.Grant
	ctx, stop := context.WithTimeout(b.ctx, lasting)
	defer stop()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				start := time.Now()
				granted, err := true, error(nil)
				if blocked {
					err = l.Acquire(ctx, 1)
				} else {
					granted, err = l.TryAcquire(b.ctx, 1)
				}
				end := time.Now()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
				case err != nil:
					b.Error(err)
					return
				case granted:
					mu.Lock()
					grants = append(grants, window.Grant{Permits: 1, Start: start, End: end})
					mu.Unlock()
				default:
					time.Sleep(3 * time.Millisecond)
				}
			}
		})
	}
	result, err := b.java.Run(b.ctx, name, redisson.Work{Blocked: blocked, Threads: 8, For: lasting, Min: 1, Max: 1})
	wg.Wait()
	b.must("Java's run", err)
	for _, g := range result.Grants {
		grants = append(grants, window.Grant{Permits: g.Permits, Start: g.Start, End: g.End})
	}
	disorder := disorderOf(monitor.Stop(), name)
	most, _ := window.LargestAt(grants, interval-disorder, time.Millisecond) // the resolution of Java's clock
	b.Logf(
		"%d grants, %d by Java; calls up to %v out of order; at most %d in a window", len(grants), len(result.Grants),
		disorder, most,
	)
	if most > rate || len(result.Faults) > 0 || len(grants) == 0 {
		b.Fatalf("%d permits of %d in a window; %v", most, rate, result.Faults)
	}
}

// suiteSetKeepingState: when Java sets a rate, Go's grants still count if it keeps the state,
// otherwise not.
func suiteSetKeepingState(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Minute}))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 3))
	b.must(
		"Java's setRate",
		b.java.SetRate(b.ctx, name, redisson.Rate{Permits: 10, Interval: time.Minute, KeepState: true}),
	)
	want(b, "Java's availablePermits", int64(7))(b.java.Available(b.ctx, name))
	b.must(
		"Java's setRate",
		b.java.SetRate(b.ctx, name, redisson.Rate{Permits: 2, Interval: time.Minute, KeepState: true}),
	)
	want(b, "Java's availablePermits", int64(0))(b.java.Available(b.ctx, name))
	want(b, "Go's TryAcquire", false)(l.TryAcquire(b.ctx, 1))
	b.must("Java's setRate", b.java.SetRate(b.ctx, name, redisson.Rate{Permits: 2, Interval: time.Minute}))
	want(b, "Go's AvailablePermits", int64(2))(l.AvailablePermits(b.ctx))
}

// suiteUpdateRate: Java updates an existing rate, also one that Go set, and creates none.
func suiteUpdateRate(b *bench, name string) {
	l := b.limiter(name)
	rate := redisson.Rate{Permits: 8, Interval: time.Minute}
	want(b, "Java's updateRate", false)(b.java.UpdateRate(b.ctx, name, rate))
	want(b, "Go's TrySetRate", true)(l.TrySetRate(b.ctx, rratelimiter.PerMinute(5)))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 3))
	kept := rate
	kept.KeepState = true
	want(b, "Java's updateRate", true)(b.java.UpdateRate(b.ctx, name, kept))
	want(b, "Java's availablePermits", int64(5))(b.java.Available(b.ctx, name))
	want(b, "Java's updateRate", true)(b.java.UpdateRate(b.ctx, name, rate))
	want(b, "Java's availablePermits", int64(8))(b.java.Available(b.ctx, name))
	other := rate
	other.Type = redisson.PerClient
	want(b, "Java's updateRate", true)(b.java.UpdateRate(b.ctx, name, other))
	want(b, "Go's Config", rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 8, Interval: time.Minute})(
		l.Config(b.ctx),
	)
}

// suiteRelease: Java's release returns permits that Go took, but never to more than the rate.
func suiteRelease(b *bench, name string) {
	l := b.limiter(name)
	want(b, "Java's trySetRate", true)(b.java.TrySetRate(b.ctx, name, redisson.Rate{Permits: 5, Interval: time.Minute}))
	want(b, "Go's TryAcquire", true)(l.TryAcquire(b.ctx, 4))
	b.must("Java's release", b.java.Release(b.ctx, name, 2))
	want(b, "Java's availablePermits", int64(3))(b.java.Available(b.ctx, name))
	b.must("Java's release", b.java.Release(b.ctx, name, 5))
	want(b, "Java's availablePermits", int64(5))(b.java.Available(b.ctx, name))
	want(b, "Java's tryAcquire", true)(b.java.TryAcquire(b.ctx, name, 5))
	want(b, "Go's TryAcquire", false)(l.TryAcquire(b.ctx, 1))
}
