package fallback

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// fallback_nodes_test.go tests the fallback where only a part of the nodes or slots is away, and
// the probes of a node.

type redisError string

func (e redisError) Error() string { return string(e) }

func (redisError) RedisError() {}

// The write probe changes nothing, whatever is stored. The ACL user of docs/security.md may run it,
// and a full server accepts it; a replica does not.
func TestProbe(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		s := redistest.Real(t)
		ctx := t.Context()
		r := rig.New(t, s)
		c := rratelimiter.NewClient(rig.As(t, s, rig.ACLRule(t)), rig.Patient)
		names := []string{"orders:none"}
		for name, prepare := range map[string]func(l *rratelimiter.Limiter){
			"orders:rate": func(l *rratelimiter.Limiter) { r.SetRate(l, rratelimiter.PerHour(10)) },
			"orders:used": func(l *rratelimiter.Limiter) { r.SetRate(l, rratelimiter.PerHour(10)); r.Try(l, 3) },
			"orders:lasting": func(l *rratelimiter.Limiter) {
				r.SetRate(l, rratelimiter.Rate{Permits: 10, Interval: time.Hour, KeepAlive: 2 * time.Hour})
				r.Try(l, 3)
			},
			"orders:mortal": func(l *rratelimiter.Limiter) {
				r.SetRate(l, rratelimiter.PerHour(10))
				r.Must(r.Redis.PExpire(ctx, l.Name(), time.Hour).Err())
				r.Try(l, 3)
			},
		} {
			prepare(r.Limiter(name))
			names = append(names, name)
		}
		changes := func() string {
			info, err := r.Redis.Info(ctx, "persistence").Result()
			r.Must(err)
			_, rest, _ := strings.Cut(info, "rdb_changes_since_last_save:")
			count, _, _ := strings.Cut(rest, "\r\n")
			return count
		}
		r.Must(r.Redis.ConfigSet(ctx, "maxmemory", "1").Err())
		before, made := r.Dump(), changes()
		for _, name := range names {
			if _, err := rig.LimiterCore(c.RateLimiter(name)).WriteProbe(ctx); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		r.Unchanged(before, "a probe")
		r.CheckTTL(2*time.Hour, "orders:lasting", "{orders:lasting}:value", "{orders:lasting}:permits")
		if got := changes(); got != made || got == "" {
			t.Errorf("%s changes, %s before", got, made)
		}
		r.Must(r.Redis.ReplicaOf(ctx, "127.0.0.1", "1").Err())
		for _, name := range names {
			if _, err := rig.LimiterCore(c.RateLimiter(name)).WriteProbe(ctx); !script.Unreachable(err) {
				t.Errorf("%s, on a replica: %v", name, err)
			}
		}
	})
}

// halfCluster returns a client of a cluster: the first half of the slots is on a server, the other
// half on one that is away. Its first topology query fails.
func halfCluster(t *testing.T, s *redistest.Server) *redis.ClusterClient {
	t.Helper()
	away := redistest.Nowhere(t)
	var looked atomic.Bool
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		DialerRetries: 1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			if !looked.Swap(true) {
				return nil, rig.ErrRefused
			}
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: s.Addr}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: away}}},
			}, nil
		},
	})
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

// limitersOf returns a limiter on each half.
func limitersOf(c *rratelimiter.Client) (here, away *rratelimiter.Limiter) {
	for i := 0; here == nil || away == nil; i++ {
		l := c.RateLimiter(
			fmt.Sprint(i), rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)), rratelimiter.WithFallback(1),
		)
		if keys.Slot(l.Name()) < 8192 {
			here = l
		} else {
			away = l
		}
	}
	return here, away
}

// Until the nodes are found, the topology probe alone decides whether they can be found, even for a
// limiter whose node is away.
func TestFallbackUntilNodesAreFound(t *testing.T) {
	c := rratelimiter.NewClient(halfCluster(t, redistest.Embedded(t)), rig.Patient)
	here, away := limitersOf(c)
	rig.MustTry(t, here, 1, true)
	if !rig.Core(c).Exchange.ServerBreaker().Broken() {
		t.Fatal("a node was found at once")
	}
	rig.Soon(t, "nodes are found", func() bool {
		rig.MustTry(t, away, 1, true)
		return !rig.Core(c).Exchange.ServerBreaker().Broken()
	})
	rig.MustTry(t, here, 1, true)
	if state, err := here.State(t.Context()); err != nil || state.Used != 1 {
		t.Errorf("%+v, %v, after one call that Redis executed", state, err)
	}
}

// The state of a node is kept between single calls, even with calls to other nodes in between.
func TestFallbackKeepsTheStateOfANode(t *testing.T) {
	o := &rig.Log{}
	rdb := halfCluster(t, redistest.Embedded(t))
	if _, err := rdb.MasterForKey(t.Context(), ""); err == nil {
		t.Fatal("a node was found at once")
	}
	c := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(o), rig.Patient)
	here, away := limitersOf(c)
	for range 20 {
		rig.MustTry(t, here, 1, true)
		rig.MustTry(t, away, 1, true)
		n, err := away.AcquireUpTo(t.Context(), 1)
		if n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	asked := 0
	for _, f := range o.All() {
		if f.Fallback != (f.Limiter == away.Name()) {
			t.Errorf("%+v", f)
		}
		if f.Limiter == away.Name() {
			asked += f.Attempts
		}
	}
	if asked != 1 {
		t.Errorf("the node that is away was called %d times for callers", asked)
	}
}

// A slot that is being moved does not affect the other slots of its node.
func TestFallbackOfASlotAlone(t *testing.T) {
	o := &rig.Log{}
	rdb := redistest.Embedded(t).Client()
	rdb.AddHook(redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if args := cmd.Args(); len(args) > 3 && args[3] == "moving" {
			err := redisError("TRYAGAIN Multiple keys request during rehashing of slot")
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}})
	c := rratelimiter.NewClient(rdb, rratelimiter.WithObserver(o), rig.Patient)
	limiter := func(name string) *rratelimiter.Limiter {
		return c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerHour(1_000_000)), rratelimiter.WithFallback(1))
	}
	moving, there := limiter("moving"), limiter("there")
	for range 5 {
		for _, l := range []*rratelimiter.Limiter{moving, there} {
			rig.MustTry(t, l, 1, true)
			if n, err := l.AcquireUpTo(t.Context(), 1); n != 1 || err != nil {
				t.Error(n, err)
			}
		}
	}
	for _, f := range o.All() {
		if f.Fallback != (f.Limiter == "moving") {
			t.Errorf("%+v", f)
		}
	}
	rig.Core(c).Exchange.ServerBreaker().Fail(time.Now())
	rig.Soon(t, "a node is back whose slot is half moved", func() bool {
		rig.MustTry(t, moving, 1, true)
		return !rig.Core(c).Exchange.ServerBreaker().Broken()
	})
}
