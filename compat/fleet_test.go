package compat

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// fleet_test.go has what happens to fleets in which an old Redisson, a recent one and this library share limiters on one
// server: each story in a file of its own. Fleets on a cluster are in cluster_test.go, behind Sentinel in failover_test.go.

// A mixed fleet is Redisson 3.17.5, Redisson 4.7.0 and Go on one server.
type mixed struct {
	*testing.T
	server *redistest.Server
	rdb    *redis.Client
	old    *redisson.Process // 3.17.5
	recent *redisson.Process // 4.7.0
}

// in is the same fleet in a test below.
func (f *mixed) in(t *testing.T) *mixed {
	below := *f
	below.T = t
	return &below
}

// beside is one of its Redissons and Go, as the checks of the matrix have them.
func (f *mixed) beside(java *redisson.Process) *bench {
	return &bench{T: f.T, ctx: f.Context(), rdb: f.rdb, java: java}
}

// limiter is Go's handle on a limiter.
func (f *mixed) limiter(name string, opts ...rratelimiter.LimiterOption) *rratelimiter.Limiter {
	return rratelimiter.NewClient(f.rdb).RateLimiter(name, opts...)
}

// TestFleet: evictions come first, since they may take any key of the server that has a life time.
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
	} {
		t.Run(story.name, func(t *testing.T) { story.tell(fleet.in(t)) })
	}
}

// A member of a fleet acquires for a while, and reports each grant and each error.
type member struct {
	name    string
	acquire func(work redisson.Work, report func(redisson.Grant, error))
}

// javaMember is threads in a Redisson, on the limiter with a name.
func javaMember(t *testing.T, java *redisson.Process, name string) member {
	return member{java.Version(), func(work redisson.Work, report func(redisson.Grant, error)) {
		result, err := java.Run(t.Context(), name, work)
		if err != nil {
			t.Errorf("Java %s: %v", java.Version(), err)
			return
		}
		for _, grant := range result.Grants {
			report(grant, nil)
		}
		for _, fault := range result.Faults {
			report(redisson.Grant{}, fault)
		}
	}}
}

// goMember is goroutines in this process.
func goMember(l *rratelimiter.Limiter) member {
	return member{"Go", func(work redisson.Work, report func(redisson.Grant, error)) { acquireWhile(l, work, report) }}
}

// A journal is what the members of a fleet got, and what failed, by their names.
type journal struct {
	mu     sync.Mutex
	log    []window.Grant
	grants map[string][]redisson.Grant
	faults map[string][]error
}

func newJournal() *journal {
	return &journal{grants: map[string][]redisson.Grant{}, faults: map[string][]error{}}
}

// work lets each member acquire in two ways at once, blocked and polling, and returns when all are done.
func (j *journal) work(work redisson.Work, members ...member) {
	work.Pause, work.Grace = 5*time.Millisecond, grace
	var wg sync.WaitGroup
	for _, m := range members {
		for _, blocked := range []bool{true, false} {
			own := work
			own.Blocked = blocked
			wg.Go(func() {
				m.acquire(own, func(g redisson.Grant, err error) {
					j.mu.Lock()
					defer j.mu.Unlock()
					if err != nil {
						j.faults[m.name] = append(j.faults[m.name], err)
						return
					}
					j.grants[m.name] = append(j.grants[m.name], g)
					j.log = append(j.log, window.Grant{Permits: g.Permits, Start: g.Start, End: g.End})
				})
			})
		}
	}
	wg.Wait()
}

// permits is how many a member got, of those that had returned after a time.
func (j *journal) permits(member string, after time.Time) (sum int64) {
	for _, g := range j.grants[member] {
		if g.End.After(after) {
			sum += g.Permits
		}
	}
	return sum
}
