package compat

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// cluster_test.go runs Redisson 3.17.5, Redisson 4.7.0 and Go on a TLS-only cluster. They compete
// for one limiter on each master. A name mapper changes the names, some of which hold a hash tag.

// TestFleetOnCluster: each node serves only its own limiter, under the key names that Redisson
// uses.
func TestFleetOnCluster(t *testing.T) {
	t.Parallel()
	const prefix = "fleet:"
	nodes := redistest.ClusterTLS(t, 3)
	var addrs []string
	for _, addr := range nodes.Addrs() {
		addrs = append(addrs, "rediss://"+addr)
	}
	options := []redisson.Option{
		redisson.Addr(addrs...), redisson.Cluster(), redisson.TrustAll(), redisson.NamePrefix(prefix),
	}
	old, recent := redisson.Start(t, "3.17.5", options...), redisson.Start(t, "4.7.0", options...)
	client := rratelimiter.NewClient(nodes.ClusterClient(), rratelimiter.WithCallTimeout(patience),
		rratelimiter.WithNameMapper(func(name string) string { return prefix + name }))

	rate := every(500*time.Millisecond, 100)
	var wg sync.WaitGroup
	for i, form := range []struct{ name, state string }{
		{"orders%d", "{fleet:orders%d}"},
		{"{tenant%d}:jobs", "fleet:{tenant%d}:jobs"},
		{"jobs:{tenant%d}", "fleet:jobs:{tenant%d}"},
	} {
		server := nodes.Servers[i]
		at := 0
		for nodes.Owner(prefix+fmt.Sprintf(form.name, at)) != server {
			at++
		}
		name, state := fmt.Sprintf(form.name, at), fmt.Sprintf(form.state, at)
		wg.Go(func() {
			t.Run(name, func(t *testing.T) {
				limiter := client.RateLimiter(name)
				b := &bench{T: t, ctx: t.Context(), rdb: server.Client(), java: old}
				want(b, "3.17.5's trySetRate", true)(
					old.TrySetRate(b.ctx, name, redisson.Rate{Permits: rate.Permits, Interval: rate.Interval}),
				)
				want(b, "4.7.0's trySetRate", false)(
					recent.TrySetRate(b.ctx, name, redisson.Rate{Permits: 1, Interval: time.Hour}))
				want(b, "Go's Config", rate)(limiter.Config(b.ctx))

				members := []member{javaMember(t, old, name), javaMember(t, recent, name), goMember(t, limiter)}
				allGot := func(j *journal, least int64) func() bool {
					return func() bool { return j.allGot(members, least, time.Time{}) }
				}
				warming := newJournal()
				// opens connections and makes Java load its classes
				warming.work(t, allGot(warming, 5), members...)
				monitor := server.Monitor()
				j, begun := newJournal(), time.Now()
				j.work(t, allGot(j, 100), members...)
				over := time.Now()
				keys := b.rdb.Keys(b.ctx, "*").Val()
				commands := monitor.Stop()

				r := report{
					log: j.log, byGo: j.permits("Go", time.Time{}),
					byJava:   j.permits("3.17.5", time.Time{}) + j.permits("4.7.0", time.Time{}),
					scores:   scoresOf(t, commands, state+":permits", over),
					disorder: disorderOf(commands, prefix+name), duration: over.Sub(begun), rate: rate,
				}
				r.verify(t)
				for _, m := range members {
					t.Logf("%s got %d permits", m.name, j.permits(m.name, time.Time{}))
					for _, fault := range j.faults[m.name] {
						t.Errorf("%s: %v", m.name, fault)
					}
				}

				slices.Sort(keys)
				if expected := []string{prefix + name, state + ":permits", state + ":value"}; !slices.Equal(
					keys, sorted(expected),
				) {
					t.Errorf("the node holds %q, want %q", keys, expected)
				}
				for side, available := range map[string]func() (int64, error){
					"3.17.5": func() (int64, error) { return old.Available(b.ctx, name) },
					"4.7.0":  func() (int64, error) { return recent.Available(b.ctx, name) },
					"Go":     func() (int64, error) { return limiter.AvailablePermits(b.ctx) },
				} {
					b.eventually(side+" sees all permits free", patience, func() bool {
						n, err := available()
						b.must(side, err)
						return n == rate.Permits
					})
				}
				if s, err := limiter.State(b.ctx); err != nil || !s.Consistent || s.Records != 0 {
					t.Errorf("when all permits are free the state is %+v, %v", s, err)
				}
			})
		})
	}
	wg.Wait()
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}
