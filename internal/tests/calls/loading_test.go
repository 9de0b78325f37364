package calls

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// loading_test.go tests that scripts get to the servers that lack them, by which commands, and that
// they stay there.

// calls are how often a client sent each command, by name.
type calls struct {
	mu   sync.Mutex
	seen map[string]int
}

// count returns how many commands of a name were sent.
func (c *calls) count(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[name]
}

// sentBy counts the commands that a client sends, by a hook, as tracing does.
func sentBy(rdb *redis.Client) *calls {
	c := &calls{seen: map[string]int{}}
	rdb.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		c.mu.Lock()
		c.seen[cmd.Name()]++
		c.mu.Unlock()
		return next(ctx, cmd)
	}})
	return c
}

// twoScripts runs a script by a batch and another one by a single call.
func twoScripts(t *testing.T, rdb rratelimiter.Redis, name string) {
	t.Helper()
	l := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerHour(5)))
	if result, err := l.Allow(t.Context(), 2); err != nil || result.Remaining != 3 {
		t.Errorf("%s: %+v, %v", name, result, err)
	}
	if state, err := l.State(t.Context()); err != nil || state.Used != 2 {
		t.Errorf("%s: %+v, %v", name, state, err)
	}
}

// A server gets each script once, by SCRIPT LOAD, whatever the topology.
func TestScriptsAreLoadedIntoEachServer(t *testing.T) {
	const names = 12 // enough for each of three servers to have some
	three := func(t *testing.T) (all []*redistest.Server) {
		for range 3 {
			all = append(all, redistest.Real(t))
		}
		return all
	}
	for topology, start := range map[string]func(t *testing.T) (rratelimiter.Redis, []*redistest.Server){
		"one": func(t *testing.T) (rratelimiter.Redis, []*redistest.Server) {
			s := redistest.Real(t)
			return s.Client(), []*redistest.Server{s}
		},
		"a cluster": func(t *testing.T) (rratelimiter.Redis, []*redistest.Server) {
			nodes := redistest.Cluster(t, 3)
			return nodes.ClusterClient(), nodes.Servers
		},
		"a Ring": func(t *testing.T) (rratelimiter.Redis, []*redistest.Server) {
			all, addrs := three(t), map[string]string{}
			for i, s := range all {
				addrs[fmt.Sprint(i)] = s.Addr
			}
			ring := redis.NewRing(&redis.RingOptions{Addrs: addrs})
			t.Cleanup(func() { ring.Close() })
			return ring, all
		},
	} {
		t.Run(topology, func(t *testing.T) {
			rdb, servers := start(t)
			for i := range names {
				twoScripts(t, rdb, fmt.Sprintf("{%d}rl", i))
			}
			for _, s := range servers {
				stats, err := s.Client().Info(t.Context(), "commandstats", "errorstats").Result()
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(stats, "cmdstat_script|load:calls=2,") ||
					!strings.Contains(stats, "errorstat_NOSCRIPT:count=2") ||
					strings.Contains(stats, "cmdstat_eval:") {
					t.Errorf("want two scripts loaded and none sent by EVAL: %s", stats)
				}
			}
		})
	}
}

// Behind an AutoPipeliner the servers of a cluster are not seen.
func TestScriptsGetToEachServerOfAPipelinedCluster(t *testing.T) {
	rdb := rig.AutoPipelined(t, redistest.Cluster(t, 3).ClusterClient())
	for i := range 12 {
		twoScripts(t, rdb, fmt.Sprintf("{%d}rl", i))
	}
}

func TestAnAutoPipelinerHidesItsServers(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{})
	defer rdb.Close()
	pipelined := rig.AutoPipelined(t, rdb)
	if hidden := script.NewTopology(pipelined).Hidden(); hidden != (pipelined != redis.UniversalClient(rdb)) {
		t.Errorf("%T hides its servers: %v", pipelined, hidden)
	}
}

// A user who may not load scripts sends them by EVAL, and pays a round trip for the refusal.
func TestScriptsThatMayNotBeLoaded(t *testing.T) {
	s := redistest.Real(t)
	rdb := rig.As(t, s, []any{"ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all", "-script|load"})
	sent := sentBy(rdb)
	for range 2 {
		twoScripts(t, rdb, "rl")
		s.Client().Del(t.Context(), "rl", "{rl}:value", "{rl}:permits")
	}
	if sent.count("evalsha") != 4 || sent.count("script") != 2 || sent.count("eval") != 2 {
		t.Errorf("sent were %v, want two scripts by their hash, to be loaded, by EVAL, and by their hash again",
			sent.seen)
	}
}

// A server that drops scripts which came by EVAL drops none that were loaded. Where they came by
// EVAL, because the user may not load them, they are sent again.
func TestScriptsOfOthersCostNobodyAnError(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		for _, may := range []string{"+", "-"} {
			s := redistest.Real(t)
			rdb := rig.As(t, s, []any{"ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+@all", may + "script"})
			sent := sentBy(rdb)
			for round := range 3 {
				twoScripts(t, rdb, fmt.Sprint("rl", round))
				others := s.Client().Pipeline()
				for i := range 600 { // a server that drops scripts keeps 500
					others.Eval(t.Context(), fmt.Sprint("return ", 1000*round+i), nil)
				}
				if _, err := others.Exec(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if may == "+" && (sent.count("script") != 2 || sent.count("eval") != 0) {
				t.Errorf("sent were %v, want two scripts to be loaded once", sent.seen)
			}
		}
	})
}
