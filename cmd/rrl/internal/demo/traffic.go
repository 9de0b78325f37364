package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/redisson"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// traffic.go has the callers of a demo: workers that block in Acquire, pollers that TryAcquire, and
// the log of their grants; with Java, also the results of the threads of a JVM. It does not depend
// on the views.

// A caller is the current state of a worker or a poller.
type caller struct {
	name    string
	blocks  bool
	granted int64 // permits
	denied  int64 // requests
	longest time.Duration
	state   state
	since   time.Time
}

type state int

const (
	idle state = iota
	asking
	got
	refused
)

// A Load describes the requests of the callers.
type Load struct {
	Workers, Pollers int
	Permits          int64 // permits of each request
	// multiple of the rate that the workers would use without a limit; 0: no pauses
	Demand float64
	rate   rratelimiter.Rate
	lease  time.Duration // 0: none
	java   bool          // as many threads in a JVM make the same requests
}

// pauses returns the mean times between two requests of a worker, and of a poller.
func (l Load) pauses() (work, poll time.Duration) {
	const longest, least = 500 * time.Millisecond, time.Millisecond
	return l.pause(l.Workers, l.Demand, longest), max(l.pause(l.Pollers, 0.3, longest/2), least)
}

// pause returns the mean time between two requests of one of n callers, so that together they
// request times the rate. It is at most longest.
func (l Load) pause(n int, times float64, longest time.Duration) time.Duration {
	if times <= 0 {
		return 0
	}
	mean := float64(n) * float64(l.Permits) * float64(l.rate.Interval) / (float64(l.rate.Permits) * times)
	return min(time.Duration(mean), longest)
}

// A side has the results of all callers in Go, or of all threads in Java.
type side struct {
	granted int64 // permits
	polled  int64 // of them, to pollers
	denied  int64 // requests
	longest time.Duration
}

// add adds the result of a request.
func (s *side) add(permits int64, blocks, granted bool, took time.Duration) {
	switch {
	case !granted:
		s.denied++
	case blocks:
		s.granted += permits
		s.longest = max(s.longest, took)
	default:
		s.granted += permits
		s.polled += permits
	}
}

// A traffic has the callers, and their log.
type traffic struct {
	load    Load
	checker *window.Checker
	stop    context.CancelCauseFunc

	mu      sync.Mutex
	callers []caller
	side    // of Go
	java    side
	unknown int64 // permits of requests that returned ErrOutcomeUnknown
	calls   int64 // to Redis
	// permits that calls took, including those of leases; a call that is in flight is not counted
	// yet
	taken    int64
	ahead    int64 // permits taken ahead, for leases
	returned int64 // of them, given back
	repaired string
}

func newTraffic(l Load, stop context.CancelCauseFunc) *traffic {
	t := &traffic{load: l, checker: window.NewChecker(l.rate.Interval), stop: stop}
	for i := range l.Workers {
		t.callers = append(t.callers, caller{name: fmt.Sprintf("worker %d", i+1), blocks: true})
	}
	for i := range l.Pollers {
		t.callers = append(t.callers, caller{name: fmt.Sprintf("poller %d", i+1)})
	}
	return t
}

// Call counts calls; the callers record their results.
func (t *traffic) Call(info rratelimiter.CallInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls += int64(info.Attempts)
	t.taken += info.Permits + info.Leased - info.Returned
	t.ahead += info.Leased
	t.returned += info.Returned
	if info.Repaired != "" {
		t.repaired = info.Repaired
	}
}

// run runs all callers until ctx ends, and returns when the last one has stopped.
func (t *traffic) run(ctx context.Context, workers, pollers *rratelimiter.Limiter) {
	work, poll := t.load.pauses()
	var all sync.WaitGroup
	for i := range t.callers {
		all.Go(func() {
			if t.callers[i].blocks {
				t.repeat(ctx, i, work, func() (bool, error) {
					err := workers.Acquire(ctx, t.load.Permits)
					return err == nil, err
				})
			} else {
				t.repeat(ctx, i, poll, func() (bool, error) { return pollers.TryAcquire(ctx, t.load.Permits) })
			}
		})
	}
	all.Wait()
}

// repeat is the loop of one caller.
func (t *traffic) repeat(ctx context.Context, i int, pause time.Duration, ask func() (bool, error)) {
	rest(ctx, min(pause, 150*time.Millisecond), 0) // so that callers are not synchronized
	for ctx.Err() == nil {
		start := time.Now()
		t.note(i, asking, start)
		granted, err := ask()
		t.answered(i, start, time.Now(), granted, err)
		if err != nil {
			if ctx.Err() == nil {
				t.stop(err)
			}
			return
		}
		rest(ctx, pause, 0.5)
	}
}

// rest sleeps for a random time with a mean: at least a part of the mean, at most as much above it.
func rest(ctx context.Context, mean time.Duration, part float64) {
	d := time.Duration(float64(mean) * (part + rand.Float64()*(2-2*part)))
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (t *traffic) note(i int, s state, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.callers[i].state, t.callers[i].since = s, at
}

// answered logs the end of a request. A grant was made between start and end; for a waiting caller
// mostly close to the end, but this cannot be measured outside the library.
func (t *traffic) answered(i int, start, end time.Time, granted bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &t.callers[i]
	c.since = end
	switch {
	case granted:
		t.checker.Add(window.Grant{Permits: t.load.Permits, Start: start, End: end})
		c.state = got
		c.granted += t.load.Permits
		if c.blocks {
			c.longest = max(c.longest, end.Sub(start))
		}
		t.add(t.load.Permits, c.blocks, true, end.Sub(start))
	case err == nil:
		c.state = refused
		c.denied++
		t.add(t.load.Permits, c.blocks, false, 0)
	default:
		c.state = idle
		if errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.unknown += t.load.Permits
		}
	}
}

// answeredInJava logs the end of a request of a thread in Java.
func (t *traffic) answeredInJava(r redisson.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.java.add(t.load.Permits, r.Worker, r.Granted, r.End.Sub(r.Start))
	if r.Granted {
		t.checker.Add(window.Grant{Permits: t.load.Permits, Start: r.Start, End: r.End})
	}
}

// own returns how many permits the callers took: at least, and at most. The two differ if callers
// stopped while their call was in flight. Each thread in Java may have been granted one request
// more than it has reported.
func (t *traffic) own() (least, most int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	least, most = t.inGo()
	if t.load.java {
		least += t.java.granted
		most += t.java.granted + int64(t.load.Workers+t.load.Pollers)*t.load.Permits
	}
	return least, most
}

// inGo is own without Java. t.mu is held.
func (t *traffic) inGo() (least, most int64) {
	most = t.granted + t.unknown
	if t.load.lease > 0 {
		most = max(most, t.taken) // some of what was taken ahead is unused
	}
	return t.granted, most
}
