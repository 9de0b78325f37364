package rratelimiter

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/lua"
)

// A rig is a client of a server, with a clock that the test moves, and with direct access to the keys.
type rig struct {
	t      *testing.T
	server *redistest.Server
	rdb    *redis.Client
	client *Client
	calls  atomic.Int64 // scripts that the client ran

	mu sync.Mutex
	at time.Time
}

func newRig(t *testing.T, s *redistest.Server, opts ...Option) *rig {
	r := &rig{t: t, server: s, rdb: s.Client(), at: time.Now().Truncate(time.Millisecond)}
	r.client = NewClient(s.Client(), append([]Option{WithClientID("me"), WithClock(r.now), WithCallTimeout(20 * time.Second)}, opts...)...)
	r.client.core.Topology().Redis().(*redis.Client).AddHook(counting{&r.calls})
	return r
}

// counting is a hook that counts script calls.
type counting struct{ n *atomic.Int64 }

func (c counting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counting) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c counting) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

func (r *rig) ms() int64 { return r.now().UnixMilli() }

func (r *rig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(d)
}

func (r *rig) limiter(name string, opts ...LimiterOption) *Limiter {
	return r.client.RateLimiter(name, opts...)
}

// must stops the test if a command that prepares or inspects the state fails.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) setRate(l *Limiter, rate Rate, opts ...SetOption) {
	r.t.Helper()
	r.must(l.SetRate(r.t.Context(), rate, opts...))
}

// try is TryAcquire; an error fails the test.
func (r *rig) try(l *Limiter, n int64) bool {
	r.t.Helper()
	ok, err := l.TryAcquire(r.t.Context(), n)
	r.must(err)
	return ok
}

// free is AvailablePermits; an error fails the test.
func (r *rig) free(l *Limiter) int64 {
	r.t.Helper()
	n, err := l.AvailablePermits(r.t.Context())
	r.must(err)
	return n
}

func (r *rig) release(l *Limiter, n int64) int64 {
	r.t.Helper()
	back, err := l.Release(r.t.Context(), n)
	r.must(err)
	return back
}

// config writes fields of the configuration directly.
func (r *rig) config(l *Limiter, fields ...string) {
	r.t.Helper()
	if len(fields) > 0 {
		r.must(r.rdb.HSet(r.t.Context(), l.core.Key(), fields).Err())
	}
}

// set writes the free permits directly.
func (r *rig) set(l *Limiter, value string) {
	r.t.Helper()
	r.must(r.rdb.Set(r.t.Context(), l.core.Keys()[keys.Value], value, 0).Err())
}

// add writes records directly, all with the same time in ms.
func (r *rig) add(l *Limiter, at int64, members ...string) {
	r.t.Helper()
	all := make([]redis.Z, len(members))
	for i, member := range members {
		all[i] = redis.Z{Score: float64(at), Member: member}
	}
	for page := range slices.Chunk(all, 5000) {
		r.must(r.rdb.ZAdd(r.t.Context(), l.core.Keys()[keys.Permits], page...).Err())
	}
}

// many returns n members of one permit each.
func many(n int) []string {
	members := make([]string, n)
	for i := range members {
		members[i] = memberOf(fmt.Sprintf("%08d", i), 1)
	}
	return members
}

// A stored is a record as Redis holds it.
type stored struct {
	Member string
	Score  float64
}

// members returns the records, oldest first.
func (r *rig) members(l *Limiter) []stored { return r.membersAt(l.core.Keys()[keys.Permits]) }

func (r *rig) membersAt(key string) []stored {
	r.t.Helper()
	all, err := r.rdb.ZRangeWithScores(r.t.Context(), key, 0, -1).Result()
	r.must(err)
	records := make([]stored, len(all))
	for i, z := range all {
		records[i] = stored{z.Member.(string), z.Score}
	}
	return records
}

func (r *rig) wipe() {
	r.t.Helper()
	r.must(r.rdb.FlushDB(r.t.Context()).Err())
}

// same compares the result of State; the TTL may be a little shorter.
func (r *rig) same(l *Limiter, want State) {
	r.t.Helper()
	got, err := l.State(r.t.Context())
	r.must(err)
	if want.TTL > 0 && got.TTL > 0 && got.TTL <= want.TTL && got.TTL > want.TTL-30*time.Second {
		got.TTL = want.TTL
	}
	if got.Oldest.Equal(want.Oldest) {
		got.Oldest = want.Oldest
	}
	if got.Newest.Equal(want.Newest) {
		got.Newest = want.Newest
	}
	if got != want {
		r.t.Errorf("the state of %q is\n%+v, want\n%+v", l.Name(), got, want)
	}
}

// dump returns the content of the server by key: the raw bytes, and whether there is a TTL.
func (r *rig) dump() map[string]string {
	r.t.Helper()
	ctx := r.t.Context()
	keys, err := r.rdb.Keys(ctx, "*").Result()
	r.must(err)
	all := map[string]string{}
	for _, key := range keys {
		kind := r.rdb.Type(ctx, key).Val()
		var content any
		switch kind {
		case "string":
			content = r.rdb.Get(ctx, key).Val()
		case "hash":
			content = r.rdb.HGetAll(ctx, key).Val()
		case "zset":
			content = r.membersAt(key)
		case "list":
			content = r.rdb.LRange(ctx, key, 0, -1).Val()
		case "set":
			members := r.rdb.SMembers(ctx, key).Val()
			slices.Sort(members)
			content = members
		default:
			r.t.Fatalf("%q is a %s", key, kind)
		}
		bytes, err := r.rdb.Dump(ctx, key).Result() // the embedded server supports it for strings alone
		if err != nil {
			bytes = ""
		}
		all[key] = fmt.Sprintf("%s %q %x expires: %v", kind, content, bytes, r.rdb.PTTL(ctx, key).Val() > 0)
	}
	return all
}

func (r *rig) unchanged(before map[string]string, what string) {
	r.t.Helper()
	if after := r.dump(); !reflect.DeepEqual(before, after) {
		r.t.Errorf("%s changed the keys: from\n%v to\n%v", what, before, after)
	}
}

// life checks the TTLs of keys, with a tolerance for the time since they were set; 0 is none, -1 is no key.
func (r *rig) life(want time.Duration, keys ...string) {
	r.t.Helper()
	for _, key := range keys {
		got := r.rdb.PTTL(r.t.Context(), key).Val()
		switch {
		case want == 0 && got != -1, want == -1 && got != -2, want > 0 && (got > want || got < want-30*time.Second):
			r.t.Errorf("%q has a TTL of %v, want %v", key, got, want)
		}
	}
}

func TestScriptsAreSentAgainAfterTheServerForgotThem(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("{rl}", WithRate(PerMinute(100)))
		for method, call := range everyMethod(r.client, l) {
			r.setRate(l, PerMinute(100))
			r.must(r.rdb.ScriptFlush(t.Context()).Err())
			if err := call(t.Context()); err != nil {
				t.Errorf("%s after a flush: %v", method, err)
			}
		}
		r.wipe()
		r.setRate(l, PerMinute(100))
		r.must(r.rdb.ScriptFlush(t.Context()).Err())
		for range 2 {
			if !r.try(l, 1) {
				t.Fatal("not granted")
			}
		}
		r.same(l, State{Rate: PerMinute(100), Available: 98, Used: 2, Records: 2, Oldest: r.now(), Newest: r.now(), Consistent: true})
	})
}

// TestAFullServerLeavesNothingHalfWritten makes a Redis without memory refuse the first write of every operation. Redis
// does not refuse later writes of the same script, so only the first one matters.
func TestAFullServerLeavesNothingHalfWritten(t *testing.T) {
	s := redistest.Real(t)
	ctx := t.Context()
	partly := func(r *rig, l *Limiter) { // expired, live, and free permits
		r.config(l, "rate", "20", "interval", "60000", "type", "0")
		r.set(l, "10")
		r.add(l, r.ms()-70000, memberOf("expired1", 2), memberOf("expired2", 1))
		r.add(l, r.ms()-1000, memberOf("living01", 4))
		r.add(l, r.ms(), memberOf("living02", 3))
	}
	full := func(r *rig, l *Limiter) { // nothing is free
		partly(r, l)
		r.must(r.rdb.ZRemRangeByScore(ctx, l.core.Keys()[keys.Permits], "-inf", fmt.Sprint(r.ms()-60000)).Err())
		r.add(l, r.ms()-500, memberOf("living03", 13))
		r.set(l, "0")
	}
	tests := []struct {
		name    string
		prepare func(*rig, *Limiter)
		call    func(r *rig, l *Limiter) error
	}{
		{"acquire", partly, func(_ *rig, l *Limiter) error { _, err := l.TryAcquire(ctx, 2); return err }},
		{"acquire what must wait", partly, func(_ *rig, l *Limiter) error { _, err := l.TryAcquire(ctx, 20); return err }},
		{"acquire up to", partly, func(_ *rig, l *Limiter) error { _, err := l.AcquireUpTo(ctx, 100); return err }},
		{"acquire, a record each", partly, func(r *rig, _ *Limiter) error {
			_, err := r.limiter("{rl}", WithRecordPerRequest()).TryAcquire(ctx, 2)
			return err
		}},
		{"acquire and set the rate", func(*rig, *Limiter) {}, func(r *rig, _ *Limiter) error {
			_, err := r.limiter("{rl}", WithRate(PerSecond(5))).TryAcquire(ctx, 2)
			return err
		}},
		{"acquire and enforce the rate", partly, func(r *rig, _ *Limiter) error {
			_, err := r.limiter("{rl}", WithEnforcedRate(PerSecond(5))).TryAcquire(ctx, 2)
			return err
		}},
		{"available", partly, func(_ *rig, l *Limiter) error { _, err := l.AvailablePermits(ctx); return err }},
		{"available without value", func(r *rig, l *Limiter) {
			partly(r, l)
			r.must(r.rdb.Del(ctx, l.core.Keys()[keys.Value]).Err())
		}, func(_ *rig, l *Limiter) error { _, err := l.AvailablePermits(ctx); return err }},
		{"release a record", full, func(_ *rig, l *Limiter) error { _, err := l.Release(ctx, 4); return err }},
		{"release part of a record", full, func(_ *rig, l *Limiter) error { _, err := l.Release(ctx, 1); return err }},
		{"release after expiring", partly, func(_ *rig, l *Limiter) error { _, err := l.Release(ctx, 5); return err }},
		{"set the rate", partly, func(_ *rig, l *Limiter) error { return l.SetRate(ctx, PerSecond(3)) }},
		{"set the rate, keep", partly, func(_ *rig, l *Limiter) error { return l.SetRate(ctx, PerHour(30), KeepState()) }},
		{"update the rate", partly, func(_ *rig, l *Limiter) error { _, err := l.UpdateRate(ctx, PerHour(30)); return err }},
		{"try to set the rate", func(*rig, *Limiter) {}, func(_ *rig, l *Limiter) error { _, err := l.TrySetRate(ctx, PerHour(30)); return err }},
		{"allow all", func(r *rig, l *Limiter) {
			partly(r, l)
			partly(r, r.limiter("{rl}2"))
		}, func(r *rig, l *Limiter) error { _, err := r.client.AllowAll(ctx, 2, l, r.limiter("{rl}2")); return err }},
		{"allow all, refused", func(r *rig, l *Limiter) {
			partly(r, l)
			full(r, r.limiter("{rl}2"))
		}, func(r *rig, l *Limiter) error { _, err := r.client.AllowAll(ctx, 2, l, r.limiter("{rl}2")); return err }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("{rl}")
			test.prepare(r, l)
			before := r.dump()
			r.must(r.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
			err := test.call(r, l)
			r.must(r.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
			if !redis.HasErrorPrefix(err, "OOM") || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%v, want the error of Redis (OOM)", err)
			}
			r.unchanged(before, "a call that failed")
			if err := test.call(r, l); err != nil {
				t.Errorf("with memory again: %v", err)
			}
		})
	}
	t.Run("what writes nothing new goes through whole", func(t *testing.T) {
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("{rl}")
		full(r, l)
		r.set(l, "20") // as Redisson's release leaves it
		r.must(r.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
		back, err := l.Release(ctx, 6)
		r.must(r.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
		if back != 6 || err != nil {
			t.Fatalf("released %d, %v", back, err)
		}
		r.same(l, State{Rate: PerMinute(20), Available: 20, Used: 14, Records: 2, Oldest: r.now().Add(-500e6), Newest: r.now()})
	})
}

func TestStateLivesAsLongAsTheConfiguration(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		for method, call := range map[string]func(*Limiter) error{
			"TryAcquire":       func(l *Limiter) error { _, err := l.TryAcquire(ctx, 1); return err },
			"refused":          func(l *Limiter) error { _, err := l.TryAcquire(ctx, 5); return err },
			"AcquireUpTo":      func(l *Limiter) error { _, err := l.AcquireUpTo(ctx, 3); return err },
			"AvailablePermits": func(l *Limiter) error { _, err := l.AvailablePermits(ctx); return err },
			"Release":          func(l *Limiter) error { _, err := l.Release(ctx, 1); return err },
			"AllowAll":         func(l *Limiter) error { _, err := l.client.AllowAll(ctx, 1, l); return err },
			"SetRate, keep":    func(l *Limiter) error { return l.SetRate(ctx, PerMinute(6), KeepState()) },
		} {
			for _, ttl := range []time.Duration{0, 2 * time.Minute} {
				r := newRig(t, s)
				r.wipe()
				l := r.limiter("rl")
				r.setRate(l, PerMinute(5))
				r.try(l, 3)
				if ttl > 0 {
					r.must(r.rdb.PExpire(ctx, "rl", ttl).Err())
				}
				if err := call(l); err != nil {
					t.Errorf("%s: %v", method, err)
				}
				r.life(ttl, "rl", "{rl}:value", "{rl}:permits")
			}
		}

		// A value that is written again gets the same TTL.
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.setRate(l, PerMinute(5))
		r.must(r.rdb.PExpire(ctx, "rl", time.Minute).Err())
		if n := r.free(l); n != 5 {
			t.Errorf("%d permits are free", n)
		}
		r.life(time.Minute, "rl", "{rl}:value")
		r.setRate(l, PerMinute(5))
		r.life(time.Minute, "rl") // as with Redisson

		// An invalid keep-alive counts as none.
		for _, keep := range []string{"-5", "nan"} {
			r.wipe()
			r.config(l, "rate", "5", "interval", "60000", "type", "0", "keepAliveTime", keep)
			r.must(r.rdb.PExpire(ctx, "rl", time.Minute).Err())
			r.try(l, 1)
			r.life(time.Minute, "rl", "{rl}:value", "{rl}:permits")
			r.same(l, State{Rate: PerMinute(5), Available: 4, Used: 1, Records: 1, Oldest: r.now(), Newest: r.now(), TTL: time.Minute, Consistent: true})
		}
	})
}

func TestKeepAliveRenewsAllThreeKeys(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		ctx := t.Context()
		l := r.limiter("rl")
		keys := []string{"rl", "{rl}:value", "{rl}:permits"}
		rate := Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour}
		if set, err := l.TrySetRate(ctx, rate); !set || err != nil {
			t.Fatal(set, err)
		}
		r.life(time.Hour, "rl")
		for _, use := range []struct {
			name string
			call func() error
		}{
			{"granted", func() error { _, err := l.TryAcquire(ctx, 5); return err }},
			{"refused", func() error { _, err := l.TryAcquire(ctx, 1); return err }},
			{"released", func() error { _, err := l.Release(ctx, 1); return err }},
			{"in part", func() error { _, err := l.AcquireUpTo(ctx, 3); return err }},
			{"all", func() error { _, err := r.client.AllowAll(ctx, 1, l); return err }},
			{"rate set, state kept", func() error { return l.SetRate(ctx, rate, KeepState()) }},
		} {
			for _, key := range keys {
				r.rdb.PExpire(ctx, key, time.Minute)
			}
			if err := use.call(); err != nil {
				t.Errorf("%s: %v", use.name, err)
			}
			r.life(time.Hour, keys...)
		}
		for _, look := range []func() error{
			func() error { _, err := l.AvailablePermits(ctx); return err },
			func() error { _, err := l.State(ctx); return err },
			func() error { _, err := l.Config(ctx); return err },
		} {
			r.must(r.rdb.PExpire(ctx, "rl", time.Minute).Err())
			r.must(look())
			r.life(time.Minute, "rl") // reading does not extend the TTL
		}

		// Setting a rate without keep-alive removes the TTLs, and the keep-alive from the configuration.
		for _, opts := range [][]SetOption{nil, {KeepState()}} {
			r.setRate(l, rate, opts...)
			r.try(l, 1)
			r.setRate(l, PerMinute(5), opts...)
			r.try(l, 1)
			r.life(0, keys...)
			if keep := r.rdb.HGet(ctx, "rl", "keepAliveTime").Val(); keep != "0" {
				t.Errorf("the keep-alive is %q, want 0", keep)
			}
		}
		// A TTL that was set otherwise stays.
		r.must(r.rdb.PExpire(ctx, "rl", time.Minute).Err())
		r.setRate(l, PerMinute(6), KeepState())
		r.life(time.Minute, keys...)
	})
}

func TestAClientsOwnPairLeavesByItself(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		own := []string{"{rl}:value:me", "{rl}:permits:me"}
		for _, test := range []struct {
			name      string
			keepAlive time.Duration
			ttl       time.Duration // of the configuration
			want      time.Duration
		}{
			{"for ever", 0, 0, 10*time.Second + time.Minute},
			{"short configuration", 0, 65 * time.Second, 65 * time.Second},
			{"long configuration", 0, time.Hour, 70 * time.Second},
			{"short keep-alive", 65 * time.Second, 0, 65 * time.Second},
			{"long keep-alive", time.Hour, 0, 70 * time.Second},
		} {
			t.Run(test.name, func(t *testing.T) {
				r := newRig(t, s)
				r.wipe()
				l := r.limiter("rl")
				r.setRate(l, Rate{Type: PerClient, Permits: 5, Interval: 10 * time.Second, KeepAlive: test.keepAlive})
				if test.ttl > 0 {
					r.must(r.rdb.PExpire(ctx, "rl", test.ttl).Err())
				}
				if n := r.free(l); n != 5 {
					t.Fatalf("%d permits are free", n)
				}
				r.life(test.want, own[0])
				for range 2 {
					r.try(l, 2)
					r.life(test.want, own...)
					r.rdb.PExpire(ctx, own[0], 5*time.Second)
					r.rdb.PExpire(ctx, own[1], 5*time.Second)
				}
				r.release(l, 1)
				r.life(test.want, own...)
				r.setRate(l, Rate{Type: PerClient, Permits: 6, Interval: 10 * time.Second, KeepAlive: test.keepAlive}, KeepState())
				r.life(test.want, own...)
				r.same(l, State{
					Rate:      Rate{Type: PerClient, Permits: 6, Interval: 10 * time.Second, KeepAlive: test.keepAlive},
					Available: 3, Used: 3, Records: 2, Oldest: r.now(), Newest: r.now(), TTL: max(test.ttl, test.keepAlive), Consistent: true,
				})
				r.life(-1, "{rl}:value", "{rl}:permits")
			})
		}
	})
}

// expiredValues are values of the free permits beside n expired records of one permit each.
var expiredValues = map[string]func(n int) string{
	"value fine":    func(int) string { return "0" },
	"value missing": func(int) string { return "" },
	"value drifted": func(n int) string { return fmt.Sprint(n - 100) },
}

func TestExpiredRecordsLeaveInBatches(t *testing.T) {
	long(t)
	const n = 5000
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for name, value := range expiredValues {
			for _, live := range []int64{0, 10} {
				t.Run(fmt.Sprintf("%s, %d live", name, live), func(t *testing.T) {
					r := newRig(t, s)
					l := r.limiter("rl")
					prepare := func() {
						r.wipe()
						r.calls.Store(0)
						r.config(l, "rate", fmt.Sprint(n+live), "interval", "60000", "type", "0")
						if v := value(n); v != "" {
							r.set(l, v)
						}
						r.add(l, r.ms()-60000, many(n)...)
						if live > 0 {
							r.add(l, r.ms()-1000, memberOf("living01", uint32(live)))
						}
					}
					ends := State{Rate: PerMinute(n + live), Available: n, Used: live, Consistent: true}
					if live > 0 {
						ends.Records, ends.Oldest, ends.Newest = 1, r.now().Add(-time.Second), r.now().Add(-time.Second)
					}

					prepare()
					if !r.try(l, n) {
						t.Errorf("%d permits were not granted", n)
					}
					if calls := r.calls.Load(); calls < 3 || calls > 5 {
						t.Errorf("that took %d calls, with 2000 records each", calls)
					}
					prepare()
					if live > 0 && r.try(l, n+1) {
						t.Errorf("more than %d permits were granted", n)
					}
					for method, call := range map[string]func() (int64, error){
						"AvailablePermits": func() (int64, error) { return l.AvailablePermits(t.Context()) },
						"Release":          func() (int64, error) { return l.Release(t.Context(), 1) },
						"AcquireUpTo":      func() (int64, error) { return l.AcquireUpTo(t.Context(), n+1000) },
						"SetRate": func() (int64, error) {
							return 0, l.SetRate(t.Context(), PerMinute(n+live), KeepState())
						},
						"AllowAll": func() (int64, error) {
							results, err := r.client.AllowAll(t.Context(), n, l)
							if err == nil && !results[0].Allowed {
								err = errors.New("not allowed")
							}
							return 0, err
						},
					} {
						prepare()
						got, err := call()
						if err != nil {
							t.Errorf("%s: %v", method, err)
						}
						switch method {
						case "AvailablePermits":
							if got != n {
								t.Errorf("%d permits are free, want %d", got, n)
							}
							r.same(l, ends)
						case "SetRate":
							r.same(l, ends)
						case "Release":
							if got != min(live, 1) {
								t.Errorf("%d permits came back", got)
							}
						case "AcquireUpTo":
							if got < 1 || got > n {
								t.Errorf("%d permits were granted, want 1 to %d", got, n)
							}
						case "AllowAll":
							if free := r.free(l); free != 0 {
								t.Errorf("%d permits are free", free)
							}
						}
					}

					// A call stops removing records as soon as enough permits are free.
					prepare()
					if !r.try(l, 1) {
						t.Error("one permit was not granted")
					}
					if calls := r.calls.Load(); name == "value fine" && calls != 1 {
						t.Errorf("one permit took %d calls", calls)
					}
					if left := len(r.members(l)); name == "value fine" && left != n-2000+1+int(min(live, 1)) {
						t.Errorf("%d records are left after one call", left)
					}
				})
			}
		}
	})
}

// TestAMillionExpiredRecordsDontBlockRedis measures the slowest script; removing all records in one script would take a
// second.
func TestAMillionExpiredRecordsDontBlockRedis(t *testing.T) {
	const n = 1_000_000
	s := redistest.Real(t)
	r := newRig(t, s)
	ctx := t.Context()
	l := r.limiter("rl")
	old := r.ms() - 60000
	for from := 0; from < n; from += 10_000 {
		r.must(r.rdb.Eval(ctx, `
			for i = ARGV[2], ARGV[2] + 9999 do
				redis.call('ZADD', KEYS[1], ARGV[1] - i % 1000, '\8' .. string.format('%08d', i) .. '\1\0\0\0')
			end
			return 1`, []string{"seed"}, old, from).Err())
	}
	r.must(r.rdb.ConfigSet(ctx, "slowlog-max-len", "10000").Err())
	r.try(r.limiter("other", WithRate(PerSecond(1))), 1) // so that the server knows the script
	for name, value := range expiredValues {
		r.must(r.rdb.Copy(ctx, "seed", l.core.Keys()[keys.Permits], 0, true).Err())
		r.must(r.rdb.Del(ctx, l.core.Keys()[keys.Value]).Err())
		r.config(l, "rate", fmt.Sprint(n), "interval", "60000", "type", "0")
		if v := value(n); v != "" {
			r.set(l, v)
		}
		r.calls.Store(0)
		r.must(r.rdb.ConfigSet(ctx, "slowlog-log-slower-than", "20000").Err())
		r.must(r.rdb.Do(ctx, "slowlog", "reset").Err())
		if !r.try(l, 1) {
			t.Errorf("%s: one permit was not granted", name)
		}
		first := r.calls.Load()
		if !r.try(l, n-1) || r.try(l, 1) {
			t.Errorf("%s: not exactly %d permits were granted", name, n)
		}
		slow, err := r.rdb.SlowLogGet(ctx, -1).Result()
		r.must(err)
		r.must(r.rdb.ConfigSet(ctx, "slowlog-log-slower-than", "-1").Err())
		var over int
		var worst time.Duration
		for _, entry := range slow {
			if strings.HasPrefix(entry.Args[0], "eval") {
				over++
				worst = max(worst, entry.Duration)
			}
		}
		t.Logf("%s: %d calls for one permit, %d in all, %d slower than 20 ms, slowest %v", name, first, r.calls.Load(), over, worst)
		// A busy machine may stop any script for a while, but not many of them.
		if limit := int(r.calls.Load())/20 + 2; over > limit {
			t.Errorf("%s: %d of %d scripts took longer than 20 ms, the slowest %v", name, over, r.calls.Load(), worst)
		}
		if fewest := map[bool]int64{true: 1, false: n / 2000}[name == "value fine"]; first != fewest {
			t.Errorf("%s: one permit took %d calls, not %d", name, first, fewest)
		}
		r.same(l, State{Rate: PerMinute(n), Used: n, Records: 2, Oldest: r.now(), Newest: r.now(), Consistent: true})
	}
}

func TestARecordHoldsNoMoreThanFourBytes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, rate := range []string{"1000000000000000000", "9223372036854775807", "1000000000000000"} {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl")
			const most = 1_000_000_000_000_000
			r.config(l, "rate", rate, "interval", "60000", "type", "0")
			if got, err := l.AcquireUpTo(t.Context(), 10_000_000_000); got != 10_000_000_000 || err != nil {
				t.Fatal(got, err)
			}
			want := State{
				Rate: PerMinute(most), Available: most - 10_000_000_000, Used: 10_000_000_000, Records: 3,
				Oldest: r.now(), Newest: r.now(), Consistent: true,
			}
			r.same(l, want)
			var sizes []uint32
			ids := map[string]bool{}
			for _, m := range r.members(l) {
				got, err := UnpackRecord([]byte(m.Member))
				r.must(err)
				sizes = append(sizes, got.Permits)
				ids[string(got.ID)] = true
			}
			slices.Sort(sizes)
			if !slices.Equal(sizes, []uint32{1410065410, math.MaxUint32, math.MaxUint32}) || len(ids) != 3 {
				t.Errorf("the records have %v permits and %d ids", sizes, len(ids))
			}
			if !r.try(l, 5_000_000_000) {
				t.Error("TryAcquire of more than a record holds")
			}
			if back := r.release(l, 9_000_000_000); back != 9_000_000_000 {
				t.Errorf("%d came back", back)
			}
			if got := r.free(l); got != most-6_000_000_000 {
				t.Errorf("%d are free", got)
			}
			results, err := r.client.AllowAll(t.Context(), 6_000_000_000, l)
			if err != nil || !results[0].Allowed || results[0].Remaining != most-12_000_000_000 {
				t.Errorf("AllowAll: %+v, %v", results, err)
			}
			for _, n := range []int64{most + 1, math.MaxInt64} {
				if _, err := l.TryAcquire(t.Context(), n); !errors.Is(err, ErrExceedsRate) {
					t.Errorf("%d permits: %v, want ErrExceedsRate", n, err)
				}
			}
			r.advance(time.Minute)
			r.same(l, State{Rate: PerMinute(most), Available: most, Consistent: true})
			if got := r.free(l); got != most {
				t.Errorf("%d are free once all expired", got)
			}
		}
	})
}

// TestAFullValueOfTheLargestRateIsNoGarbage checks that the script accepts the value that it wrote itself.
func TestAFullValueOfTheLargestRateIsNoGarbage(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var seen seen
		r := newRig(t, s, WithObserver(&seen))
		l := r.limiter("rl")
		r.config(l, "rate", "1000000000000000", "interval", "60000", "type", "0")
		r.free(l)
		r.same(l, State{Rate: PerMinute(1e15), Available: 1e15, Consistent: true})
		if r.try(l, 1); seen.last(t, 1).Repaired != "" {
			t.Errorf("repaired: %q", seen.last(t, 1).Repaired)
		}
	})
}

func TestExactlyTheRateIsGranted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, PerMinute(10))
		before := r.dump()
		for name, call := range map[string]func() error{
			"TryAcquire":        func() error { _, err := l.TryAcquire(t.Context(), 11); return err },
			"Allow":             func() error { _, err := l.Allow(t.Context(), math.MaxInt64); return err },
			"Acquire":           func() error { return l.Acquire(t.Context(), 11) },
			"TryAcquireTimeout": func() error { _, err := l.TryAcquireTimeout(t.Context(), 11, time.Hour); return err },
			"AllowAll":          func() error { _, err := r.client.AllowAll(t.Context(), 11, l); return err },
		} {
			if err := call(); !errors.Is(err, ErrExceedsRate) || errors.Is(err, ErrOutcomeUnknown) {
				t.Errorf("%s of more than the rate: %v", name, err)
			}
		}
		r.must(r.rdb.Del(t.Context(), l.core.Keys()[keys.Value]).Err()) // the first call wrote it: all free, as without it
		r.unchanged(before, "asking for more than the rate")
		if !r.try(l, 10) || r.try(l, 1) {
			t.Error("not exactly ten were granted at once")
		}
		r.advance(time.Minute)
		for i := range 10 {
			if !r.try(l, 1) {
				t.Errorf("permit %d was not granted", i+1)
			}
		}
		if r.try(l, 1) {
			t.Error("eleven were granted")
		}
		r.same(l, State{Rate: PerMinute(10), Used: 10, Records: 10, Oldest: r.now(), Newest: r.now(), Consistent: true})
	})
}

func TestPermitsReturnAfterExactlyOneInterval(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, rate := range []Rate{PerSecond(3), {Type: PerClient, Permits: 3, Interval: 250 * time.Millisecond}, {Permits: 3, Interval: time.Millisecond}} {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl")
			r.setRate(l, rate)
			for range 3 {
				if !r.try(l, 3) {
					t.Fatalf("%v: not granted when the interval was over", rate)
				}
				granted := r.now()
				r.advance(rate.Interval - time.Millisecond)
				r.same(l, State{Rate: rate, Used: 3, Records: 1, Oldest: granted, Newest: granted, Consistent: true})
				result, err := l.Allow(t.Context(), 1)
				r.must(err)
				if want := (Result{Limit: 3, RetryAfter: time.Millisecond, ResetAfter: time.Millisecond}); result != want {
					t.Errorf("%v: one ms before: %+v, want %+v", rate, result, want)
				}
				r.advance(time.Millisecond)
				r.same(l, State{Rate: rate, Available: 3, Consistent: true})
			}
		}
	})
}

func TestRefusalsReturnWhenPermitsAreFree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, PerMinute(10))
		for range 5 {
			r.try(l, 2)
			r.advance(time.Second)
		}
		for n, want := range map[int64]time.Duration{1: 55, 2: 55, 3: 56, 6: 57, 10: 59} {
			result, err := l.Allow(t.Context(), n)
			r.must(err)
			if want := (Result{Limit: 10, RetryAfter: want * time.Second, ResetAfter: 59 * time.Second}); result != want {
				t.Errorf("%d permits: %+v, want %+v", n, result, want)
			}
		}
		// Beyond 512 records the time is a lower bound, but still positive.
		r.wipe()
		r.config(l, "rate", "600", "interval", "60000", "type", "0")
		r.set(l, "0")
		for i, member := range many(600) {
			r.add(l, r.ms()-59000+int64(i)*10, member)
		}
		for n, want := range map[int64]time.Duration{1: 1000, 512: 6110, 600: 6110} {
			result, err := l.Allow(t.Context(), n)
			r.must(err)
			if want := (Result{Limit: 600, RetryAfter: want * time.Millisecond, ResetAfter: 6990 * time.Millisecond}); result != want {
				t.Errorf("%d of 600 permits: %+v, want %+v", n, result, want)
			}
		}
	})
}

func TestReleaseGivesBackTheOldestFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, f := range formats {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl", WithRecordFormat(f))
			r.setRate(l, PerMinute(20))
			for _, n := range []int64{3, 4, 5} {
				r.try(l, n)
				r.advance(time.Second)
			}
			records := r.members(l)
			start := r.now().Add(-3 * time.Second)
			if back := r.release(l, 5); back != 5 {
				t.Errorf("%d came back, want 5", back)
			}
			r.same(l, State{Rate: PerMinute(20), Available: 13, Used: 7, Records: 2,
				Oldest: start.Add(time.Second), Newest: start.Add(2 * time.Second), Consistent: true})
			shrunk := records[1].Member[:len(records[1].Member)-4] + "\x02\x00\x00\x00"
			if got, want := r.members(l), []stored{{shrunk, records[1].Score}, records[2]}; !slices.Equal(got, want) {
				t.Errorf("%v: the records are %x, want %x", f, got, want)
			}
			if back := r.release(l, 100); back != 7 {
				t.Errorf("%d came back of 7", back)
			}
			r.same(l, State{Rate: PerMinute(20), Available: 20, Consistent: true})
			if back := r.release(l, 1); back != 0 {
				t.Errorf("%d came back of none", back)
			}
		}

		// Permits that still count are never dated earlier than their grants.
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.setRate(l, PerSecond(10))
		r.try(l, 5)
		r.advance(900 * time.Millisecond)
		r.try(l, 5)
		r.advance(50 * time.Millisecond)
		r.release(l, 5)
		r.advance(50 * time.Millisecond)
		if !r.try(l, 5) || r.try(l, 1) {
			t.Error("five used at 900 ms, five released: at 1000 ms not exactly five are free")
		}

		// Expired permits do not return twice.
		r.advance(time.Second)
		if back := r.release(l, 3); back != 0 {
			t.Errorf("%d came back of what had expired", back)
		}
		r.same(l, State{Rate: PerSecond(10), Available: 10, Consistent: true})
	})
}

func TestReleaseOfManyRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.config(l, "rate", "10000", "interval", "60000", "type", "0")
		r.set(l, "0")
		r.add(l, r.ms(), many(10000)...)
		if back := r.release(l, 9998); back != 9998 {
			t.Errorf("%d came back", back)
		}
		r.same(l, State{Rate: PerMinute(10000), Available: 9998, Used: 2, Records: 2, Oldest: r.now(), Newest: r.now(), Consistent: true})
		if back := r.release(l, math.MaxInt64); back != 2 {
			t.Errorf("%d came back", back)
		}
		r.same(l, State{Rate: PerMinute(10000), Available: 10000, Consistent: true})
	})
}

// TestAShrunkRecordKeepsOtherRecords has another record with the same bytes that the shrunk record would have.
func TestAShrunkRecordKeepsOtherRecords(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, prefix := range []string{"\x0812345678", "\x08\xff\xff\xff\xff\xff\xff\xff\xff", "abcd", "ab", "a\xff", "\xff", "a", ""} {
			r := newRig(t, s, WithCallTimeout(3*time.Second))
			r.wipe()
			l := r.limiter("rl")
			r.config(l, "rate", "20", "interval", "60000", "type", "0")
			r.set(l, "12")
			r.add(l, r.ms()-2000, prefix+"\x05\x00\x00\x00")
			r.add(l, r.ms()-1000, prefix+"\x03\x00\x00\x00")
			if back, err := l.Release(t.Context(), 2); back != 2 || err != nil {
				t.Fatalf("%x: released %d, %v", prefix, back, err)
			}
			r.same(l, State{Rate: PerMinute(20), Available: 14, Used: 6, Records: 2,
				Oldest: r.now().Add(-2 * time.Second), Newest: r.now().Add(-time.Second), Consistent: true})
		}
	})
}

func TestSetRateForgetsOrKeeps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		perClient := func(n int64) Rate { return Rate{Type: PerClient, Permits: n, Interval: time.Minute} }
		tests := []struct {
			name   string
			before Rate
			used   int64
			after  Rate
			keep   bool
			free   int64 // right after
			later  int64 // once the earlier grants have expired under the old rate; the new interval is longer
		}{
			{"forgets", PerMinute(10), 7, PerMinute(10), false, 10, 10},
			{"keeps the same", PerMinute(10), 7, PerMinute(10), true, 3, 10},
			{"keeps in more", PerMinute(10), 7, PerMinute(20), true, 13, 20},
			{"keeps in less", PerMinute(10), 7, PerMinute(5), true, 0, 5},
			{"keeps in as much", PerMinute(10), 7, PerMinute(7), true, 0, 7},
			{"keeps for longer", PerMinute(10), 7, PerHour(10), true, 3, 3},
			{"keeps for shorter", PerMinute(10), 7, PerSecond(10), true, 10, 10},
			{"forgets another type", PerMinute(10), 7, perClient(10), false, 10, 10},
			{"forgets another type, whatever is wanted", PerMinute(10), 7, perClient(10), true, 10, 10},
			{"keeps one client's", perClient(10), 7, perClient(12), true, 5, 12},
			{"forgets one client's", perClient(10), 7, perClient(12), false, 12, 12},
			{"forgets one client's for all", perClient(10), 7, PerMinute(12), true, 12, 12},
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				r := newRig(t, s)
				r.wipe()
				l := r.limiter("rl")
				r.setRate(l, test.before)
				r.try(l, test.used)
				other := NewClient(s.Client(), WithClientID("other"), WithClock(r.now)).RateLimiter("rl")
				r.try(other, 1)
				if test.before.Type == Overall {
					r.release(other, 1)
				}
				r.advance(time.Second)
				var opts []SetOption
				if test.keep {
					opts = append(opts, KeepState())
				}
				if updated, err := l.UpdateRate(t.Context(), test.after, opts...); !updated || err != nil {
					t.Fatal(updated, err)
				}
				if got, err := l.Config(t.Context()); got != test.after || err != nil {
					t.Errorf("the rate is %v, %v", got, err)
				}
				state, err := l.State(t.Context())
				r.must(err)
				if state.Available != test.free || !state.Consistent {
					t.Errorf("the state is %+v, want %d free", state, test.free)
				}
				if free := r.free(l); free != test.free {
					t.Errorf("%d are free, want %d", free, test.free)
				}
				if test.before.Type == PerClient && r.rdb.Exists(t.Context(), "{rl}:value:other", "{rl}:permits:other").Val() != 2 {
					t.Error("another client's state is gone")
				}
				if test.before.Type != test.after.Type {
					for _, key := range []string{"{rl}:permits", "{rl}:permits:me"} {
						if n := r.rdb.Exists(t.Context(), key).Val(); n != 0 {
							t.Errorf("%q is still there", key)
						}
					}
				}
				r.advance(time.Minute)
				if free := r.free(l); free != test.later {
					t.Errorf("a minute later %d are free, want %d", free, test.later)
				}
				if !r.try(l, test.later) || test.later < test.after.Permits && r.try(l, 1) {
					t.Errorf("a minute later not exactly %d were granted", test.later)
				}
			})
		}
	})
}

func TestKeptGrantsAboveTheNewRateReturnInOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, PerMinute(10))
		for range 5 {
			r.try(l, 2)
			r.advance(time.Second)
		}
		r.setRate(l, PerMinute(3), KeepState())
		r.advance(55 * time.Second) // the first two have returned, eight are live
		for i, want := range []int64{0, 0, 0, 1, 3, 3} {
			if free := r.free(l); free != want {
				t.Errorf("after %d records %d are free, want %d", i+1, free, want)
			}
			r.advance(time.Second)
		}
	})
}

// TestALoweredRateHoldsUnderLoad makes requests without a pause, so that there are always records.
func TestALoweredRateHoldsUnderLoad(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int64{20, 320} { // few records, and more than a refusal adds up
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl")
			r.setRate(l, PerMinute(n))
			r.config(l, "rate", fmt.Sprint(n))
			r.set(l, "0")
			for i, member := range many(int(n)) {
				r.add(l, r.ms()-60000+int64(i+1)*60000/n, member)
			}
			r.setRate(l, PerMinute(n/4), KeepState())
			var granted int64
			for range n {
				r.advance(time.Minute / time.Duration(n))
				got, err := l.AcquireUpTo(t.Context(), n)
				r.must(err)
				granted += got
				state, err := l.State(t.Context())
				r.must(err)
				if got > 0 && state.Used > n/4 {
					t.Fatalf("%d were granted, and %d live, of %d a minute", got, state.Used, n/4)
				}
				if !state.Consistent {
					t.Fatalf("the state is %+v", state)
				}
			}
			if granted != n/4 {
				t.Errorf("%d were granted in the first minute, want %d", granted, n/4)
			}
			// When the rate is raised again, no grant is forgotten.
			r.setRate(l, PerMinute(n/8), KeepState())
			r.setRate(l, PerMinute(n), KeepState())
			if free := r.free(l); free != n-n/4 {
				t.Errorf("raised again, %d are free, want %d", free, n-n/4)
			}
		}
	})
}

func TestExpireConditions(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		ctx := t.Context()
		l := r.limiter("rl")
		const none, short, long = time.Duration(0), 10 * time.Minute, 20 * time.Minute
		tests := []struct {
			had  time.Duration
			cond []ExpireCondition
			new  time.Duration
			want bool
		}{
			{none, nil, short, true}, {long, nil, short, true},
			{none, []ExpireCondition{IfNotSet}, short, true}, {long, []ExpireCondition{IfNotSet}, short, false},
			{none, []ExpireCondition{IfSet}, short, false}, {long, []ExpireCondition{IfSet}, short, true},
			{none, []ExpireCondition{IfGreater}, long, false}, {short, []ExpireCondition{IfGreater}, long, true},
			{long, []ExpireCondition{IfGreater}, short, false},
			{none, []ExpireCondition{IfLess}, short, true}, {long, []ExpireCondition{IfLess}, short, true},
			{short, []ExpireCondition{IfLess}, long, false},
		}
		for _, test := range tests {
			for _, absolute := range []bool{false, true} {
				r.wipe()
				r.setRate(l, PerMinute(5))
				r.try(l, 1)
				r.must(r.rdb.Set(ctx, l.core.Keys()[keys.ClientValue], "5", 0).Err())
				r.must(r.rdb.ZAdd(ctx, l.core.Keys()[keys.ClientPermits], redis.Z{Member: memberOf("12345678", 1)}).Err())
				if test.had > 0 {
					if done, err := l.Expire(ctx, test.had); !done || err != nil {
						t.Fatal(done, err)
					}
				}
				var done bool
				var err error
				if absolute {
					done, err = l.ExpireAt(ctx, time.Now().Add(test.new), test.cond...)
				} else {
					done, err = l.Expire(ctx, test.new, test.cond...)
				}
				if done != test.want || err != nil {
					t.Errorf("%v after %v with %v, absolute %v: %v, %v", test.new, test.had, test.cond, absolute, done, err)
				}
				want := test.had
				if test.want {
					want = test.new
				}
				r.life(want, l.core.Keys()...)
				ttl, err := l.TTL(ctx)
				if err != nil || ttl > want || ttl < want-30*time.Second {
					t.Errorf("TTL is %v, %v; want %v", ttl, err, want)
				}
				if cleared, err := l.ClearExpire(ctx); cleared != (want > 0) || err != nil {
					t.Errorf("clearing %v: %v, %v", want, cleared, err)
				}
				r.life(0, l.core.Key(), l.core.Keys()[keys.Value], l.core.Keys()[keys.Permits])
				r.life(2*time.Minute, l.core.Keys()[keys.ClientValue], l.core.Keys()[keys.ClientPermits])
			}
		}
		for _, ttl := range []time.Duration{0, -time.Hour} {
			r.setRate(l, PerMinute(5))
			r.try(l, 1)
			if done, err := l.Expire(ctx, ttl); !done || err != nil {
				t.Errorf("Expire(%v): %v, %v", ttl, done, err)
			}
			r.life(-1, l.core.Keys()...)
		}
		r.setRate(l, PerMinute(5))
		if done, err := l.ExpireAt(ctx, time.Now().Add(-time.Hour)); !done || err != nil {
			t.Errorf("ExpireAt a time that is over: %v, %v", done, err)
		}
		if there, err := l.Exists(ctx); there || err != nil {
			t.Errorf("the limiter is there: %v, %v", there, err)
		}
	})
}

func TestAClientsOwnPairLeavesAfterClearExpire(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, Rate{Type: PerClient, Permits: 5, Interval: 10 * time.Second})
		r.must(r.rdb.PExpire(t.Context(), "rl", time.Hour).Err())
		r.try(l, 1)
		if cleared, err := l.ClearExpire(t.Context()); !cleared || err != nil {
			t.Errorf("ClearExpire: %v, %v", cleared, err)
		}
		r.life(0, "rl")
		r.life(70*time.Second, "{rl}:value:me", "{rl}:permits:me")
	})
}

func TestTTLsAreNeitherLostNorOverflow(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl")
		r.setRate(l, PerMinute(5))
		for name, test := range map[string]struct {
			far  time.Time
			lost bool
		}{
			"year 3000": {time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC), false},
			"far":       {time.Unix(1<<60, 0), false},
			"long ago":  {time.Unix(-1<<60, 0), true},
		} {
			r.setRate(l, PerMinute(5))
			r.try(l, 1)
			if done, err := l.ExpireAt(t.Context(), test.far); !done || err != nil {
				t.Errorf("%s: %v, %v", name, done, err)
			}
			if there, err := l.Exists(t.Context()); there == test.lost || err != nil {
				t.Errorf("%s: it is there: %v, %v", name, there, err)
			}
			if !test.lost && !r.try(l, 1) {
				t.Errorf("%s: nothing is granted", name)
			}
		}
	})
}

// recorded is a redis client that records the arguments of the last command.
type recorded struct {
	Redis
	args *[]any
}

func (r recorded) Process(ctx context.Context, cmd redis.Cmder) error {
	*r.args = cmd.Args()
	return r.Redis.Process(ctx, cmd)
}

func TestAPositiveTTLIsNotRoundedToZero(t *testing.T) {
	var args []any
	l := NewClient(recorded{redistest.Embedded(t).Client(), &args}).RateLimiter("rl")
	for ttl, want := range map[time.Duration]int64{
		1: 1, 500 * time.Microsecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, math.MaxInt64: 9223372036855,
		0: 0, -1: 0, -time.Second: -1000,
	} {
		if _, err := l.Expire(t.Context(), ttl); err != nil || args[len(args)-2] != want {
			t.Errorf("Expire(%v): %v, %v; want %d ms", ttl, args, err, want)
		}
	}
}

func TestRenameTakesAllState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx := t.Context()
		for _, kind := range []RateType{Overall, PerClient} {
			r := newRig(t, s)
			r.wipe()
			from, to := r.limiter("from"), r.limiter("to")
			rate := Rate{Type: kind, Permits: 10, Interval: time.Minute}
			r.setRate(from, rate)
			r.try(from, 4)
			r.must(r.rdb.PExpire(ctx, "from", time.Hour).Err())
			r.advance(time.Second)
			r.try(from, 2)
			want, err := from.State(ctx)
			r.must(err)
			r.setRate(to, PerHour(3)) // sometimes of the other type, and so with other keys
			r.try(to, 3)

			before := r.dump()
			if done, err := from.RenameNX(ctx, "to"); done || err != nil {
				t.Errorf("RenameNX to a name that is taken: %v, %v", done, err)
			}
			if err := from.Rename(ctx, "from"); err != nil {
				t.Errorf("Rename to the same: %v", err)
			}
			if done, err := from.RenameNX(ctx, "from"); done || err != nil {
				t.Errorf("RenameNX to the same: %v, %v", done, err)
			}
			r.unchanged(before, "renaming to nothing new")

			if err := from.Rename(ctx, "to"); err != nil {
				t.Fatal(err)
			}
			r.same(to, State{want.Rate, 4, 6, 2, want.Oldest, want.Newest, time.Hour, true})
			if there, err := from.Exists(ctx); there || err != nil || r.rdb.DBSize(ctx).Val() != 3 {
				t.Errorf("the old limiter is there: %v, %v; %v", there, err, r.dump())
			}
			for name, err := range map[string]error{
				"Rename":   from.Rename(ctx, "to"),
				"RenameNX": func() error { _, err := from.RenameNX(ctx, "third"); return err }(),
			} {
				if !errors.Is(err, ErrNotInitialized) || !strings.Contains(err.Error(), `"from"`) {
					t.Errorf("%s of nothing: %v", name, err)
				}
			}
			if done, err := to.RenameNX(ctx, "third"); !done || err != nil {
				t.Errorf("RenameNX to a new name: %v, %v", done, err)
			}
			r.same(r.limiter("third"), State{want.Rate, 4, 6, 2, want.Oldest, want.Newest, time.Hour, true})
		}
	})
}

func TestRenameOntoItsOwnKeyIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		for name, onto := range map[string]string{"dup": "{dup}:value", "{two}x": "{two}x:permits", "own": "{own}:value:me"} {
			l := r.limiter(name)
			r.setRate(l, PerMinute(5))
			r.try(l, 2)
			before := r.dump()
			if err := l.Rename(t.Context(), onto); !errors.Is(err, ErrInvalidOption) {
				t.Errorf("Rename of %q to %q: %v", name, onto, err)
			}
			if _, err := l.RenameNX(t.Context(), onto); !errors.Is(err, ErrInvalidOption) {
				t.Errorf("RenameNX of %q to %q: %v", name, onto, err)
			}
			r.unchanged(before, "renaming to its own key")
		}
	})
}

// Keys of the new name that have another type belong to another program: they are neither replaced nor removed.
func TestRenameReplacesNoKeyOfAnotherProgram(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for at := range keys.Count {
			r := newRig(t, s)
			r.wipe()
			from, to := r.limiter("from"), r.limiter("to")
			r.setRate(from, PerMinute(5))
			r.try(from, 2)
			r.must(r.rdb.RPush(t.Context(), to.core.Keys()[at], "mine").Err())
			before := r.dump()
			err := from.Rename(t.Context(), "to")
			if !redis.HasErrorPrefix(err, "WRONGTYPE") || !strings.Contains(err.Error(), fmt.Sprintf("%q", to.core.Keys()[at])) {
				t.Errorf("Rename onto a list in %s: %v", to.core.Keys()[at], err)
			}
			renamed, err := from.RenameNX(t.Context(), "to")
			if renamed || (at == keys.Config) != (err == nil) {
				t.Errorf("RenameNX onto a list in %s: %v, %v", to.core.Keys()[at], renamed, err)
			}
			r.unchanged(before, "Rename")
		}
	})
}

func TestDeleteReportsKeysItKeeps(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.setRate(l, Rate{Type: PerClient, Permits: 5, Interval: time.Minute})
		r.try(l, 1)
		r.must(r.rdb.Set(t.Context(), "{rl}:permits", "mine", 0).Err())
		for _, removed := range []bool{true, false} {
			gone, err := l.Delete(t.Context())
			if gone != removed || !redis.HasErrorPrefix(err, "WRONGTYPE") || errors.Is(err, ErrOutcomeUnknown) ||
				!strings.Contains(err.Error(), `the key "{rl}:permits" is no sorted set`) {
				t.Errorf("%v, %v", gone, err)
			}
			if r.rdb.DBSize(t.Context()).Val() != 1 || r.rdb.Get(t.Context(), "{rl}:permits").Val() != "mine" {
				t.Errorf("the keys are %v", r.dump())
			}
		}
	})
}

// Redis frees a million records in the background, because the scripts use UNLINK.
func TestRecordsAreFreedInTheBackground(t *testing.T) {
	s := redistest.Real(t)
	r := newRig(t, s)
	l := r.limiter("rl")
	for what, remove := range map[string]func() error{
		"Delete":         func() error { _, err := l.Delete(t.Context()); return err },
		"Reset":          func() error { _, err := l.Reset(t.Context()); return err },
		"SetRate":        func() error { return l.SetRate(t.Context(), PerMinute(5)) },
		"a new type":     func() error { return l.SetRate(t.Context(), Rate{Type: PerClient, Permits: 5, Interval: time.Minute}) },
		"Rename over it": func() error { return r.limiter("other").Rename(t.Context(), "rl") },
	} {
		r.wipe()
		r.setRate(l, PerMinute(5))
		r.setRate(r.limiter("other"), PerMinute(5))
		r.try(l, 1)
		r.must(r.rdb.ConfigResetStat(t.Context()).Err())
		r.must(remove())
		calls := r.rdb.Info(t.Context(), "commandstats").Val()
		if strings.Contains(calls, "cmdstat_del:") || !strings.Contains(calls, "cmdstat_unlink:") || r.rdb.Exists(t.Context(), "{rl}:permits").Val() != 0 {
			t.Errorf("%s called\n%s", what, calls)
		}
	}
}

func newRing(t *testing.T) *redis.Ring {
	addrs := map[string]string{}
	for _, shard := range []string{"one", "two", "three"} {
		addrs[shard] = redistest.Embedded(t).Addr
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: addrs})
	t.Cleanup(func() { ring.Close() })
	return ring
}

func TestRenameOnARingLosesNothing(t *testing.T) {
	ctx := t.Context()
	c := NewClient(newRing(t))
	from := c.RateLimiter("from", WithRate(PerMinute(5)))
	if _, err := from.TryAcquire(ctx, 2); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		to := fmt.Sprint("to", i)
		if err := from.Rename(ctx, to); !errors.Is(err, ErrCrossSlotName) {
			t.Fatalf("Rename to %s: %v", to, err)
		}
		if _, err := from.RenameNX(ctx, to); !errors.Is(err, ErrCrossSlotName) {
			t.Fatalf("RenameNX to %s: %v", to, err)
		}
	}
	if err := from.Rename(ctx, "{from}:new"); err != nil {
		t.Fatal(err)
	}
	if n, err := c.RateLimiter("{from}:new").AvailablePermits(ctx); n != 3 || err != nil {
		t.Errorf("%d permits are free under the new name, %v", n, err)
	}
}

func TestClientsOnARing(t *testing.T) {
	c := NewClient(newRing(t), WithClientID("me"))
	for i := range 20 {
		l := c.RateLimiter(fmt.Sprint("rl", i), WithRate(Rate{Type: PerClient, Permits: 5, Interval: time.Minute}))
		if _, err := l.TryAcquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if ids, err := l.Clients(t.Context()); !slices.Equal(ids, []string{"me"}) || err != nil {
			t.Errorf("the clients of %s are %v, %v", l.Name(), ids, err)
		}
	}
}

func TestClientsOfAClusterThatHangs(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{silent.Addr().String()}})
	defer rdb.Close()
	started := time.Now()
	_, err = NewClient(rdb, WithCallTimeout(50*time.Millisecond)).RateLimiter("rl").Clients(t.Context())
	if took := time.Since(started); err == nil || took > time.Second {
		t.Errorf("the answer came after %v: %v", took, err)
	}
}

func TestOddNamesOverAPipelinedCluster(t *testing.T) {
	rdb, err := redistest.Cluster(t, 3).ClusterClient().AutoPipeline()
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	ctx := t.Context()
	l := NewClient(rdb, WithCallTimeout(20*time.Second)).RateLimiter("a{b")
	_, set := l.TrySetRate(ctx, PerMinute(5))
	_, deleted := l.Delete(ctx)
	for name, err := range map[string]error{"TrySetRate": set, "Delete": deleted} {
		if !errors.Is(err, ErrCrossSlotName) {
			t.Errorf("%s: %v, want ErrCrossSlotName", name, err)
		}
	}
}

func TestDeleteLeavesOtherClientsState(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		ctx := t.Context()
		rate := Rate{Type: PerClient, Permits: 10, Interval: time.Minute}
		l := r.limiter("rl", WithRate(rate))
		other := NewClient(s.Client(), WithClientID("other"), WithClock(r.now)).RateLimiter("rl")
		r.try(l, 3)
		r.try(other, 4)
		r.set(l, "7")
		clients, err := l.Clients(ctx)
		if !slices.Equal(clients, []string{"me", "other"}) || err != nil {
			t.Errorf("the clients are %v, %v", clients, err)
		}
		if gone, err := l.Delete(ctx); !gone || err != nil {
			t.Errorf("Delete: %v, %v", gone, err)
		}
		keys := slices.Sorted(slices.Values(r.rdb.Keys(ctx, "*").Val()))
		if want := []string{"{rl}:permits:other", "{rl}:value:other"}; !slices.Equal(keys, want) {
			t.Errorf("%v are left, want %v", keys, want)
		}
		if gone, err := l.Delete(ctx); gone || err != nil {
			t.Errorf("Delete again: %v, %v", gone, err)
		}
		if r.try(l, 10); r.free(other) != 6 {
			t.Errorf("another client has %d permits", r.free(other))
		}
	})
}

func TestClientsFindsTheirOwnNameAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		for _, name := range []string{"a*b", "a?b", "a[x]b", "axb", `a\b`} {
			for i, id := range []string{"one", "two:three", "{four}"} {
				all := keys.Names(name, id)
				if i != 1 {
					r.must(r.rdb.Set(t.Context(), all[keys.ClientValue], "1", 0).Err())
				}
				if i != 0 {
					r.must(r.rdb.ZAdd(t.Context(), all[keys.ClientPermits], redis.Z{Member: "m"}).Err())
				}
			}
		}
		r.must(r.rdb.Set(t.Context(), "{axb}:value:mine", "1", 0).Err())
		for _, name := range []string{"a*b", "a?b", "a[x]b", "axb", `a\b`} {
			want := []string{"one", "two:three", "{four}"}
			if name == "axb" {
				want = []string{"mine", "one", "two:three", "{four}"}
			}
			if ids, err := r.limiter(name).Clients(t.Context()); !slices.Equal(ids, want) || err != nil {
				t.Errorf("the clients of %q are %q, %v", name, ids, err)
			}
		}
		if ids, err := r.limiter("none").Clients(t.Context()); len(ids) != 0 || err != nil {
			t.Errorf("the clients without state are %q, %v", ids, err)
		}
	})
}

func TestStateOnlyReads(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		minute := PerMinute(20)
		tests := []struct {
			name    string
			value   string
			records map[string]int64 // ms ago
			want    State            // Oldest and Newest: ms ago, as time.UnixMilli
		}{
			{"fresh", "", nil, State{Available: 20, Consistent: true}},
			{"all free", "20", nil, State{Available: 20, Consistent: true}},
			{"drifted, no record", "19", nil, State{Available: 20}},
			{"live", "13", map[string]int64{memberOf("aaaaaaaa", 4): 1000, memberOf("bbbbbbbb", 3): 10},
				State{Available: 13, Used: 7, Records: 2, Oldest: time.UnixMilli(1000), Newest: time.UnixMilli(10), Consistent: true}},
			{"live and expired", "13", map[string]int64{memberOf("aaaaaaaa", 4): 60000, memberOf("bbbbbbbb", 3): 59999},
				State{Available: 17, Used: 3, Records: 1, Oldest: time.UnixMilli(59999), Newest: time.UnixMilli(59999), Consistent: true}},
			{"expired", "13", map[string]int64{memberOf("aaaaaaaa", 4): 60000, memberOf("bbbbbbbb", 3): 70000}, State{Available: 20, Consistent: true}},
			{"expired and drifted", "10", map[string]int64{memberOf("aaaaaaaa", 4): 60000, memberOf("bbbbbbbb", 3): 70000}, State{Available: 20}},
			{"expired and missing", "", map[string]int64{memberOf("aaaaaaaa", 4): 60000}, State{Available: 20}},
			{"too low", "10", map[string]int64{memberOf("aaaaaaaa", 4): 0},
				State{Available: 16, Used: 4, Records: 1, Oldest: time.UnixMilli(0), Newest: time.UnixMilli(0)}},
			{"released by Redisson", "20", map[string]int64{memberOf("aaaaaaaa", 4): 0},
				State{Available: 20, Used: 4, Records: 1, Oldest: time.UnixMilli(0), Newest: time.UnixMilli(0)}},
			{"missing", "", map[string]int64{memberOf("aaaaaaaa", 4): 0},
				State{Available: 16, Used: 4, Records: 1, Oldest: time.UnixMilli(0), Newest: time.UnixMilli(0)}},
			{"in the future", "16", map[string]int64{memberOf("aaaaaaaa", 4): -5000},
				State{Available: 16, Used: 4, Records: 1, Oldest: time.UnixMilli(-5000), Newest: time.UnixMilli(-5000), Consistent: true}},
		}
		for _, test := range tests {
			for _, kind := range []RateType{Overall, PerClient} {
				r := newRig(t, s)
				r.wipe()
				l := r.limiter("rl")
				value, permits := keys.Value, keys.Permits
				if kind == PerClient {
					value, permits = keys.ClientValue, keys.ClientPermits
				}
				r.config(l, "rate", "20", "interval", "60000", "type", fmt.Sprint(int(kind)))
				if test.value != "" {
					r.must(r.rdb.Set(t.Context(), l.core.Keys()[value], test.value, 0).Err())
				}
				for member, ago := range test.records {
					r.must(r.rdb.ZAdd(t.Context(), l.core.Keys()[permits], redis.Z{Score: float64(r.ms() - ago), Member: member}).Err())
				}
				want := test.want
				want.Rate = minute
				want.Rate.Type = kind
				if want.Records > 0 {
					want.Oldest = time.UnixMilli(r.ms() - want.Oldest.UnixMilli())
					want.Newest = time.UnixMilli(r.ms() - want.Newest.UnixMilli())
				}
				before := r.dump()
				r.same(l, want)
				if rate, err := l.Config(t.Context()); rate != want.Rate || err != nil {
					t.Errorf("Config: %v, %v", rate, err)
				}
				r.unchanged(before, "looking")
				if free := r.free(l); free != want.Available {
					t.Errorf("%s, %v: %d are free, but State said %d", test.name, kind, free, want.Available)
				}
			}
		}
	})
}

func TestStateOfManyRecords(t *testing.T) {
	long(t)
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int{4999, 5000, 5001, 12000} {
			r := newRig(t, s)
			r.wipe()
			l := r.limiter("rl")
			r.config(l, "rate", "20000", "interval", "60000", "type", "0")
			r.set(l, fmt.Sprint(20000-n))
			r.add(l, r.ms(), many(n)...)
			r.same(l, State{Rate: PerMinute(20000), Available: int64(20000 - n), Used: int64(n), Records: n, Oldest: r.now(), Newest: r.now(), Consistent: true})
			r.must(r.rdb.Del(t.Context(), l.core.Keys()[keys.Value]).Err())
			if free := r.free(l); free != int64(20000-n) {
				t.Errorf("rebuilt from %d records, %d are free", n, free)
			}
		}
	})
}

// TestARefusalFindsForgottenPermits has a rate that was raised manually: the additional permits are not in the stored
// value yet.
func TestARefusalFindsForgottenPermits(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, n := range []int{1, 256, 257} {
			var seen seen
			r := newRig(t, s, WithObserver(&seen))
			r.wipe()
			l := r.limiter("rl")
			r.config(l, "rate", fmt.Sprint(n+10), "interval", "60000", "type", "0")
			r.try(l, 1) // so that no check adds up the records
			r.release(l, 1)
			r.set(l, "0")
			r.add(l, r.ms(), many(n)...)
			granted := r.try(l, 10)
			info := seen.last(t, 2)
			if granted != (n <= 256) || (info.Repaired != "") != granted {
				t.Errorf("with %d records: granted %v, repaired %q", n, granted, info.Repaired)
			}
			if granted {
				results, err := r.client.AllowAll(t.Context(), 1, l)
				if err != nil || results[0].Allowed {
					t.Errorf("AllowAll: %+v, %v", results, err)
				}
				r.set(l, "0")
				r.must(r.rdb.ZRemRangeByRank(t.Context(), l.core.Keys()[keys.Permits], -1, -1).Err())
				results, err = r.client.AllowAll(t.Context(), 1, l)
				if err != nil || !results[0].Allowed {
					t.Errorf("AllowAll: %+v, %v", results, err)
				}
			}
		}
		// The value is never lowered: Redisson's release leaves more permits free than the records allow, on purpose. A
		// check removes them from the records.
		r := newRig(t, s)
		r.wipe()
		l := r.limiter("rl")
		r.config(l, "rate", "20", "interval", "60000", "type", "0")
		r.set(l, "6")
		r.add(l, r.ms(), memberOf("released", 18))
		if r.try(l, 7) || !r.try(l, 6) {
			t.Error("not exactly the six permits that a Redisson released were granted")
		}
	})
}

func TestAllowAllIsAllOrNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		ctx := t.Context()
		a, b, c := r.limiter("a"), r.limiter("b"), r.limiter("c", WithRate(PerHour(5)))
		r.setRate(a, PerMinute(10))
		r.setRate(b, Rate{Type: PerClient, Permits: 6, Interval: time.Minute})
		granted := r.now()
		results, err := r.client.AllowAll(ctx, 4, a, b, c)
		want := []Result{{true, 10, 6, 0, time.Minute}, {true, 6, 2, 0, time.Minute}, {true, 5, 1, 0, time.Hour}}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.advance(time.Second)
		before := r.dump()
		results, err = r.client.AllowAll(ctx, 2, a, b, c)
		want = []Result{{false, 10, 6, 0, 59 * time.Second}, {false, 6, 2, 0, 59 * time.Second}, {false, 5, 1, 3599 * time.Second, 3599 * time.Second}}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.unchanged(before, "an AllowAll that was refused")

		// Whichever limiter refuses, at any place in the list.
		results, err = r.client.AllowAll(ctx, 2, c, b, a)
		slices.Reverse(want)
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.unchanged(before, "an AllowAll that the first one refused")

		// A limiter that is listed twice is asked for twice the permits.
		results, err = r.client.AllowAll(ctx, 1, a, b, a, r.limiter("a"), b)
		want = []Result{{true, 10, 3, 0, time.Minute}, {true, 6, 0, 0, time.Minute}, {true, 10, 3, 0, time.Minute},
			{true, 10, 3, 0, time.Minute}, {true, 6, 0, 0, time.Minute}}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		r.same(a, State{Rate: PerMinute(10), Available: 3, Used: 7, Records: 2, Oldest: granted, Newest: r.now(), Consistent: true})

		before = r.dump()
		for _, test := range []struct {
			name     string
			n        int64
			limiters []*Limiter
			want     error
			named    string
		}{
			{"more than the rate", 7, []*Limiter{a, b}, ErrExceedsRate, `"b"`},
			{"more than the rate in sum", 6, []*Limiter{a, a}, ErrExceedsRate, `"a"`},
			{"more than can be counted", math.MaxInt64, []*Limiter{a, a}, ErrExceedsRate, `"a"`},
			{"more than can be counted, around to one", math.MaxInt64/3 + 1, []*Limiter{a, a, a, a, a, a}, ErrExceedsRate, `"a"`},
			{"not initialised", 1, []*Limiter{a, r.limiter("none"), b}, ErrNotInitialized, `"none"`},
		} {
			results, err := r.client.AllowAll(ctx, test.n, test.limiters...)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.named) || results != nil {
				t.Errorf("%s: %+v, %v", test.name, results, err)
			}
			r.unchanged(before, test.name)
		}
	})
}

// held is a redis client that holds releases back. Its type does not show that it has one server.
type held struct {
	Redis
	came chan struct{} // one for each release
	free chan struct{} // closed: they go on
}

func (h held) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); len(args) > 1 && args[1] == protocol.ReleaseScript.SHA {
		h.came <- struct{}{}
		<-h.free
		ctx = context.WithoutCancel(ctx) // it was in flight
	}
	return h.Redis.Process(ctx, cmd)
}

func TestAllowAllInOrderIsUndoneWithoutItsCaller(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		h := held{s.Client(), make(chan struct{}, 10), make(chan struct{})}
		c := NewClient(h, WithCallTimeout(20*time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		a, b, full, last := c.RateLimiter("a", WithRate(PerHour(5))), c.RateLimiter("b", WithRate(PerHour(5))),
			c.RateLimiter("full", WithRate(PerHour(5))), c.RateLimiter("last", WithRate(PerHour(5)))
		if ok, err := full.TryAcquire(ctx, 5); !ok || err != nil {
			t.Fatal(ok, err)
		}
		answer := make(chan error)
		go func() {
			_, err := c.AllowAll(ctx, 2, a, b, full, last)
			answer <- err
		}()
		<-h.came
		<-h.came // both at once
		cancel()
		if err := <-answer; !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("AllowAll whose caller went: %v", err)
		}
		close(h.free)
		for _, l := range []*Limiter{a, b} {
			for n := int64(0); n != 5; time.Sleep(time.Millisecond) {
				var err error
				if n, err = l.AvailablePermits(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}

		results, err := c.AllowAll(t.Context(), 2, a, b, full, last)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if want := (Result{Limit: 5, Remaining: 5}); results[i] != want {
				t.Errorf("before the one that refused: %+v, want %+v", results[i], want)
			}
		}
		if results[2].RetryAfter == 0 || results[2].ResetAfter == 0 || results[3] != (Result{}) {
			t.Errorf("the one that refused, and those behind: %+v", results[2:])
		}
	})
}

func TestAllowAllNTakesItsOwnNumberOfEach(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		ctx := t.Context()
		requests, tokens := r.limiter("requests", WithRate(PerMinute(3))), r.limiter("tokens", WithRate(PerMinute(1000)))
		results, err := r.client.AllowAllN(ctx, []int64{1, 700}, requests, tokens)
		want := []Result{{true, 3, 2, 0, time.Minute}, {true, 1000, 300, 0, time.Minute}}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		results, err = r.client.AllowAllN(ctx, []int64{1, 301}, requests, tokens)
		want = []Result{{false, 3, 2, 0, time.Minute}, {false, 1000, 300, time.Minute, time.Minute}}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		// A limiter that is listed twice is asked for the sum.
		results, err = r.client.AllowAllN(ctx, []int64{100, 1, 200}, tokens, requests, tokens)
		want = []Result{{true, 1000, 0, 0, time.Minute}, {true, 3, 1, 0, time.Minute}, {true, 1000, 0, 0, time.Minute}}
		if err != nil || !slices.Equal(results, want) {
			t.Errorf("%+v, %v; want %+v", results, err, want)
		}
		before := r.dump()
		for _, permits := range [][]int64{{1}, {1, 1, 1}, {1, 0}, {-1, 1}, nil} {
			if results, err := r.client.AllowAllN(ctx, permits, requests, tokens); !errors.Is(err, ErrInvalidPermits) || results != nil {
				t.Errorf("%d of two limiters: %+v, %v", permits, results, err)
			}
		}
		r.unchanged(before, "what can't be asked")
	})
}

// A refused caller must not keep other callers' permits in use longer than without its request.
func TestAllowAllInOrderGivesBackWhatItTook(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, test := range []struct {
			name    string
			options []LimiterOption
		}{
			{"plain", nil},
			{"a record each", []LimiterOption{WithRecordPerRequest()}},
			{"granularity", []LimiterOption{WithGranularity(500 * time.Millisecond)}},
		} {
			r := newRig(t, s)
			r.wipe()
			c := NewClient(struct{ Redis }{s.Client()}, WithClock(r.now), WithCallTimeout(20*time.Second))
			all, full := c.RateLimiter("all", append(test.options, WithRate(PerMinute(20)))...), c.RateLimiter("full", WithRate(PerHour(1)))
			take := func(l *Limiter, n int64) {
				if ok, err := l.TryAcquire(t.Context(), n); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			take(full, 1)
			take(all, 3)
			r.advance(time.Second)
			take(all, 2)                        // just when other callers ask
			inUse := func() map[float64]int64 { // by the time of the grant
				sums := map[float64]int64{}
				for _, m := range r.members(all) {
					sums[m.Score] += int64(binary.LittleEndian.Uint32([]byte(m.Member[len(m.Member)-4:])))
				}
				return sums
			}
			before := inUse()
			for range 3 {
				if results, err := c.AllowAllN(t.Context(), []int64{4, 1}, all, full); err != nil || results[1].RetryAfter == 0 {
					t.Fatalf("%+v, %v", results, err)
				}
			}
			if got, free := inUse(), r.free(all); !maps.Equal(got, before) || len(got) != 2 || free != 15 {
				t.Errorf("%s: in use are %v, before %v; %d are free", test.name, got, before, free)
			}
		}
	})
}

func TestAllowAllIsObserved(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var observer seen
		r := newRig(t, s, WithObserver(&observer))
		ctx := t.Context()
		a, b := r.limiter("a", WithRate(PerMinute(9))), r.limiter("b", WithEnforcedRate(PerMinute(8)))
		r.setRate(a, PerMinute(5))
		r.setRate(b, PerMinute(6))
		r.set(a, "7")
		tests := []struct {
			n    int64
			want [2]CallInfo
			err  error
		}{
			{2, [2]CallInfo{
				{Limiter: "a", Callers: 1, Granted: 1, Permits: 2, Attempts: 2, Repaired: "free permits were above the rate", RateMismatch: true},
				{Limiter: "b", Callers: 1, Granted: 1, Permits: 2, Attempts: 2},
			}, nil},
			{4, [2]CallInfo{
				{Limiter: "a", Callers: 1, Denied: 1, Attempts: 1, RateMismatch: true},
				{Limiter: "b", Callers: 1, Attempts: 1}, // it would have allowed
			}, nil},
			{6, [2]CallInfo{
				{Limiter: "a", Callers: 1, Denied: 1, Attempts: 1, RateMismatch: true},
				{Limiter: "b", Callers: 1, Attempts: 1}, // it would have allowed
			}, ErrExceedsRate},
		}
		for _, test := range tests {
			observer.calls = nil
			if _, err := r.client.AllowAll(ctx, test.n, a, b); !errors.Is(err, test.err) {
				t.Errorf("%d permits: %v, want %v", test.n, err, test.err)
			}
			if len(observer.calls) != 2 {
				t.Fatalf("%d permits: %d calls were seen", test.n, len(observer.calls))
			}
			for i, got := range observer.calls {
				if got.Latency <= 0 || !errors.Is(got.Err, test.err) {
					t.Errorf("%d permits: %+v", test.n, got)
				}
				if got.Latency, got.Err = 0, nil; got != test.want[i] {
					t.Errorf("%d permits: %+v, want %+v", test.n, got, test.want[i])
				}
			}
		}
	})
}

func TestAllowAllAcrossACluster(t *testing.T) {
	rdb := redistest.Cluster(t, 3).ClusterClient()
	ctx := t.Context()
	at := time.Now().Truncate(time.Millisecond)
	var calls atomic.Int64
	rdb.OnNewNode(func(node *redis.Client) { node.AddHook(counting{&calls}) })
	c := NewClient(rdb, WithClock(func() time.Time { return at }), WithCallTimeout(20*time.Second))
	// Names in one slot with different tags.
	twin := ""
	for i := 0; twin == ""; i++ {
		if name := fmt.Sprint("twin", i); keys.Slot(name) == keys.Slot("a") {
			twin = name
		}
	}
	for _, test := range []struct {
		name  string
		names []string
		one   bool // in one script
	}{
		{"one tag", []string{"{t}a", "{t}b", "{t}c"}, true},
		{"one slot", []string{"a", twin}, true},
		{"anywhere", []string{"a", "b", "c", "d"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var limiters []*Limiter
			for i, name := range test.names {
				l := c.RateLimiter(name, WithRate(PerMinute(int64(20-i))))
				if _, err := l.Delete(ctx); err != nil {
					t.Fatal(err)
				}
				if ok, err := l.TryAcquire(ctx, 5); !ok || err != nil {
					t.Fatal(ok, err)
				}
				limiters = append(limiters, l)
			}
			free := func() (all []int64) {
				for _, l := range limiters {
					n, err := l.AvailablePermits(ctx)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, n)
				}
				return all
			}
			calls.Store(0)
			results, err := c.AllowAll(ctx, 5, limiters...)
			if err != nil || slices.ContainsFunc(results, func(r Result) bool { return !r.Allowed }) {
				t.Fatalf("%+v, %v", results, err)
			}
			if got := calls.Load(); test.one != (got <= 2) { // EVALSHA, and EVAL if the server did not have the script
				t.Errorf("it took %d scripts", got)
			}
			before := free()
			results, err = c.AllowAll(ctx, before[len(before)-1]+1, limiters...)
			if err != nil || slices.ContainsFunc(results, func(r Result) bool { return r.Allowed }) {
				t.Errorf("%+v, %v; want that none is allowed", results, err)
			}
			for i, result := range results {
				if result.Remaining != before[i] {
					t.Errorf("%s has %d permits left, its result says %d", test.names[i], before[i], result.Remaining)
				}
			}
			if after := free(); !slices.Equal(before, after) {
				t.Errorf("a refusal left %v of %v permits", after, before)
			}
			if results[len(results)-1].RetryAfter != time.Minute || results[0].RetryAfter != 0 {
				t.Errorf("the results are %+v", results)
			}
			for name, ask := range map[string]func() error{
				"ErrExceedsRate": func() error { _, err := c.AllowAll(ctx, 21, limiters...); return err },
				"ErrNotInitialized": func() error {
					_, err := c.AllowAll(ctx, 1, append(limiters, c.RateLimiter(test.names[0]+"none"))...)
					return err
				},
			} {
				want := map[string]error{"ErrExceedsRate": ErrExceedsRate, "ErrNotInitialized": ErrNotInitialized}[name]
				if err := ask(); !errors.Is(err, want) {
					t.Errorf("%v, want %s", err, name)
				}
				if after := free(); !slices.Equal(before, after) {
					t.Errorf("%s left %v of %v permits", name, after, before)
				}
			}
		})
	}
}

func TestAcquireUpToTakesWhatIsFree(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		l := r.limiter("rl", WithRate(PerMinute(10)))
		for _, step := range []struct{ n, want int64 }{{3, 3}, {100, 7}, {1, 0}, {math.MaxInt64, 0}} {
			if got, err := l.AcquireUpTo(t.Context(), step.n); got != step.want || err != nil {
				t.Errorf("up to %d: %d, %v; want %d", step.n, got, err, step.want)
			}
		}
		r.same(l, State{Rate: PerMinute(10), Used: 10, Records: 2, Oldest: r.now(), Newest: r.now(), Consistent: true})
		r.advance(time.Minute)
		if got, err := l.AcquireUpTo(t.Context(), math.MaxInt64); got != 10 || err != nil {
			t.Errorf("all: %d, %v", got, err)
		}
	})
}

// TestServerTimeDatesGrantsByTheServer has a client whose clock is wrong by years.
func TestServerTimeDatesGrantsByTheServer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := newRig(t, s)
		r.advance(-20 * 365 * 24 * time.Hour)
		l := r.limiter("rl", WithServerTime(), WithRate(PerMinute(10)))
		start := time.Now()
		r.try(l, 3)
		if results, err := r.client.AllowAll(t.Context(), 3, l); err != nil || !results[0].Allowed {
			t.Errorf("%+v, %v", results, err)
		}
		for _, m := range r.members(l) {
			if at := time.UnixMilli(int64(m.Score)); at.Before(start.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
				t.Errorf("a grant is dated %v, it was at %v", at, start)
			}
		}
		state, err := l.State(t.Context())
		if err != nil || state.Used != 6 || state.Records != 2 {
			t.Errorf("%+v, %v", state, err)
		}
		if back := r.release(l, 4); back != 4 {
			t.Errorf("%d came back", back)
		}
		r.setRate(l, PerMinute(9), KeepState())
		if free := r.free(l); free != 7 {
			t.Errorf("%d are free", free)
		}
	})
}

var update = flag.Bool("update", false, "write the assembled scripts to testdata/scripts")

// TestAssembledScripts compares the scripts that Redis gets with those in testdata/scripts, so that the line number in an
// error of Redis leads somewhere, and a change of a fragment shows what it changes in each script.
func TestAssembledScripts(t *testing.T) {
	files, err := filepath.Glob("lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text := script.Load(lua.Files, strings.TrimSuffix(filepath.Base(file), ".lua")).Text
		golden := filepath.Join("testdata", "scripts", filepath.Base(file))
		if *update {
			if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != text {
			t.Errorf("%s is not what is assembled from lua/ (go test -run AssembledScripts -update writes it): %v", golden, err)
		}
	}
}

// TestScriptsUseNothingNewerThanOldServers looks for features that Redis 6.2 or the embedded server lack.
func TestScriptsUseNothingNewerThanOldServers(t *testing.T) {
	all := map[string]*script.Script{
		"acquire": protocol.AcquireScript, "allowall": protocol.AllowAllScript, "delete": protocol.DeleteScript, "expire": protocol.ExpireScript, "release": protocol.ReleaseScript,
		"rename": protocol.RenameScript, "setrate": protocol.SetRateScript, "state": protocol.StateScript, "trysetrate": protocol.TrySetRateScript,
		"collect": protocol.CollectScript, "glance": protocol.GlanceScript, "repair": protocol.RepairScript, "survey": protocol.SurveyScript,
		"probe": protocol.ProbeScript, "recount": protocol.RecountScript,
	}
	files, err := lua.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file.Name(), ".lua")
		s := all[name]
		switch {
		case file.IsDir():
			continue
		case s == nil:
			t.Errorf("%s is not tested here", file.Name())
			continue
		}
		if strings.HasPrefix(s.Text, "#!") {
			t.Errorf("%s has a shebang, which Redis 6.2 does not support", name)
		}
		for _, absent := range []string{"struct.", "cjson", "cmsgpack", "bit.", "redis.pcall", "redis.setresp", "server.call"} {
			if strings.Contains(s.Text, absent) {
				t.Errorf("%s uses %s", name, absent)
			}
		}
		for _, want := range []string{"-- KEYS", "-- ARGV", "-- reply"} {
			if !strings.Contains(s.Text, want) {
				t.Errorf("%s has no header line %q", name, want)
			}
		}
	}
}

// TestRedisCallsOfACall counts the Redis calls that acquire.lua documents: each takes Redis about a microsecond.
func TestRedisCallsOfACall(t *testing.T) {
	s := redistest.Real(t)
	ctx := t.Context()
	r := newRig(t, s)
	l, fine := r.limiter("rl", WithRate(PerSecond(10))), r.limiter("rl", WithGranularity(100*time.Millisecond))
	grant := func(l *Limiter) func() { return func() { r.try(l, 1) } }
	r.must(l.client.RateLimiter("other", WithRate(PerSecond(1))).Acquire(ctx, 1)) // so that the server knows the script
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"the first grant", grant(l), "hmget get zrange pttl hset zadd set"},
		{"a grant", grant(l), "hmget get zrange pttl zadd incrby"},
		{"a grant for a waiting caller", func() { r.must(l.Acquire(ctx, 1)) }, "hmget get zrange pttl zadd incrby"},
		{"a grant to many", func() { r.try(l, 3) }, "hmget get zrange pttl zadd incrby"},
		{"the first grant of a bucket, of options that are new", grant(fine), "hmget get zrange zrange pttl zrangebyscore zadd incrby"},
		{"another grant of a bucket", grant(fine), "hmget get zrange pttl zrangebyscore zadd zrem incrby"},
		{"a refusal", func() { r.try(l, 9) }, "hmget get zrange pttl zcard zrange"},
		{"a look", func() { r.free(l) }, "hmget get zrange zrange pttl"},
		{"a grant with a TTL", func() {
			r.must(r.rdb.PExpire(ctx, "rl", time.Hour).Err())
			r.try(l, 1)
		}, "pexpire hmget get zrange pttl zadd incrby pexpire pexpire"},
		{"a grant once all expired", func() {
			r.must(r.rdb.Persist(ctx, "rl").Err())
			r.advance(2 * time.Second)
			r.try(l, 1)
		}, "persist hmget get zrange zrangebyscore zrange pttl zadd incrby zremrangebyrank"},
		{"a grant with a check", func() {
			r.advance(600 * time.Millisecond)
			r.try(l, 1)
			r.advance(900 * time.Millisecond)
			r.try(l, 1)
		}, "hmget get zrange pttl zadd incrby hmget get zrange zrangebyscore zrange zrange pttl zadd zremrangebyrank"},
	} {
		monitor := redistest.Monitor(t, s.Addr)
		step.do()
		var names []string
		for _, c := range monitor.Stop() {
			if len(c.Args) > 1 && strings.Contains(c.Args[1], "rl") { // the key
				names = append(names, strings.ToLower(c.Args[0]))
			}
		}
		if got := strings.Join(names, " "); got != step.want {
			t.Errorf("%s: %s, want %s", step.name, got, step.want)
		}
	}
}

// A calls is a hook that counts the commands it sees, as tracing does.
type calls struct{ seen map[string]int }

func (calls) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c calls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.seen[cmd.Name()]++
		return next(ctx, cmd)
	}
}
func (calls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func TestHooksOfTheRedisClientSeeTheCalls(t *testing.T) {
	rdb := redistest.Embedded(t).Client()
	hook := calls{seen: map[string]int{}}
	rdb.AddHook(hook)
	l := NewClient(rdb).RateLimiter("hooked", WithRate(PerMinute(2)))
	for range 2 {
		if ok, err := l.TryAcquire(t.Context(), 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if hook.seen["evalsha"] != 2 || hook.seen["eval"] != 1 {
		t.Errorf("the hook saw %v, want the script by its hash, with its text where the server lacks it, and by its hash again", hook.seen)
	}
}
