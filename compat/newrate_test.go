package compat

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// newrate_test.go: a Redisson raises a rate from 10 to 100 while all members of the fleet take
// permits. Go sees the new rate at its next call; a blocked caller shortens its sleep to poll for
// it. A blocked thread of Redisson sleeps for the time that it got under the old rate.

const (
	lowRate  = 10
	highRate = 100
)

// A raise is a call by which Redisson sets a higher rate.
type raise struct {
	name  string
	keeps bool // keeps the state: earlier grants still count
	set   func(ctx context.Context, name string, interval time.Duration) error
}

func newRates(f *mixed) {
	high := func(interval time.Duration) redisson.Rate {
		return redisson.Rate{Permits: highRate, Interval: interval}
	}
	for _, r := range []raise{
		{"3.17.5 setRate", false, func(ctx context.Context, name string, interval time.Duration) error {
			return f.old.SetRate(ctx, name, high(interval))
		}},
		{"4.7.0 setRate", false, func(ctx context.Context, name string, interval time.Duration) error {
			return f.recent.SetRate(ctx, name, high(interval))
		}},
		{
			"4.7.0 updateRate that keeps the state",
			true,
			func(ctx context.Context, name string, interval time.Duration) error {
				kept := high(interval)
				kept.KeepState = true
				updated, err := f.recent.UpdateRate(ctx, name, kept)
				if err == nil && !updated {
					err = errors.New("updateRate found no limiter")
				}
				return err
			},
		},
	} {
		f.Run(r.name, func(t *testing.T) {
			t.Parallel()
			t.Run("under load", func(t *testing.T) {
				t.Parallel()
				underLoad(f.in(t), r)
			})
			t.Run("in a long sleep", func(t *testing.T) {
				t.Parallel()
				inALongSleep(f.in(t), r)
			})
		})
	}
}

// underLoad: each member gets a share of the new rate, and the members together use up the rate
// without exceeding it.
func underLoad(f *mixed, r raise) {
	limiter := f.limiter("raised:" + r.name)
	b := f.beside(f.old)
	b.must("Go's SetRate", limiter.SetRate(b.ctx, rratelimiter.PerSecond(lowRate)))
	raises := func(c redistest.Command) bool {
		return c.Name() == "HSET" && len(c.Args) > 3 && c.Args[1] == limiter.Name() && c.Args[2] == "rate" &&
			c.Args[3] == strconv.Itoa(highRate)
	}
	monitor := redistest.Monitor(f, f.server.Addr, func(c redistest.Command) bool {
		return len(c.Args) > 3 && (c.Args[1] == permitsKey(limiter.Name()) || c.Args[3] == limiter.Name()) || raises(c)
	})
	members := []member{
		javaMember(f.T, f.old, limiter.Name()), javaMember(f.T, f.recent, limiter.Name()), goMember(f.T, limiter),
	}
	j := newJournal()
	// The old rate would not grant this many permits within the time.
	const each, all, within = 20, 300, 20 * time.Second
	var since atomic.Pointer[time.Time]
	var load sync.WaitGroup
	load.Go(func() {
		j.work(f.T, func() bool {
			return since.Load() != nil && j.allGot(members, each, *since.Load()) && j.sum(members, *since.Load()) >= all
		}, members...)
	})
	f.Cleanup(load.Wait)
	b.eventually("the old rate is used", patience, func() bool { return j.sum(members, time.Time{}) >= lowRate })
	b.must(r.name, r.set(b.ctx, limiter.Name(), time.Second))
	raised := time.Now()
	since.Store(&raised)
	load.Wait()
	over := time.Now()
	commands := monitor.Stop()
	want(b, "Go's Config", rratelimiter.PerSecond(highRate))(limiter.Config(b.ctx))

	// A client dates its call before the server executes it, so which rate granted a record shows
	// in the order of the commands, not in the record's score.
	at := slices.IndexFunc(commands, raises)
	if at < 0 {
		f.Fatalf("the server executed no HSET of the new rate; %d commands were seen", len(commands))
	}
	scores := scoresOf(f.T, commands, permitsKey(limiter.Name()), over)
	before := len(scoresOf(f.T, commands[:at], permitsKey(limiter.Name()), over))
	lower, higher := scores[:before], scores[before:]
	var used int64
	for _, s := range higher {
		used += s.Permits
	}
	interval := time.Second - disorderOf(commands, limiter.Name())
	largest := func(scores []window.Score) int64 {
		permits, _ := window.LargestScores(scores, interval)
		return permits
	}
	most := int64(highRate + lowRate) // earlier grants no longer count
	if r.keeps {
		most = highRate
	}
	f.Logf(
		"windows hold %d of %d permits before, %d of %d after, %d across; in %v %.1f %% of what the new rate allows is used: %s",
		largest(lower), lowRate, largest(higher), highRate, largest(scores), over.Sub(raised),
		100*float64(used)/highRate/over.Sub(raised).Seconds(), j.summary(members),
	)
	if largest(lower) > lowRate || largest(higher) > highRate || largest(scores) > most {
		f.Errorf("a window across holds up to %d permits, want %d", largest(scores), most)
	}
	if over.Sub(raised) > within {
		f.Errorf("the new rate took %v to grant %d permits", over.Sub(raised), all)
	}
	for _, m := range members {
		if len(j.faults[m.name]) > 0 {
			f.Errorf("%s: %s", m.name, kinds(j.faults[m.name]))
		}
	}
}

// inALongSleep: a blocked Go caller is served within the time that it has waited before the new
// rate, plus one second. A blocked thread of Redisson sleeps on.
func inALongSleep(f *mixed, r raise) {
	const interval, callers = time.Minute, 5
	var core *dispatch.Client
	client := rratelimiter.NewClient(showing(&core, f.rdb), rratelimiter.WithCallTimeout(patience))
	limiter := client.RateLimiter("asleep:" + r.name)
	b := f.beside(f.old)
	b.must("Go's SetRate", limiter.SetRate(b.ctx, rratelimiter.PerMinute(lowRate)))
	want(b, "Go's TryAcquire", true)(limiter.TryAcquire(b.ctx, lowRate))

	// Redisson's threads block first: each has called once then.
	var asked atomic.Int64
	redistest.Monitor(f, f.server.Addr, func(c redistest.Command) bool {
		if !c.Lua && len(c.Args) > 3 && c.Args[3] == limiter.Name() {
			asked.Add(1)
		}
		return false
	})
	ctx, cancel := context.WithCancel(b.ctx)
	asleep := make(chan error, 2)
	for _, java := range []*redisson.Process{f.old, f.recent} {
		go func() { asleep <- java.Acquire(ctx, limiter.Name(), 1) }()
	}
	defer func() {
		cancel()
		for range cap(asleep) {
			<-asleep
		}
	}()
	b.eventually("both Redissons have called", patience, func() bool { return asked.Load() >= 2 })
	begun := time.Now()
	served := make(chan error)
	for range callers {
		go func() { served <- limiter.Acquire(ctx, 1) }()
	}
	b.eventually("all callers wait", patience, func() bool {
		calls := core.Look(limiter.Name())
		return calls.Waiting == callers && calls.Next > 0
	})
	b.must(r.name, r.set(b.ctx, limiter.Name(), interval))
	raised := time.Now()
	for range callers {
		b.must("Go's Acquire", <-served)
	}
	took, limit := time.Since(raised), raised.Sub(begun)+time.Second
	f.Logf("callers that had waited %v were served %v after the new rate", raised.Sub(begun), took)
	if took > limit+5*time.Second { // tolerance for a busy machine
		f.Errorf("callers of Go were served %v after the new rate, not within about %v", took, limit)
	}
	select {
	case err := <-asleep:
		asleep <- err
		f.Errorf("a blocked thread of Redisson came back: %v", err)
	default:
	}
}
