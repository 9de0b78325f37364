package faults

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// fallback_test.go takes Redis away from limiters that then decide in the process.

// An outages is an observer that keeps what a process granted by itself.
type outages struct {
	mu     sync.Mutex
	grants map[string][]window.Grant
	last   time.Time
}

func (o *outages) Flight(f rratelimiter.FlightInfo) {
	if !f.Fallback {
		return
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = now
	if f.Permits > 0 {
		o.grants[f.Limiter] = append(o.grants[f.Limiter], window.Grant{Permits: f.Permits, Start: now.Add(-f.Latency), End: now})
	}
}

// TestFallback: a Redis that is away costs callers one call's time at most, and none an error; the process keeps to its part
// of the rate, and Redis decides again soon after it is back.
func TestFallback(t *testing.T) {
	t.Run("hangs", func(t *testing.T) {
		fallBack(t, func(s *redistest.Server) (back func()) {
			s.Pause()
			return s.Resume
		})
	})
	t.Run("is dead", func(t *testing.T) {
		fallBack(t, func(s *redistest.Server) (back func()) {
			s.Kill()
			return s.Restart
		})
	})
}

func fallBack(t *testing.T, takeAway func(*redistest.Server) (back func())) {
	const (
		limiters = 20
		every    = time.Millisecond
		timeout  = 400 * time.Millisecond
		away     = 2 * time.Second
		part     = 10
	)
	rate := rratelimiter.Rate{Permits: 2 * part, Interval: 500 * time.Millisecond}
	server := redistest.Real(t)
	o := &outages{grants: map[string][]window.Grant{}}
	client := rratelimiter.NewClient(server.Client(func(o *redis.Options) { o.DialTimeout = timeout }),
		rratelimiter.WithCallTimeout(timeout), rratelimiter.WithObserver(o),
		rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rate), rratelimiter.WithFallback(0.5)))
	all := make([]*rratelimiter.Limiter, limiters)
	for i := range all {
		all[i] = client.RateLimiter(fmt.Sprint("fallback:", i))
	}
	once := func(i int) call {
		return ask(1, func() (bool, error) { return all[i%limiters].TryAcquire(t.Context(), 1) })
	}
	before := arrive(every, lasting(away/4), once)
	atRest(t)
	goroutines := runtime.NumGoroutine()

	began := time.Now()
	back := takeAway(server)
	during := arrive(every, lasting(away), once)
	back()
	returned := time.Now()
	after := arrive(every, lasting(away), once)
	for _, c := range append(append(before, during...), after...).where(failed) {
		t.Fatalf("a caller's error is %v", c.err)
	}
	known := began.Add(2 * timeout)
	later := during.where(func(c call) bool { return c.Start.After(known) })
	t.Logf("before: p99 %v; away: the longest %v, once it was known p99 %v of %d; last decision in the process %v after its return",
		before.percentile(99), during.percentile(100), later.percentile(99), len(later), o.last.Sub(returned))
	if longest, limit := during.percentile(100), timeout+quick(before, during); longest > limit {
		t.Errorf("a caller waited %v, not %v", longest, limit)
	}
	if p99, limit := later.percentile(99), quick(before, later)/2; p99 > limit {
		t.Errorf("once it was known that Redis is away, 99 of 100 callers waited up to %v, not %v", p99, limit)
	}
	if late := o.last.Sub(returned); late > away-200*time.Millisecond {
		t.Errorf("%v after its return Redis did not decide again", late)
	}
	granted := int64(0)
	for _, l := range all {
		most, _ := window.Largest(o.grants[l.Name()], rate.Interval)
		if granted += most; most > part {
			t.Errorf("the process granted %d permits in a window, of %d", most, part)
		}
	}
	if granted < limiters*part/2 {
		t.Errorf("in the fullest windows the process granted %d permits, of %d", granted, limiters*part)
	}
	atRest(t)
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
}
