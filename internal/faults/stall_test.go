package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// stall_test.go stalls one connection while the others work.

// TestStalledConnection: only callers in the call that stalls wait, at most for the call timeout.
func TestStalledConnection(t *testing.T) {
	var w worst
	for _, limiters := range []int{1, 300} {
		for _, held := range []string{requests, replies} {
			t.Run(fmt.Sprintf("%d limiters, %s held", limiters, held), func(t *testing.T) {
				inRounds(t, func(t *testing.T, r *round) {
					took, own := stallConnection(t, r, limiters, held)
					w.note(r, took, own)
				})
			})
		}
	}
	row{
		section: slow, fault: "one connection stalls, the others are well",
		sees:   "a caller alone on a near server: nothing, its call is repeated on another connection after 20 ms. Callers that share the stalled call: `ErrOutcomeUnknown` after the call timeout. All other callers: nothing",
		within: "99 of 100 of all other calls within", limit: 600 * time.Millisecond, late: &lateness{w.late},
		after: "the stalled call is recorded when the connection works again, unless a repeated one was",
	}.proves(t, w.took)
}

// stallConnection returns how long 99 of 100 calls took that did not stall, and the machine's own
// lateness.
func stallConnection(t *testing.T, r *round, limiters int, held string) (took, late time.Duration) {
	const (
		every = time.Millisecond        // a call
		stall = 1500 * time.Millisecond // longer than a call may take
	)
	server := redistest.Real(t)
	p := newProxy(t, server.Addr)
	client := rratelimiter.NewClient(server.Client(func(o *redis.Options) {
		o.Dialer = p.dialOnce()
		// so that each connection has its turn, however many a busy machine has opened
		o.PoolFIFO = true
		o.ReadTimeout = time.Minute // the redis client does not give up the connection during the stall
	}))
	hot := make([]*rratelimiter.Limiter, limiters)
	for i := range hot {
		hot[i] = client.RateLimiter(fmt.Sprint("stall:", i), rratelimiter.WithRate(ample))
		if ok, err := hot[i].TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	once := func(i int) call {
		return ask(1, func() (bool, error) { return hot[i%limiters].TryAcquire(t.Context(), 1) })
	}

	before := arrive(every, lasting(stall/3), once)
	var release func()
	during := arrive(every, lasting(stall), func(i int) call {
		if i == 10 { // in the midst of others
			release = p.hold(held)
		}
		return once(i)
	})
	release()
	atRest(t)

	stuck, others := during.where(failed), during.where(answered)
	t.Logf("before: p99 %v of %d calls; while it stalls: p99 %v of all %d calls, %v of all but the %d stuck ones",
		before.percentile(99), len(before), during.percentile(99), len(during), others.percentile(99), len(stuck))
	// Callers are stuck that call together with, or before, the one call that stalls: on a quiet
	// machine a few, or none if a goroutine made that call itself.
	if most := max(len(during)/100, 4*int(before.percentile(99)/every)); len(stuck) > most {
		t.Errorf("%d calls stuck, more than %d", len(stuck), most)
	}
	for _, c := range stuck {
		if !c.Unknown {
			t.Errorf("a stuck call: %v", c.err)
		}
	}
	r.atMost("99 of 100 calls that were not stuck", others.percentile(99), quick(before, during))
	// Nothing was lost: requests without a reply were executed once the connection worked again.
	all := append(before, during...)
	given, doubtful := int64(limiters)+all.where(isGranted).permits(), all.where(isUnknown).permits()
	if recorded := used(t, hot...); recorded != given+doubtful {
		t.Errorf("%d permits recorded, %d granted and %d of unknown outcome", recorded, given, doubtful)
	}
	return others.percentile(99), during.lateness(99)
}
