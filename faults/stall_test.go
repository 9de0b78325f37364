package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// stall_test.go stalls one connection while the others are well.

// TestStalledConnection: only who is in the call that stalls waits, and that no longer than a call may take.
func TestStalledConnection(t *testing.T) {
	for _, limiters := range []int{1, 300} {
		for _, held := range []string{requests, replies} {
			t.Run(fmt.Sprintf("%d limiters, %s held", limiters, held), func(t *testing.T) {
				stallConnection(t, limiters, held)
			})
		}
	}
}

func stallConnection(t *testing.T, limiters int, held string) {
	const (
		callers = 32
		often   = 200 // calls of each while the connection stalls, so that one slow call of each is less than 1 %
		pause   = 2 * time.Millisecond
		stall   = 1500 * time.Millisecond // at least; longer than a call may take
	)
	server := redistest.Real(t)
	p := newProxy(t, server.Addr)
	client := rratelimiter.NewClient(server.Client(func(o *redis.Options) {
		o.Dialer = p.dialOnce()
		o.ReadTimeout = time.Minute // the redis client does not give the connection up before it is well again
	}))
	hot := make([]*rratelimiter.Limiter, limiters)
	for i := range hot {
		hot[i] = client.RateLimiter(fmt.Sprint("stall:", i), rratelimiter.WithRate(ample))
		if ok, err := hot[i].TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	next := make([]int, callers)
	once := func(caller int) call {
		next[caller]++
		return ask(1, func() (bool, error) {
			return hot[(caller*limiters/callers+next[caller])%limiters].TryAcquire(t.Context(), 1)
		})
	}

	before := load(callers, often/4, pause, lasting(0), once)
	var release func()
	first := next[0]
	during := load(callers, often, pause, lasting(stall), func(caller int) call {
		if caller == 0 && next[0] == first+10 { // in the midst of the others' calls
			release = p.hold(held)
		}
		return once(caller)
	})
	release()
	atRest(t)

	stuck, others := during.where(failed), during.where(answered)
	t.Logf("before: p99 %v of %d calls; while it stalls: p99 %v of all %d calls, %v of all but the %d stuck ones",
		before.percentile(99), len(before), during.percentile(99), len(during), others.percentile(99), len(stuck))
	if len(stuck) == 0 || len(stuck) > callers {
		t.Errorf("%d calls stuck, not 1 to %d: one of each caller, when the connection stalls", len(stuck), callers)
	}
	for _, c := range stuck {
		if !c.Unknown {
			t.Errorf("a stuck call: %v", c.err)
		}
	}
	if p99, limit := during.percentile(99), quick(before); p99 > limit {
		t.Errorf("99 of 100 calls took up to %v, not %v", p99, limit)
	}
	if p99, limit := others.percentile(99), quick(before); p99 > limit {
		t.Errorf("99 of 100 calls that were not stuck took up to %v, not %v", p99, limit)
	}
	// Nothing was lost on the way: what was asked in vain was served once the connection was well again.
	all := append(before, during...)
	given, doubtful := int64(limiters)+all.where(isGranted).permits(), all.where(isUnknown).permits()
	if recorded := used(t, hot...); recorded != given+doubtful {
		t.Errorf("%d permits recorded, %d granted and %d in doubt", recorded, given, doubtful)
	}
}
