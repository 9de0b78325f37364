package servers

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/proof"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// servers_test.go tests that the servers and protocols in compat/numbers.md are tested, and that
// every call of a limiter works on each server with each protocol.

func speaking(protocol int) func(*redis.Options) {
	return func(o *redis.Options) { o.Protocol = protocol }
}

// TestServersThatAreClaimedAreTested compares the table of servers with those on which Each runs
// tests, and with the releases on which a step of scripts/check runs tests. If the first server has
// another version than the one in the table, only its row is not checked.
func TestServersThatAreClaimedAreTested(t *testing.T) {
	if testing.Short() {
		t.Skip("it is about real servers, which -short leaves out")
	}
	page, err := os.ReadFile("../../../compat/numbers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "<!-- servers: checked by make proof -->")
	table, _, found := strings.Cut(rest, "<!-- /servers -->")
	if !found {
		t.Fatal("there is no table of servers")
	}
	claimed := map[string]bool{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && !strings.Contains(line, "---") &&
			!strings.Contains(line, "server |") {
			claimed[strings.TrimSpace(cells[1])+" by "+strings.TrimSpace(cells[2])] = true
		}
	}
	var mu sync.Mutex
	ran := map[string]bool{}
	here := ""
	t.Setenv("RRATELIMITER_REDIS_SERVER", "") // a release that it names would be the only server
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		name := "miniredis, embedded"
		if s.IsReal() {
			parts := strings.Split(s.Version(), ".") // Redis 7.0.15
			name = parts[0] + "." + parts[1]
		}
		protocol := "RESP2"
		if _, isMap := s.Client().Do(t.Context(), "hgetall", "none").Val().(map[any]any); isMap {
			protocol = "RESP3"
		}
		mu.Lock()
		defer mu.Unlock()
		ran[name+" by "+protocol] = true
		if strings.HasSuffix(t.Name(), "/redis") {
			here = name + " by " + protocol
		}
	})
	const first = "Redis 7.0 by RESP3"
	if here != first {
		t.Logf("the first server is %s", here)
		delete(ran, here)
		delete(claimed, first)
	}
	if !proof.Asked() { // then Each leaves out the oldest release
		delete(claimed, redistest.Redis62.Name+" by RESP2")
	}
	check, err := os.ReadFile("../../../scripts/check")
	if err != nil {
		t.Fatal(err)
	}
	_, newer, _ := strings.Cut(string(check), "\nnewer_servers=(")
	newer, _, _ = strings.Cut(newer, ")")
	for _, r := range redistest.Releases {
		if strings.Contains(newer, strconv.Quote(r.Name)) {
			ran[r.Name+" by RESP3"] = true
		} else if r != redistest.Redis62 {
			t.Errorf("scripts/check runs no tests on %s", r.Name)
		}
	}
	if !maps.Equal(claimed, ran) {
		t.Errorf("claimed are %q, and the tests ran on %q",
			slices.Sorted(maps.Keys(claimed)), slices.Sorted(maps.Keys(ran)))
	}
}

// TestEveryCallByBothProtocols makes every call that a limiter can make.
func TestEveryCallByBothProtocols(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		s := redistest.Real(t)
		for _, protocol := range []int{2, 3} {
			rdb := s.Client(speaking(protocol))
			rdb.FlushAll(t.Context())
			everyCall(t, rdb)
		}
	})
}

// everyCall calls each method once on each of its paths through Redis.
func everyCall(t *testing.T, rdb rratelimiter.Redis) {
	t.Helper()
	ctx := t.Context()
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	c := rratelimiter.NewClient(rdb, rig.Patient, rratelimiter.WithClientID("me"))
	l := c.RateLimiter("{a}1")
	rate := rratelimiter.Rate{Permits: 10, Interval: time.Hour}
	set, err := l.TrySetRate(ctx, rate)
	check("TrySetRate", set, err, true)
	ok, err := l.TryAcquire(ctx, 2)
	check("TryAcquire", ok, err, true)
	check("Acquire", nil, l.Acquire(ctx, 1), nil)
	ok, err = l.TryAcquireTimeout(ctx, 8, time.Second)
	check("TryAcquireTimeout", ok, err, false)
	result, err := l.Allow(ctx, 8)
	check("Allow", result.Remaining, err, int64(7))
	results, err := c.AllowAll(ctx, 1, l, c.RateLimiter("{a}2", rratelimiter.WithRate(rate)))
	check("AllowAll", len(results) == 2 && results[1].Allowed, err, true)
	n, err := l.Release(ctx, 1)
	check("Release", n, err, int64(1))
	n, err = l.AcquireUpTo(ctx, 100)
	check("AcquireUpTo", n, err, int64(7))
	n, err = l.AvailablePermits(ctx)
	check("AvailablePermits", n, err, int64(0))
	state, err := l.State(ctx)
	check("State", state.Used, err, int64(10))
	for name, opts := range map[string][]rratelimiter.LimiterOption{
		"granularity": {rratelimiter.WithGranularity(time.Minute)}, "server time": {rratelimiter.WithServerTime()},
		"a record each": {rratelimiter.WithRecordPerRequest()},
	} {
		ok, err = c.RateLimiter("with "+name, append(opts, rratelimiter.WithRate(rate))...).TryAcquire(ctx, 1)
		check(name, ok, err, true)
	}
	set, err = l.UpdateRate(ctx, rratelimiter.Rate{Permits: 12, Interval: time.Hour}, rratelimiter.KeepState())
	check("UpdateRate", set, err, true)
	ok, err = c.RateLimiter("{a}1", rratelimiter.WithEnforcedRate(rratelimiter.Rate{Permits: 13, Interval: time.Hour})).
		TryAcquire(ctx, 3)
	check("an enforced rate", ok, err, true)
	for _, cond := range []rratelimiter.ExpireCondition{
		rratelimiter.IfNotSet,
		rratelimiter.IfSet,
		rratelimiter.IfGreater,
		rratelimiter.IfLess,
	} {
		d := map[rratelimiter.ExpireCondition]time.Duration{
			rratelimiter.IfNotSet:  time.Hour,
			rratelimiter.IfSet:     time.Hour,
			rratelimiter.IfGreater: 2 * time.Hour,
			rratelimiter.IfLess:    time.Minute,
		}[cond]
		ok, err = l.Expire(ctx, d, cond)
		check(fmt.Sprint("Expire, condition ", cond), ok, err, true)
	}
	ttl, err := l.TTL(ctx)
	check("TTL", ttl > 0 && ttl <= time.Minute, err, true)
	ok, err = l.ClearExpire(ctx)
	check("ClearExpire", ok, err, true)
	got, err := l.Config(ctx)
	check("Config", got, err, rratelimiter.Rate{Permits: 13, Interval: time.Hour})
	check(
		"SetRate",
		nil,
		l.SetRate(
			ctx, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 2, Interval: time.Hour, KeepAlive: time.Hour},
		),
		nil,
	)
	ok, err = l.TryAcquire(ctx, 2)
	check("TryAcquire per client", ok, err, true)
	ids, err := l.Clients(ctx)
	check("Clients", fmt.Sprint(ids), err, "[me]")
	check("Rename", nil, l.Rename(ctx, "{a}3"), nil)
	ok, err = c.RateLimiter("{a}3").RenameNX(ctx, "{a}2")
	check("RenameNX", ok, err, false)
	ok, err = c.RateLimiter("{a}3").Delete(ctx)
	check("Delete", ok, err, true)
	ok, err = c.RateLimiter("{a}3").Exists(ctx)
	check("Exists", ok, err, false)
	if _, err = l.TryAcquire(ctx, 1); !errors.Is(err, rratelimiter.ErrNotInitialized) {
		t.Errorf("without a limiter: %v", err)
	}
}

// TestEveryCallOnAClusterByBothProtocols does so on a cluster.
func TestEveryCallOnAClusterByBothProtocols(t *testing.T) {
	redistest.EachRelease(t, func(t *testing.T) {
		nodes := redistest.Cluster(t, 3)
		for _, protocol := range []int{2, 3} {
			for _, s := range nodes.Servers {
				s.Client().FlushAll(t.Context())
			}
			everyCall(t, nodes.ClusterClient(func(o *redis.ClusterOptions) { o.Protocol = protocol }))
		}
	})
}
