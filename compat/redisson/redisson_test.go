package redisson_test

// These tests hold the harness to its word: each command does what its name says in old and new
// Redissons, or is unsupported, and what they write is what the table of traits says. They compare
// nothing with the Go limiter.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// traits are what sets a version apart, as far as this package shows it.
type traits struct {
	version      string
	member       int  // bytes of a permit record
	expireIf     bool // conditional expires, getExpireTime
	nameMapper   bool
	keepAlive    bool // also the keepAliveTime field in each config
	release      bool
	updateRate   bool // also RateLimiterArgs
	emptyConfig  bool // getConfig without a rate answers zeros instead of throwing
	exceedsFails bool // more than the rate is an error also when there is a value already
}

var matrix = []traits{
	{version: "3.13.6", member: 8},
	{version: "3.15.6", member: 8, nameMapper: true, exceedsFails: true},
	{version: "3.16.8", member: 20, nameMapper: true, exceedsFails: true},
	{version: "3.17.5", member: 13, nameMapper: true, exceedsFails: true, expireIf: true},
	{version: "3.20.1", member: 13, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true},
	{version: "3.21.0", member: 21, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true},
	{version: "3.35.0", member: 21, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true},
	{
		version: "3.38.0", member: 21, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true,
		keepAlive: true,
	},
	{
		version: "3.52.0", member: 21, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true,
		keepAlive: true, release: true,
	},
	{
		version: "4.6.1", member: 21, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true,
		keepAlive: true, release: true, updateRate: true,
	},
	{
		version: "4.7.0", member: 21, nameMapper: true, exceedsFails: true, expireIf: true, emptyConfig: true,
		keepAlive: true, release: true, updateRate: true,
	},
}

// closely are the versions that all commands are tried on.
var closely = []string{"3.13.6", "3.17.5", "4.7.0"}

func TestMain(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	defer cancel()
	begin := time.Now()
	if err := redisson.Build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("%d versions ready after %v\n", len(redisson.Versions), time.Since(begin).Round(time.Millisecond))
	os.Exit(m.Run())
}

func TestMatrixHasEveryVersion(t *testing.T) {
	var versions []string
	for _, v := range matrix {
		versions = append(versions, v.version)
	}
	if !slices.Equal(versions, redisson.Versions) {
		t.Fatalf("tested %v, claimed %v", versions, redisson.Versions)
	}
}

// TestEveryVersion does the main things with each version: the rate, permits, the record, a run.
func TestEveryVersion(t *testing.T) {
	t.Parallel()
	r := redistest.Real(t)
	for _, v := range matrix {
		t.Run(v.version, func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			java := redisson.Start(t, v.version, redisson.Addr(r.Addr))
			t.Logf("ready after %v", time.Since(begin).Round(time.Millisecond))
			db := r.Client()
			ctx := t.Context()
			name := "every " + v.version
			rate := redisson.Rate{Permits: 5, Interval: 10 * time.Second}

			want(t, true)(java.TrySetRate(ctx, name, rate))
			want(t, true)(java.TryAcquire(ctx, name, 2))
			want(t, true)(java.TryAcquire(ctx, name, 1))
			want(t, int64(2))(java.Available(ctx, name))
			want(t, redisson.Rate{Type: redisson.Overall, Permits: 5, Interval: 10 * time.Second})(
				java.Config(ctx, name))
			checkState(t, db, v, name, "{"+name+"}:value", "{"+name+"}:permits")

			if ok, err := java.TryAcquire(ctx, name, 6); v.exceedsFails {
				wantError(t, err, "defined rate")
			} else if ok || err != nil {
				t.Errorf("more than the rate: %v, %v; 3.13 just says no", ok, err)
			}
			if config, err := java.Config(ctx, "nothing"); v.emptyConfig {
				want(t, redisson.Rate{Type: redisson.Overall})(config, err)
			} else {
				wantError(t, err, "NumberFormatException")
			}
			for _, blocked := range []bool{true, false} {
				// On a busy machine little happens in a run, so there may be several.
				for run := 1; !checkRun(t, java, fmt.Sprint("run ", v.version, blocked), blocked); run++ {
					if run == 10 {
						t.Fatalf("too little happened in %d runs, blocked %v", run, blocked)
					}
				}
			}
		})
	}
}

// checkState looks at what a limiter of 5 per 10 s has in Redis after tryAcquire(2) and (1).
func checkState(t *testing.T, db *redis.Client, v traits, name, valueKey, permitsKey string) {
	t.Helper()
	wantFields := map[string]string{"rate": "5", "interval": "10000", "type": "0"}
	if strings.Contains(valueKey, "}:value:") {
		wantFields["type"] = "1"
	}
	if v.keepAlive {
		wantFields["keepAliveTime"] = "0"
	}
	if fields := db.HGetAll(t.Context(), name).Val(); !maps.Equal(fields, wantFields) {
		t.Errorf("config %q, want %q", fields, wantFields)
	}
	want(t, "2")(db.Get(t.Context(), valueKey).Result())
	records := db.ZRangeWithScores(t.Context(), permitsKey, 0, -1).Val()
	if len(records) != 2 {
		t.Fatalf("records %v, want two", records)
	}
	var permits []uint32
	for _, r := range records {
		member := []byte(r.Member.(string))
		if len(member) != v.member {
			t.Errorf("record % x has %d bytes, want %d", member, len(member), v.member)
		}
		switch v.member {
		case 13:
			if member[0] != 8 {
				t.Errorf("record % x, want the length 8 first", member)
			}
		case 20:
			if binary.LittleEndian.Uint64(member) != 8 {
				t.Errorf("record % x, want the length 8 in eight bytes first", member)
			}
		case 21:
			if member[0] != 16 {
				t.Errorf("record % x, want the length 16 first", member)
			}
		}
		permits = append(permits, binary.LittleEndian.Uint32(member[len(member)-4:]))
		if age := time.Since(time.UnixMilli(int64(r.Score))); age < -time.Second || age > 9*time.Second {
			t.Errorf("score %v is not the time of the grant", r.Score)
		}
	}
	slices.Sort(permits)
	if !slices.Equal(permits, []uint32{1, 2}) {
		t.Errorf("permits in the records: %d, want 1 and 2", permits)
	}
}

// checkRun lets threads acquire from 40 per 200 ms, checks the log, and reports whether the run was
// more than a start: a whole rate was granted, to two threads or more, and pollers were refused.
func checkRun(t *testing.T, java *redisson.Process, name string, blocked bool) bool {
	t.Helper()
	const rate, interval = 40, 200 * time.Millisecond
	if err := java.SetRate(t.Context(), name, redisson.Rate{Permits: rate, Interval: interval}); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(100 * time.Millisecond)
	told := 0
	result, err := java.Run(t.Context(), name, redisson.Work{
		Blocked: blocked, Threads: 4, For: 700 * time.Millisecond, Max: 3, At: at,
		OnGrant: func(redisson.Grant) { told++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	threads := map[int]bool{}
	for _, g := range result.Grants {
		sum += g.Permits
		threads[g.Thread] = true
		if g.Permits < 1 || g.Permits > 3 || g.End.Before(g.Start) || g.Start.Before(at.Truncate(time.Millisecond)) ||
			g.End.After(result.End.Add(time.Millisecond)) {
			t.Errorf("odd grant %+v in a run from %v to %v", g, at, result.End)
		}
	}
	// Redisson counts in whole ms: the first grant, and each interval, can be up to 1 ms early
	const early = 5 * time.Millisecond
	intervals := int64((result.End.Sub(at)+early)/interval) + 1
	if sum > intervals*rate || sum != result.Permits || told != len(result.Grants) {
		t.Errorf(
			"granted %d (said %d), want at most %d; told of %d of %d", sum, result.Permits, intervals*rate, told,
			len(result.Grants),
		)
	}
	// Redisson's script fails if the permits do not suffice and the last record has just expired.
	faults := slices.DeleteFunc(result.Faults, func(err error) bool { return strings.Contains(err.Error(), "unpack") })
	if len(faults) != 0 || result.Unfinished != 0 || blocked && result.Denied != 0 {
		t.Errorf("blocked %v: %d denied, %d unfinished, faults %v", blocked, result.Denied, result.Unfinished, faults)
	}
	return sum >= rate && len(threads) >= 2 && (blocked || result.Denied > 0)
}

// TestEveryCommand tries all that the harness can do.
func TestEveryCommand(t *testing.T) {
	t.Parallel()
	r := redistest.Real(t)
	for _, v := range matrix {
		if !slices.Contains(closely, v.version) {
			continue
		}
		t.Run(v.version, func(t *testing.T) {
			t.Parallel()
			java := redisson.Start(t, v.version, redisson.Addr(r.Addr))
			db := r.Client()
			prefix := v.version + " "
			t.Run("rate", func(t *testing.T) { testRate(t, java, v, db, prefix+"rate") })
			t.Run("keep-alive", func(t *testing.T) { testKeepAlive(t, java, v, db, prefix+"alive") })
			t.Run("per client", func(t *testing.T) { testPerClient(t, java, v, db, prefix+"client") })
			t.Run("waiting", func(t *testing.T) { testWaiting(t, java, prefix+"waiting") })
			t.Run("release", func(t *testing.T) { testRelease(t, java, v, prefix+"release") })
			t.Run("life", func(t *testing.T) { testLife(t, java, v, db, prefix+"life") })
			t.Run("names", func(t *testing.T) { testNames(t, java, v, db, prefix) })
			t.Run("errors", func(t *testing.T) { testErrors(t, java, prefix+"errors") })
			t.Run("bench", func(t *testing.T) { testBench(t, java, prefix+"bench ") })
		})
	}
}

func testRate(t *testing.T, java *redisson.Process, v traits, db *redis.Client, name string) {
	ctx := t.Context()
	five := redisson.Rate{Permits: 5, Interval: 10 * time.Second}
	want(t, true)(java.TrySetRate(ctx, name, five))
	want(t, false)(java.TrySetRate(ctx, name, redisson.Rate{Permits: 9, Interval: time.Second}))
	want(t, true)(java.TryAcquire(ctx, name, 3))

	seven := redisson.Rate{Permits: 7, Interval: 20 * time.Second}
	ok(t, java.SetRate(ctx, name, seven))
	want(t, redisson.Rate{Type: redisson.Overall, Permits: 7, Interval: 20 * time.Second})(java.Config(ctx, name))
	want(t, int64(0))(db.Exists(ctx, "{"+name+"}:value", "{"+name+"}:permits").Result())

	want(t, true)(java.TryAcquire(ctx, name, 3))
	keeping := redisson.Rate{Permits: 8, Interval: 20 * time.Second, KeepState: true}
	updated, err := java.UpdateRate(ctx, name, keeping)
	setErr := java.SetRate(ctx, name+"2", keeping)
	if !v.updateRate {
		wantUnsupported(t, err)
		wantUnsupported(t, setErr)
		return
	}
	want(t, true)(updated, err)
	ok(t, setErr)
	want(t, int64(5))(java.Available(ctx, name))
	want(t, true)(java.UpdateRate(ctx, name, seven))
	want(t, int64(7))(java.Available(ctx, name))
	want(t, false)(java.UpdateRate(ctx, name+" missing", five))
	ok(t, java.SetRate(ctx, name, keeping))
}

func testKeepAlive(t *testing.T, java *redisson.Process, v traits, db *redis.Client, name string) {
	ctx := t.Context()
	rate := redisson.Rate{Permits: 5, Interval: time.Second, KeepAlive: time.Minute}
	set, err := java.TrySetRate(ctx, name, rate)
	setErr := java.SetRate(ctx, name+"2", rate)
	if !v.keepAlive {
		wantUnsupported(t, err)
		wantUnsupported(t, setErr)
		return
	}
	want(t, true)(set, err)
	ok(t, setErr)
	for _, name := range []string{name, name + "2"} {
		want(t, true)(java.TryAcquire(ctx, name, 1))
		want(t, "60000")(db.HGet(ctx, name, "keepAliveTime").Result())
		for _, key := range []string{name, "{" + name + "}:value", "{" + name + "}:permits"} {
			if ttl := db.PTTL(ctx, key).Val(); ttl < 50*time.Second || ttl > time.Minute {
				t.Errorf("%s lives for %v, want a minute", key, ttl)
			}
		}
	}
	rate.KeepAlive = rate.Interval / 2
	wantError(t, java.SetRate(ctx, name, rate), "keepAliveTime")
}

func testPerClient(t *testing.T, java *redisson.Process, v traits, db *redis.Client, name string) {
	ctx := t.Context()
	want(t, true)(
		java.TrySetRate(ctx, name, redisson.Rate{Type: redisson.PerClient, Permits: 5, Interval: 10 * time.Second}),
	)
	want(t, true)(java.TryAcquire(ctx, name, 2))
	want(t, true)(java.TryAcquire(ctx, name, 1))
	want(t, redisson.Rate{Type: redisson.PerClient, Permits: 5, Interval: 10 * time.Second})(java.Config(ctx, name))
	if len(java.ID()) != 36 {
		t.Errorf("id %q", java.ID())
	}
	checkState(t, db, v, name, "{"+name+"}:value:"+java.ID(), "{"+name+"}:permits:"+java.ID())
	want(t, int64(0))(db.Exists(ctx, "{"+name+"}:value", "{"+name+"}:permits").Result())
}

func testWaiting(t *testing.T, java *redisson.Process, name string) {
	ctx := t.Context()
	ok(t, java.SetRate(ctx, name, redisson.Rate{Permits: 2, Interval: 2 * time.Second}))
	ok(t, java.Acquire(ctx, name, 2))
	want(t, false)(java.TryAcquire(ctx, name, 1))
	want(t, false)(java.TryAcquireTimeout(ctx, name, 1, 50*time.Millisecond))
	want(t, true)(java.TryAcquireTimeout(ctx, name, 1, 10*time.Second))

	// Commands run beside one that waits, and a call ends with its context.
	ok(t, java.SetRate(ctx, name, redisson.Rate{Permits: 2, Interval: time.Hour}))
	ok(t, java.Acquire(ctx, name, 2))
	waiting, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { failed <- java.Acquire(waiting, name, 1) }()
	time.Sleep(50 * time.Millisecond)
	want(t, int64(0))(java.Available(ctx, name))
	select {
	case err := <-failed:
		t.Errorf("acquire from an empty limiter returned: %v", err)
	default:
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled acquire: %v", err)
		}
	}
	cancel()

	// A blocked run that never gets anything is given up, and says so.
	result, err := java.Run(
		ctx, name, redisson.Work{Blocked: true, Threads: 2, For: time.Second, Grace: 100 * time.Millisecond},
	)
	ok(t, err)
	if result.Unfinished != 2 || len(result.Grants) != 0 {
		t.Errorf("%d unfinished, %d grants; want 2 and 0", result.Unfinished, len(result.Grants))
	}
	// A run on a limiter without a rate reports what Redisson says.
	result, err = java.Run(ctx, name+" missing", redisson.Work{For: time.Second})
	ok(t, err)
	if len(result.Faults) == 0 {
		t.Error("no faults in a run without a rate")
	} else {
		wantError(t, result.Faults[0], "RateLimiter is not initialized")
	}
}

func testRelease(t *testing.T, java *redisson.Process, v traits, name string) {
	ctx := t.Context()
	want(t, true)(java.TrySetRate(ctx, name, redisson.Rate{Permits: 5, Interval: time.Hour}))
	want(t, true)(java.TryAcquire(ctx, name, 4))
	err := java.Release(ctx, name, 2)
	if !v.release {
		wantUnsupported(t, err)
		return
	}
	ok(t, err)
	want(t, int64(3))(java.Available(ctx, name))
	ok(t, java.Release(ctx, name, 0))
	wantError(t, java.Release(ctx, name, -1), "negative")
}

func testLife(t *testing.T, java *redisson.Process, v traits, db *redis.Client, name string) {
	ctx := t.Context()
	value, permits := "{"+name+"}:value", "{"+name+"}:permits"
	const none, missing = -1 * time.Millisecond, -2 * time.Millisecond
	between := func(what string, ttl time.Duration, err error, low, high time.Duration) {
		t.Helper()
		if err != nil || ttl < low || ttl > high {
			t.Errorf("%s: %v, %v; want %v to %v", what, ttl, err, low, high)
		}
	}

	want(t, false)(java.Exists(ctx, name))
	want(t, missing)(java.TTL(ctx, name))
	want(t, true)(java.TrySetRate(ctx, name, redisson.Rate{Permits: 5, Interval: time.Hour}))
	want(t, true)(java.TryAcquire(ctx, name, 2))
	want(t, true)(java.Exists(ctx, name))
	want(t, true)(java.Touch(ctx, name))
	want(t, none)(java.TTL(ctx, name))

	want(t, true)(java.Expire(ctx, name, time.Minute))
	ttl, err := java.TTL(ctx, name)
	between("expire", ttl, err, 50*time.Second, time.Minute)
	for _, key := range []string{value, permits} {
		ttl, err := db.PTTL(ctx, key).Result()
		between(key, ttl, err, 50*time.Second, time.Minute)
	}
	want(t, true)(java.ExpireAt(ctx, name, time.Now().Add(2*time.Minute)))
	ttl, err = java.TTL(ctx, name)
	between("expireAt", ttl, err, 110*time.Second, 2*time.Minute)

	greater, err := java.ExpireIf(ctx, name, 3*time.Minute, redisson.IfGreater)
	at, atErr := java.ExpireTime(ctx, name)
	if v.expireIf {
		want(t, true)(greater, err)
		ok(t, atErr)
		between("getExpireTime", time.Until(time.UnixMilli(at)), nil, 170*time.Second, 3*time.Minute)
		want(t, false)(java.ExpireIf(ctx, name, 3*time.Minute, redisson.IfNotSet))
		want(t, true)(java.ExpireIf(ctx, name, 3*time.Minute, redisson.IfSet))
		want(t, true)(java.ExpireIf(ctx, name, time.Minute, redisson.IfLess))
	} else {
		wantUnsupported(t, err)
		wantUnsupported(t, atErr)
	}
	want(t, true)(java.ClearExpire(ctx, name))
	want(t, none)(java.TTL(ctx, name))
	want(t, time.Duration(-1))(db.PTTL(ctx, value).Result())

	// Every version renames the config and leaves the state where it was.
	ok(t, java.Rename(ctx, name, name+" new"))
	want(t, false)(java.Exists(ctx, name))
	want(t, true)(java.Exists(ctx, name+" new"))
	want(t, int64(2))(db.Exists(ctx, value, permits).Result())
	want(t, int64(5))(java.Available(ctx, name+" new"))
	want(t, true)(java.RenameNX(ctx, name+" new", name))
	want(t, int64(3))(java.Available(ctx, name))

	want(t, true)(java.Delete(ctx, name))
	want(t, false)(java.Delete(ctx, name))
	want(t, int64(0))(db.Exists(ctx, name, value, permits).Result())
	want(t, true)(java.TrySetRate(ctx, name, redisson.Rate{Permits: 5, Interval: time.Hour}))
	want(t, true)(java.Unlink(ctx, name))
	want(t, false)(java.Exists(ctx, name))
}

// testNames sees that any name reaches Redis as it is, and which keys it gets.
func testNames(t *testing.T, java *redisson.Process, v traits, db *redis.Client, prefix string) {
	for _, name := range []string{
		"plain", "with blank", "100%", "a+b", "@tag", "ok", `"quoted"`, "line\nbreak\r", "nul\x00", "ünïcode €🙂",
		"{tag}rest", "a{b", "a{}b", "a}b",
	} {
		name = prefix + name
		want(t, true)(java.TrySetRate(t.Context(), name, redisson.Rate{Permits: 5, Interval: 10 * time.Second}))
		want(t, true)(java.TryAcquire(t.Context(), name, 1))
		value := "{" + name + "}:value"
		if strings.Contains(name, "{") {
			value = name + ":value"
		}
		if n := db.Exists(t.Context(), name, value).Val(); n != 2 {
			t.Errorf("%q: %d of config and value are there", name, n)
		}
	}
	if _, err := java.Available(t.Context(), "\xff"); err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("a name that Java can't have: %v", err)
	}
	_, err := java.Available(t.Context(), "")
	if v.version == "4.7.0" {
		t.Logf("the empty name: %v", err)
	}
}

func testErrors(t *testing.T, java *redisson.Process, name string) {
	ctx := t.Context()
	_, err := java.TryAcquire(ctx, name, 1)
	wantError(t, err, "RateLimiter is not initialized")
	wantError(t, java.Acquire(ctx, name, 1), "RateLimiter is not initialized")
	_, err = java.Available(ctx, name)
	wantError(t, err, "RateLimiter is not initialized")
	want(t, true)(java.TrySetRate(ctx, name, redisson.Rate{Permits: 5, Interval: time.Second}))
	_, err = java.TryAcquire(ctx, name, 6)
	wantError(t, err, "defined rate")
	_, err = java.TrySetRate(ctx, name, redisson.Rate{Type: "NO_SUCH", Permits: 5, Interval: time.Second})
	wantError(t, err, "NO_SUCH")

	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := java.Available(ended, name); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// TestTopologies connects in each way that the options offer.
func TestTopologies(t *testing.T) {
	t.Parallel()
	single, locked := redistest.Real(t), redistest.Real(t)
	ok(t, locked.Client().ConfigSet(t.Context(), "requirepass", "se/cret").Err())
	cluster, sentinel, tls := redistest.Cluster(t, 2), redistest.Sentinel(t, 1), redistest.RealTLS(t)

	for _, v := range matrix {
		if v.version != "3.13.6" && v.version != "4.7.0" { // the oldest and the newest ways to configure Redisson
			continue
		}
		for name, opts := range map[string][]redisson.Option{
			"single":   {redisson.Addr(single.Addr), redisson.Pool(4), redisson.CommandTimeout(time.Minute)},
			"password": {redisson.Addr("redis://:se%2Fcret@" + locked.Addr)},
			"user":     {redisson.Addr("redis://default:se%2Fcret@" + locked.Addr + "/3")},
			"cluster":  {redisson.Addr(cluster.Addrs()...), redisson.Cluster()},
			"sentinel": {redisson.Addr(sentinel.Addrs()...), redisson.Sentinel(redistest.MasterName)},
			"tls":      {redisson.Addr("rediss://" + tls.Addr), redisson.TrustAll()},
			"prefix":   {redisson.Addr(single.Addr), redisson.NamePrefix("mapped:")},
		} {
			t.Run(v.version+" "+name, func(t *testing.T) {
				t.Parallel()
				if name == "prefix" && !v.nameMapper {
					_, err := redisson.Open(t.Context(), v.version, opts...)
					wantUnsupported(t, err)
					return
				}
				java := redisson.Start(t, v.version, opts...)
				limiter := "jobs " + v.version + name
				want(t, true)(java.TrySetRate(t.Context(), limiter, redisson.Rate{Permits: 5, Interval: time.Hour}))
				want(t, true)(java.TryAcquire(t.Context(), limiter, 2))
				want(t, int64(3))(java.Available(t.Context(), limiter))
				if name == "user" {
					want(t, int64(1))(
						locked.Client(func(o *redis.Options) { o.Password, o.DB = "se/cret", 3 }).Exists(t.Context(),
							limiter).Result(),
					)
				}
				if name == "prefix" {
					want(t, int64(2))(single.Client().Exists(t.Context(), "mapped:"+limiter,
						"{mapped:"+limiter+"}:value").Result())
				}
			})
		}
	}
}

// TestProcessEnds sees what callers get when their JVM goes away, and that it does go.
func TestProcessEnds(t *testing.T) {
	t.Parallel()
	r := redistest.Real(t)
	java := redisson.Start(t, "4.7.0", redisson.Addr(r.Addr))
	ok(t, java.SetRate(t.Context(), "x", redisson.Rate{Permits: 1, Interval: time.Hour}))
	ok(t, java.Acquire(t.Context(), "x", 1))
	failed := make(chan error)
	go func() { failed <- java.Acquire(t.Context(), "x", 1) }()
	time.Sleep(200 * time.Millisecond)
	begin := time.Now()
	ok(t, java.Close())
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a call under way got %v", err)
	}
	if _, err := java.Available(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("a call after that got %v", err)
	}
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("Close took %v", took)
	}

	crashed := redisson.Start(t, "4.7.0", redisson.Addr(r.Addr))
	process, err := os.FindProcess(crashed.Pid())
	ok(t, err)
	ok(t, process.Kill())
	deadline := time.Now().Add(5 * time.Second)
	for {
		if _, err = crashed.Available(t.Context(), "x"); err != nil &&
			strings.Contains(err.Error(), "has ended (signal: killed)") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after a crash: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestLogOfTheJVM sees that what the JVM logs does not get among the answers.
func TestLogOfTheJVM(t *testing.T) {
	t.Parallel()
	r := redistest.Real(t)
	java := redisson.Start(t, "4.7.0", redisson.Addr(r.Addr), redisson.JVM("-Xlog:gc+init"))
	ok(t, java.SetRate(t.Context(), "x", redisson.Rate{Permits: 1, Interval: time.Hour}))
	ok(t, java.Acquire(t.Context(), "x", 1))
}

// TestCannotConnect sees that a server that is not there is an error of the start.
func TestCannotConnect(t *testing.T) {
	t.Parallel()
	for _, version := range closely {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			_, err := redisson.Open(t.Context(), version, redisson.Addr(redistest.Nowhere(t)))
			wantError(t, err, "onnect")
		})
	}
}

// TestCommandLine runs the harness once for one command.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	r := redistest.Real(t)
	for _, try := range []struct {
		words []string
		out   string
		fails bool
	}{
		{[]string{"trysetrate", "a%20b", "OVERALL", "5", "1000"}, "ok true\n", false},
		{[]string{"config", "a%20b"}, "ok OVERALL 5 1000\n", false},
		{[]string{"version"}, "ok 3.17.5\n", false},
		{[]string{"release", "x", "1"}, "error unsupported ", true},
		{[]string{"tryacquire", "x"}, "error java.lang.IllegalArgumentException missing: a number of permits", true},
		{[]string{"available", "x", "1"}, "error ", true},
		{[]string{"no-such"}, "error ", true},
	} {
		cmd, err := redisson.Command(t.Context(), "3.17.5",
			append([]string{"--redis", "redis://" + r.Addr}, try.words...)...)
		ok(t, err)
		out, err := cmd.Output()
		if !strings.HasPrefix(string(out), try.out) || (err != nil) != try.fails {
			t.Errorf("%q: %q, %v; want %q", try.words, out, err, try.out)
		}
	}
}

// TestBuildTogether has several builds at once find out that there is nothing to do, quickly.
func TestBuildTogether(t *testing.T) {
	begin := time.Now()
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if err := redisson.Build(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestBuildSaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	err := redisson.Build(t.Context(), "4.7.0")
	if err == nil || !strings.Contains(err.Error(), "apt-get install openjdk-17-jdk-headless maven") {
		t.Errorf("without Java: %v", err)
	}
	if err := redisson.Build(t.Context(), "../x"); err == nil {
		t.Error("../x is no version")
	}
}

// Helpers.

// want checks the result of a call: want(t, 3)(java.Available(ctx, name)).
func want[T comparable](t *testing.T, want T) func(T, error) {
	t.Helper()
	return func(got T, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("failed: %v", err)
		} else if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("failed: %v", err)
	}
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	var failure *redisson.Error
	if !errors.As(err, &failure) || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v, want Redisson's that says %q", err, part)
	}
}

func wantUnsupported(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, redisson.ErrUnsupported) {
		t.Errorf("error %v, want unsupported", err)
	}
}
