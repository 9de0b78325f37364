package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// node_test.go hangs one node of a cluster: its connections stay open, and it never replies.

// onNodes returns limiters of a cluster that have granted a permit each: at least so many on a
// node, and at least twice as many on the others.
func onNodes(
	t *testing.T, client *rratelimiter.Client, rdb *redis.ClusterClient, on *redistest.Server, each int,
) (there, elsewhere []*rratelimiter.Limiter) {
	t.Helper()
	for i := 0; len(there) < each || len(elsewhere) < 2*each; i++ {
		name := fmt.Sprint("node:", i)
		node, err := rdb.MasterForKey(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		l := client.RateLimiter(name, rratelimiter.WithRate(ample))
		if node.Options().Addr == on.Addr {
			there = append(there, l)
		} else {
			elsewhere = append(elsewhere, l)
		}
		if err := l.Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	return there, elsewhere
}

func TestHungNode(t *testing.T) { inRounds(t, hangNode) }

func hangNode(t *testing.T, r *round) {
	const (
		every    = time.Millisecond // a call to the healthy nodes
		callers  = 24               // on the hung one
		pause    = 2 * time.Millisecond
		hang     = 3 * time.Second
		deadline = 150 * time.Millisecond // of every second caller on the hung node
		timeout  = time.Second            // of a call, by default
		each     = 40                     // limiters on a node
	)
	nodes := redistest.Cluster(t, 3)
	rdb := nodes.ClusterClient()
	client := rratelimiter.NewClient(rdb)
	hung := nodes.Servers[1]
	sick, well := onNodes(t, client, rdb, hung, each)
	onWell := func(i int) call {
		return ask(1, func() (bool, error) { return well[i%len(well)].TryAcquire(t.Context(), 1) })
	}
	onSick := func(ctx context.Context, caller int) call {
		return ask(1, func() (bool, error) { return true, sick[caller%len(sick)].Acquire(ctx, 1) })
	}
	before := arrive(every, lasting(hang/5), onWell)
	atRest(t)
	goroutines := runtime.NumGoroutine()

	hung.Pause()
	over := lasting(hang)
	var others, patient, hasty calls
	var wg sync.WaitGroup
	wg.Go(func() { others = arrive(every, over, onWell) })
	wg.Go(func() {
		patient = load(callers/2, 1, pause, over, func(caller int) call { return onSick(t.Context(), caller) })
	})
	wg.Go(func() {
		hasty = load(callers/2, 1, pause, over, func(caller int) call {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			return onSick(ctx, caller+callers/2)
		})
	})
	wg.Wait()
	hung.Resume()

	t.Logf(
		"healthy nodes: p99 %v of %d calls before, %v of %d meanwhile; hung node: median %v of %d calls, with a deadline of %v median %v, p99 %v of %d",
		before.percentile(99), len(before), others.percentile(99), len(others), patient.percentile(50), len(patient),
		deadline, hasty.percentile(50), hasty.percentile(99), len(hasty),
	)
	r.served(t, "a call to a healthy node", others)
	r.atMost("99 of 100 calls to healthy nodes", others.percentile(99), quick(before, others))
	for _, c := range patient {
		if !errors.Is(c.err, os.ErrDeadlineExceeded) { // with or without ErrOutcomeUnknown: it may not have been sent
			t.Errorf("on the hung node the error is %v", c.err)
		}
	}
	r.atMost("half of the calls to the hung node", patient.percentile(50), 2*timeout)
	for _, c := range hasty {
		if !errors.Is(c.err, context.DeadlineExceeded) && !errors.Is(c.err, os.ErrDeadlineExceeded) {
			t.Errorf("on the hung node the error of a caller with a deadline is %v", c.err)
		}
	}
	r.atMost(
		"9 of 10 callers of the hung node with a short deadline", hasty.percentile(90), deadline+quick(before, others),
	)

	// Afterwards the node works again, and each grant is recorded once.
	eventually(t, "the node that hung grants again", func() bool {
		for _, l := range sick {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			c := ask(1, func() (bool, error) { return true, l.Acquire(ctx, 1) })
			cancel()
			if patient = append(patient, c); c.err != nil {
				return false
			}
		}
		return true
	})
	after := load(callers, 10, pause, lasting(0), func(caller int) call { return onSick(t.Context(), caller) })
	for _, c := range after.where(failed) {
		t.Errorf("after the node came back: %v", c.err)
	}
	atRest(t)
	if recorded, given := used(t, well...), int64(len(well))+before.permits()+others.permits(); recorded != given {
		t.Errorf("on the healthy nodes %d permits are recorded, %d were granted", recorded, given)
	}
	doubtful := append(patient, hasty...).where(isUnknown).permits()
	given := int64(len(sick)) + append(patient, after...).where(answered).permits()
	if recorded := used(t, sick...); recorded < given || recorded > given+doubtful {
		t.Errorf(
			"on the node that hung %d permits are recorded, %d were granted and %d of unknown outcome", recorded, given,
			doubtful,
		)
	}
	eventually(t, "all goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines+5 })
	r.proves(t, row{
		section: slow, fault: "one node of a cluster hangs",
		sees: "on limiters of this node: `ErrOutcomeUnknown` after the call timeout, or the error of the caller's " +
			"context; on all other limiters: nothing",
		within: "on the other limiters 99 of 100 calls within", limit: 600 * time.Millisecond,
		late:  &lateness{others.lateness(99)},
		after: "granted ≤ recorded ≤ granted + permits of callers with `ErrOutcomeUnknown`; all other limiters exact",
	}, others.percentile(99))
}
