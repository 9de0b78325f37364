package compat

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
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
