package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// refused_test.go tests servers that reply with an error: replicas, a full memory.

// TestReplica: a master that becomes a replica, as after a failover that a client has not noticed,
// writes nothing.
func TestReplica(t *testing.T) {
	for _, test := range []struct {
		code  string
		stale string // replica-serve-stale-data
		fault string
	}{
		{"READONLY", "yes", "`READONLY`: the server became a replica"},
		{"MASTERDOWN", "no", "`MASTERDOWN`: it became a replica that has lost its master"},
	} {
		t.Run(test.code, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t, "--replica-serve-stale-data", test.stale)
			admin := server.Client()
			limiter := rratelimiter.NewClient(server.Client(redistest.NoDeadlines)).
				RateLimiter("replica", rratelimiter.WithRate(ample))
			if err := limiter.Acquire(t.Context(), 7); err != nil {
				t.Fatal(err)
			}
			host, port, err := net.SplitHostPort(redistest.Nowhere(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := admin.ReplicaOf(t.Context(), host, port).Err(); err != nil {
				t.Fatal(err)
			}
			got := load(8, 2, time.Millisecond, lasting(300*time.Millisecond), func(caller int) call {
				if caller%2 == 0 {
					return ask(1, func() (bool, error) { return true, limiter.Acquire(t.Context(), 1) })
				}
				return ask(1, func() (bool, error) { return limiter.TryAcquire(t.Context(), 1) })
			})
			// A call makes no attempt that would end after it, as far as the last one shows. One
			// that takes longer, on a busy machine, ends the call without its reply. The calls of a
			// kind share attempts: so 16 calls are at least four. If one of twenty ends so, three
			// of four do with a probability of 5e-4.
			said := 0
			var late net.Error
			for _, c := range got {
				switch {
				case c.took() > callTimeout+slack:
					t.Errorf("after %v: %v", c.took(), c.err)
				case redis.HasErrorPrefix(c.err, test.code) && !c.Unknown:
					said++
				case c.took() < callTimeout*9/10 || !errors.As(c.err, &late) || !late.Timeout():
					t.Errorf("after %v: %v", c.took(), c.err)
				}
			}
			if 4*said < len(got) {
				t.Errorf("%d of %d calls say %s", said, len(got), test.code)
			}
			if err := admin.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
				t.Fatal(err)
			}
			recovered := firstGrant(t, limiter, time.Now())
			if state, err := limiter.State(t.Context()); err != nil || state.Used != 8 || !state.Consistent {
				t.Errorf("%+v, %v, after 8 permits", state, err)
			}
			row{
				section: refuses, fault: test.fault,
				sees:   "the error `" + test.code + "`, unless it is a master again before the call's time is over",
				within: "back once it is a master within", limit: callTimeout + slack, after: "unchanged",
			}.proves(t, max(recovered, 0))
		})
	}
}

// TestFullMemory: each operation is done as a whole or not at all, on any state.
func TestFullMemory(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t, "--maxmemory-policy", "noeviction")
	admin := server.Client()
	ctx := t.Context()
	now := time.Now().Truncate(time.Millisecond)
	client := rratelimiter.NewClient(server.Client(redistest.NoDeadlines), rratelimiter.WithClientID("me"),
		rratelimiter.WithClock(func() time.Time { return now }))
	minute := rratelimiter.PerMinute(20)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	full := func(yes bool) {
		t.Helper()
		must(admin.ConfigSet(ctx, "maxmemory", map[bool]string{true: "1", false: "0"}[yes]).Err())
	}
	record := func(id string, permits byte) string { return "\x08" + id + string([]byte{permits, 0, 0, 0}) }
	states := map[string]func(l *rratelimiter.Limiter){
		"nothing": func(*rratelimiter.Limiter) {},
		"fresh":   func(l *rratelimiter.Limiter) { must(l.SetRate(ctx, minute)) },
	}
	for what, value := range map[string]string{
		"records": "8", "records, and no value": "", "records, and a wrong value": "x",
		"records, and what Redisson released": "20",
	} {
		states[what] = func(l *rratelimiter.Limiter) {
			must(l.SetRate(ctx, minute))
			at := float64(now.UnixMilli())
			must(admin.ZAdd(
				ctx, "{"+l.Name()+"}:permits", redis.Z{Score: at - 70_000, Member: record("expired1", 5)},
				redis.Z{Score: at - 65_000, Member: record("expired2", 1)},
				redis.Z{Score: at - 50_000, Member: record("oldest 1", 3)},
				redis.Z{Score: at - 10_000, Member: record("newest 1", 3)},
			).Err())
			if value != "" {
				must(admin.Set(ctx, "{"+l.Name()+"}:value", value, 0).Err())
			}
			must(admin.PExpire(ctx, l.Name(), time.Hour).Err())
		}
	}
	acquire := func(opts ...rratelimiter.LimiterOption) func(string) error {
		return func(name string) error {
			_, err := client.RateLimiter(name, opts...).TryAcquire(ctx, 3)
			return err
		}
	}
	plain := func(call func(l *rratelimiter.Limiter) error) func(string) error {
		return func(name string) error { return call(client.RateLimiter(name)) }
	}
	operations := map[string]func(name string) error{
		"acquire":              acquire(),
		"acquire, rate":        acquire(rratelimiter.WithRate(minute)),
		"acquire, other rate":  acquire(rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(30))),
		"acquire, each":        acquire(rratelimiter.WithRecordPerRequest()),
		"acquire, granularity": acquire(rratelimiter.WithGranularity(time.Second)),
		"acquire, refused": plain(func(l *rratelimiter.Limiter) error {
			_, err := l.TryAcquire(ctx, 20)
			return err
		}),
		"up to":        plain(func(l *rratelimiter.Limiter) error { _, err := l.AcquireUpTo(ctx, 50); return err }),
		"allow":        plain(func(l *rratelimiter.Limiter) error { _, err := l.Allow(ctx, 1); return err }),
		"charge":       plain(func(l *rratelimiter.Limiter) error { _, err := l.Charge(ctx, 3); return err }),
		"charge, debt": plain(func(l *rratelimiter.Limiter) error { _, err := l.Charge(ctx, 50); return err }),
		"charge, rate": func(name string) error {
			_, err := client.RateLimiter(name, rratelimiter.WithRate(minute)).Charge(ctx, 50)
			return err
		},
		"allow all": plain(func(l *rratelimiter.Limiter) error { _, err := client.AllowAll(ctx, 1, l, l); return err }),
		"allow all of two": plain(func(l *rratelimiter.Limiter) error {
			_, err := client.AllowAll(ctx, 15, l, client.RateLimiter("other", rratelimiter.WithRate(minute)))
			return err
		}),
		"release one": plain(func(l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 1); return err }),
		"release all": plain(func(l *rratelimiter.Limiter) error { _, err := l.Release(ctx, 50); return err }),
		"try to set the rate": plain(func(l *rratelimiter.Limiter) error {
			_, err := l.TrySetRate(ctx, minute)
			return err
		}),
		"set the rate": plain(func(l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, rratelimiter.PerMinute(30))
		}),
		"keep state": plain(func(l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, rratelimiter.PerMinute(30), rratelimiter.KeepState())
		}),
		"update the rate": plain(func(l *rratelimiter.Limiter) error {
			_, err := l.UpdateRate(ctx, rratelimiter.PerMinute(5))
			return err
		}),
		"per client": plain(func(l *rratelimiter.Limiter) error {
			return l.SetRate(ctx, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute})
		}),
		"available":    plain(func(l *rratelimiter.Limiter) error { _, err := l.AvailablePermits(ctx); return err }),
		"state":        plain(func(l *rratelimiter.Limiter) error { _, err := l.State(ctx); return err }),
		"config":       plain(func(l *rratelimiter.Limiter) error { _, err := l.Config(ctx); return err }),
		"expire":       plain(func(l *rratelimiter.Limiter) error { _, err := l.Expire(ctx, time.Minute); return err }),
		"clear expire": plain(func(l *rratelimiter.Limiter) error { _, err := l.ClearExpire(ctx); return err }),
		"rename":       plain(func(l *rratelimiter.Limiter) error { return l.Rename(ctx, l.Name()+" renamed") }),
		"rename to new": plain(
			func(l *rratelimiter.Limiter) error { _, err := l.RenameNX(ctx, l.Name()+" renamed"); return err },
		),
		"delete": plain(func(l *rratelimiter.Limiter) error { _, err := l.Delete(ctx); return err }),
	}
	refused, done := 0, 0
	var longest time.Duration
	for operation, run := range operations {
		for what, prepare := range states {
			const name = "full"
			must(admin.FlushDB(ctx).Err())
			prepare(client.RateLimiter(name))
			before := dump(t, admin)
			full(true)
			started := time.Now()
			err := run(name)
			longest = max(longest, time.Since(started))
			full(false)
			after := dump(t, admin)
			if redis.HasErrorPrefix(err, "OOM") {
				refused++
				if !reflect.DeepEqual(before, after) {
					t.Errorf("%s on %s: refused, and yet the keys changed: from\n%v to\n%v",
						operation, what, before, after)
				}
				if errors.Is(err, rratelimiter.ErrOutcomeUnknown) ||
					!strings.Contains(err.Error(), name) && !strings.HasPrefix(operation, "allow all") {
					t.Errorf("%s on %s: %v", operation, what, err)
				}
				continue
			}
			// It needs no memory, then: so it does all that it does elsewhere.
			done++
			must(admin.FlushDB(ctx).Err())
			prepare(client.RateLimiter(name))
			if usual := run(name); fmt.Sprint(usual) != fmt.Sprint(err) {
				t.Errorf("%s on %s: %v, not %v", operation, what, err, usual)
			}
			if want := dump(t, admin); !reflect.DeepEqual(want, after) {
				t.Errorf("%s on %s: done, and the keys are\n%v not\n%v", operation, what, after, want)
			}
		}
	}
	t.Logf("%d operations were refused, %d done", refused, done)
	if refused < 20 || done < 20 {
		t.Errorf("%d operations were refused, %d done", refused, done)
	}
	row{
		section: refuses, fault: "`OOM`: the memory is full (`maxmemory`, `noeviction`)",
		sees:   "the error `OOM` at once from all operations that need memory; the other operations succeed",
		within: "each operation within", limit: callTimeout + slack,
		after: "unchanged: no operation is executed in part",
	}.proves(t, longest)
}

// TestFailedSave: a server that can't save its data to disk writes nothing more, by default, until
// it can.
func TestFailedSave(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t, "--dbfilename", "dump.rdb")
	admin := server.Client()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	client := rratelimiter.NewClient(server.Client())
	limiter := client.RateLimiter("unsaved", rratelimiter.WithRate(rratelimiter.PerHour(100)))
	if ok, err := limiter.TryAcquire(ctx, 7); !ok || err != nil {
		t.Fatal(ok, err)
	}
	// save lets the server save, and waits for the result.
	save := func(status string) {
		t.Helper()
		must(admin.BgSave(ctx).Err())
		eventually(t, "the data is saved: "+status, func() bool {
			info, err := admin.Info(ctx, "persistence").Result()
			return err == nil && strings.Contains(info, "rdb_bgsave_in_progress:0") &&
				strings.Contains(info, "rdb_last_bgsave_status:"+status)
		})
	}
	dir, err := admin.ConfigGet(ctx, "dir").Result()
	must(err)
	file := filepath.Join(dir["dir"], "dump.rdb")
	must(os.MkdirAll(filepath.Join(file, "in the way"), 0o755))
	must(admin.ConfigSet(ctx, "save", "3600 1").Err())
	must(admin.ConfigSet(ctx, "stop-writes-on-bgsave-error", "yes").Err())
	save("err")

	before := dump(t, admin)
	var longest time.Duration
	for what, operation := range map[string]func() error{
		"acquire":       func() error { _, err := limiter.TryAcquire(ctx, 1); return err },
		"acquire up to": func() error { _, err := limiter.AcquireUpTo(ctx, 1); return err },
		"allow all":     func() error { _, err := client.AllowAll(ctx, 1, limiter); return err },
		"with a fallback": func() error {
			_, err := rratelimiter.NewClient(server.Client(redistest.NoDeadlines)).RateLimiter("unsaved",
				rratelimiter.WithFallback(1)).TryAcquire(ctx, 1)
			return err
		},
		"release":  func() error { _, err := limiter.Release(ctx, 1); return err },
		"set rate": func() error { return limiter.SetRate(ctx, rratelimiter.PerHour(5)) },
		"delete":   func() error { _, err := limiter.Delete(ctx); return err },
	} {
		started := time.Now()
		err := operation()
		longest = max(longest, time.Since(started))
		if !redis.HasErrorPrefix(err, "MISCONF") || errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if state, err := limiter.State(ctx); err != nil || state.Used != 7 || !state.Consistent {
		t.Errorf("%+v, %v, after 7 permits", state, err)
	}
	if after := dump(t, admin); !reflect.DeepEqual(before, after) {
		t.Errorf("refused, and yet the keys changed: from\n%v to\n%v", before, after)
	}

	must(os.RemoveAll(file))
	save("ok")
	if ok, err := limiter.TryAcquire(ctx, 1); !ok || err != nil {
		t.Error(ok, err)
	}
	row{
		section: refuses, fault: "`MISCONF`: the server could not save its data (`stop-writes-on-bgsave-error`)",
		sees: "the error `MISCONF` at once from all operations that write, even with `WithFallback`; reading " +
			"succeeds",
		within: "each operation within", limit: callTimeout + slack,
		after: "unchanged; works again after the first successful save",
	}.proves(t, longest)
}

// dump returns all keys with their values and TTLs in ms, without the random ids of records.
func dump(t *testing.T, rdb *redis.Client) map[string]string {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	keys, err := rdb.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, key := range keys {
		var held any
		switch kind := rdb.Type(ctx, key).Val(); kind {
		case "hash":
			held = rdb.HGetAll(ctx, key).Val()
		case "zset":
			var records []string
			for _, z := range rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
				member := z.Member.(string)
				records = append(records, fmt.Sprintf("%.0f: %x", z.Score, member[len(member)-4:]))
			}
			slices.Sort(records)
			held = records
		default:
			held = rdb.Get(ctx, key).Val()
		}
		found[key] = fmt.Sprintf("%v for %v", held, rdb.PTTL(ctx, key).Val().Round(10*time.Second))
	}
	return found
}

// TestEachKeyGone: whichever key is evicted, the next call repairs the limiter.
func TestEachKeyGone(t *testing.T) {
	t.Parallel()
	server := redistest.Real(t)
	admin := server.Client()
	ctx := t.Context()
	client := rratelimiter.NewClient(server.Client(), rratelimiter.WithClientID("me"))
	var longest time.Duration
	for _, kind := range []rratelimiter.RateType{rratelimiter.Overall, rratelimiter.PerClient} {
		rate := rratelimiter.Rate{Type: kind, Permits: 10, Interval: time.Hour}
		suffix := map[rratelimiter.RateType]string{rratelimiter.PerClient: ":me"}[kind]
		for _, test := range []struct {
			key  string
			free int64 // after 4 of 10 permits; all, where the records are lost
		}{
			{key: "gone", free: 6},
			{key: "{gone}:value" + suffix, free: 6},
			{key: "{gone}:permits" + suffix, free: 10},
		} {
			if err := admin.FlushDB(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			limiter := client.RateLimiter("gone", rratelimiter.WithRate(rate))
			if ok, err := limiter.TryAcquire(ctx, 4); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if n, err := admin.Del(ctx, test.key).Result(); n != 1 || err != nil {
				t.Fatalf("%v: there is no %s: %v", kind, test.key, err)
			}
			started := time.Now()
			more, errMore := limiter.TryAcquire(ctx, test.free+1)
			got, errGot := limiter.AcquireUpTo(ctx, 10)
			longest = max(longest, time.Since(started)/2)
			if errors.Is(errMore, rratelimiter.ErrExceedsRate) {
				errMore = nil // more than all
			}
			if more || got != test.free || errMore != nil || errGot != nil {
				t.Errorf("%v without %s: %v, %v; %d, %v; %d are free",
					kind, test.key, more, errMore, got, errGot, test.free)
			}
			state, err := limiter.State(ctx)
			if err != nil || !state.Consistent || state.Available != 0 || state.Rate != rate {
				t.Errorf("%v without %s, afterwards: %+v, %v", kind, test.key, state, err)
			}
		}
	}
	row{
		section: lost, fault: "any one of the keys is evicted or deleted, `WithRate`",
		sees:   "nothing; without `WithRate`, `ErrNotInitialized` once the configuration is gone",
		within: "repaired by the next call, within", limit: callTimeout,
		after: "correct again; if the records (`{NAME}:permits`) are lost, up to the rate can be granted once more",
	}.proves(t, longest)
}

// TestEviction: a server that evicts keys costs permits, never an error.
func TestEviction(t *testing.T) {
	t.Parallel()
	const limiters = 200
	server := redistest.Real(t, "--maxmemory-policy", "allkeys-lru")
	admin := server.Client()
	ctx := t.Context()
	used, err := admin.Info(ctx, "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	var base int64
	for line := range strings.Lines(used) {
		if value, ok := strings.CutPrefix(line, "used_memory:"); ok {
			if _, err := fmt.Sscan(value, &base); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := admin.ConfigSet(ctx, "maxmemory", fmt.Sprint(base+8<<20)).Err(); err != nil {
		t.Fatal(err)
	}
	client := rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(20*time.Second))
	all := make([]*rratelimiter.Limiter, limiters)
	for i := range all {
		all[i] = client.RateLimiter(fmt.Sprint("evicted:", i), rratelimiter.WithRate(rratelimiter.PerHour(1000)))
	}
	done := make(chan struct{})
	var filling sync.WaitGroup
	filling.Go(func() {
		value := make([]byte, 1000)
		for i := 0; ; {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			_, err := admin.Pipelined(context.WithoutCancel(ctx), func(p redis.Pipeliner) error {
				for range 100 {
					p.Set(ctx, fmt.Sprint("filler:", i), value, 0)
					i++
				}
				return nil
			})
			if err != nil && !redis.HasErrorPrefix(err, "OOM") {
				t.Error(err)
				return
			}
		}
	})
	next := make([]int, 8)
	got := load(len(next), 300, time.Millisecond, lasting(time.Second), func(caller int) call {
		next[caller]++
		l := all[(caller*limiters/len(next)+next[caller])%limiters]
		return ask(1, func() (bool, error) { return l.TryAcquire(ctx, 1) })
	})
	keys := make([]string, limiters)
	for i, l := range all {
		keys[i] = "{" + l.Name() + "}:value"
	}
	eventually(t, "keys of limiters are evicted", func() bool {
		there, err := admin.Exists(ctx, keys...).Result()
		return err == nil && there < limiters
	})
	close(done)
	filling.Wait()
	if err := admin.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range got.where(failed) {
		t.Error(c.err)
	}
	torn := 0
	for _, l := range all {
		if state, err := l.State(ctx); err != nil || !state.Consistent {
			torn++
		}
		if ok, err := l.TryAcquire(ctx, 1); err != nil || !ok {
			t.Errorf("%s: %v, %v", l.Name(), ok, err)
		}
		if state, err := l.State(ctx); err != nil || !state.Consistent || state.Used < 1 {
			t.Errorf("%s: %+v, %v", l.Name(), state, err)
		}
	}
	t.Logf(
		"%d calls; of %d limiters %d had lost some of their keys, before they were asked once more", len(got), limiters,
		torn,
	)
	row{
		section: lost, fault: "the server evicts keys (`allkeys-lru`) under load, `WithRate`", sees: "nothing",
		within: "99 of 100 calls within", limit: callTimeout,
		after: "correct again after its next call, but grants may be forgotten: use a server that evicts nothing",
	}.proves(t, got.percentile(99))
}
