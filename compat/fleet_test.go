package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// fleet_test.go tests fleets in which an old Redisson, a recent one and this library share limiters
// on one server. Each scenario has a file of its own. Fleets on a cluster are in cluster_test.go,
// behind Sentinel in failover_test.go.

// A mixed fleet is Redisson 3.17.5, Redisson 4.7.0 and Go on one server.
type mixed struct {
	*testing.T
	server *redistest.Server
	rdb    *redis.Client
	old    *redisson.Process // 3.17.5
	recent *redisson.Process // 4.7.0
}

// in returns the same fleet for a subtest.
func (f *mixed) in(t *testing.T) *mixed {
	below := *f
	below.T = t
	return &below
}

// beside returns a bench with one of its Redissons and Go, as the checks of the matrix use it.
func (f *mixed) beside(java *redisson.Process) *bench {
	return &bench{T: f.T, ctx: f.Context(), rdb: f.rdb, java: java}
}

// limiter returns a Go limiter with a call timeout that suits a busy machine.
func (f *mixed) limiter(name string, opts ...rratelimiter.LimiterOption) *rratelimiter.Limiter {
	return rratelimiter.NewClient(f.rdb, rratelimiter.WithCallTimeout(patience)).RateLimiter(name, opts...)
}

// patience bounds operations that take long only on a busy machine.
const patience = 20 * time.Second

// TestFleet runs evictions first, because they may evict any key of the server that has a TTL.
func TestFleet(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	processes := javas(t, server, "3.17.5", "4.7.0")
	fleet := &mixed{T: t, server: server, rdb: server.Client(), old: processes[0], recent: processes[1]}
	for _, story := range []struct {
		name string
		tell func(f *mixed)
	}{
		{"eviction", evictions},
		{"keep-alive", keptAlive},
		{"new rate", newRates},
		{"surplus", surpluses},
		{"Java of the pages", javaOfThePages},
		{"upgrades", upgrades},
	} {
		t.Run(story.name, func(t *testing.T) { story.tell(fleet.in(t)) })
	}
}

// A member of a fleet acquires for a while, and reports each grant and each error. acquire returns
// whether it can be called again.
type member struct {
	name    string
	acquire func(work redisson.Work, report func(redisson.Grant, error)) bool
}

// javaMember returns a member that runs threads in a Redisson, on the named limiter.
func javaMember(t *testing.T, java *redisson.Process, name string) member {
	return member{java.Version(), func(work redisson.Work, report func(redisson.Grant, error)) bool {
		work.OnGrant = func(grant redisson.Grant) { report(grant, nil) }
		result, err := java.Run(t.Context(), name, work)
		if err != nil {
			if t.Context().Err() == nil {
				t.Errorf("Java %s: %v", java.Version(), err)
			}
			return false
		}
		for _, fault := range result.Faults {
			report(redisson.Grant{}, fault)
		}
		return true
	}}
}

// goMember returns a member that runs goroutines in this process, twice as many as a Java member
// has threads.
func goMember(t *testing.T, l *rratelimiter.Limiter) member {
	return member{"Go", func(work redisson.Work, report func(redisson.Grant, error)) bool {
		work.Threads *= 2
		acquireWhile(l, work, report)
		return t.Context().Err() == nil
	}}
}

// A journal collects the grants and errors of the members of a fleet, by member name. mu guards
// log, grants and faults.
type journal struct {
	spell time.Duration // how long a member works at a time; 500 ms when 0

	mu     sync.Mutex
	log    []window.Grant
	grants map[string][]redisson.Grant
	faults map[string][]error
}

func newJournal() *journal {
	return &journal{grants: map[string][]redisson.Grant{}, faults: map[string][]error{}}
}

// work lets each member acquire in two ways at once, blocked and polling, in short runs until
// enough returns true. It fails the test after a limit that suits a busy machine.
func (j *journal) work(t *testing.T, enough func() bool, members ...member) {
	t.Helper()
	const limit = time.Minute
	work := redisson.Work{
		Threads: 2,
		For:     cmp.Or(j.spell, 500*time.Millisecond),
		Min:     1,
		Max:     3,
		Pause:   5 * time.Millisecond,
		Grace:   limit,
	}
	deadline := time.Now().Add(limit)
	var wg sync.WaitGroup
	for _, m := range members {
		for _, blocked := range []bool{true, false} {
			own := work
			own.Blocked = blocked
			wg.Go(func() {
				for goesOn := true; goesOn && !enough() && time.Now().Before(deadline); {
					goesOn = m.acquire(own, func(g redisson.Grant, err error) { j.note(m.name, g, err) })
				}
			})
		}
	}
	wg.Wait()
	if !enough() && t.Context().Err() == nil {
		t.Errorf("not enough within %v: %s", limit, j.summary(members))
	}
}

func (j *journal) note(member string, g redisson.Grant, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.faults[member] = append(j.faults[member], err)
		return
	}
	j.grants[member] = append(j.grants[member], g)
	j.log = append(j.log, window.Grant{Permits: g.Permits, Start: g.Start, End: g.End})
}

// allGot reports whether each member was granted at least so many permits after a time.
func (j *journal) allGot(members []member, least int64, after time.Time) bool {
	return !slices.ContainsFunc(members, func(m member) bool { return j.permits(m.name, after) < least })
}

// sum returns how many permits the members were granted after a time.
func (j *journal) sum(members []member, after time.Time) (sum int64) {
	for _, m := range members {
		sum += j.permits(m.name, after)
	}
	return sum
}

func (j *journal) summary(members []member) (text string) {
	for _, m := range members {
		text += fmt.Sprintf("%s %d permits, %s; ", m.name, j.permits(m.name, time.Time{}), kinds(j.faults[m.name]))
	}
	return text
}

// permits returns how many permits a member was granted by calls that returned after a time.
func (j *journal) permits(member string, after time.Time) (sum int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range j.grants[member] {
		if g.End.After(after) {
			sum += g.Permits
		}
	}
	return sum
}

// kinds counts errors by text, without the parts that differ between calls.
func kinds(faults []error) string {
	counts := map[string]int{}
	for _, fault := range faults {
		text, _, _ := strings.Cut(fault.Error(), " EVAL")
		counts[fmt.Sprintf("%.160s", text)]++
	}
	return fmt.Sprint(len(faults), " faults ", counts)
}
