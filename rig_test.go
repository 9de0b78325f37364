package rratelimiter_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// A rig is a client of a server, with a clock that the test moves, and with direct access to the keys.
type rig struct {
	t      *testing.T
	server *redistest.Server
	rdb    *redis.Client
	client *rratelimiter.Client
	calls  atomic.Int64 // scripts that the client ran

	mu sync.Mutex
	at time.Time
}

func newRig(t *testing.T, s *redistest.Server, opts ...rratelimiter.Option) *rig {
	r := &rig{t: t, server: s, rdb: s.Client(), at: time.Now().Truncate(time.Millisecond)}
	counted := s.Client()
	counted.AddHook(countScripts(&r.calls))
	r.client = rratelimiter.NewClient(counted, append([]rratelimiter.Option{
		rratelimiter.WithClientID("me"), rratelimiter.WithClock(r.now), rratelimiter.WithCallTimeout(20 * time.Second),
	}, opts...)...)
	return r
}

// countScripts returns a hook that counts script calls.
func countScripts(n *atomic.Int64) redis.Hook { return counting{n} }

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

func (r *rig) limiter(name string, opts ...rratelimiter.LimiterOption) *rratelimiter.Limiter {
	return r.client.RateLimiter(name, opts...)
}

// must stops the test if a command that prepares or inspects the state fails.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) setRate(l *rratelimiter.Limiter, rate rratelimiter.Rate, opts ...rratelimiter.SetOption) {
	r.t.Helper()
	r.must(l.SetRate(r.t.Context(), rate, opts...))
}

// try is TryAcquire; an error fails the test.
func (r *rig) try(l *rratelimiter.Limiter, n int64) bool {
	r.t.Helper()
	ok, err := l.TryAcquire(r.t.Context(), n)
	r.must(err)
	return ok
}

// free is AvailablePermits; an error fails the test.
func (r *rig) free(l *rratelimiter.Limiter) int64 {
	r.t.Helper()
	n, err := l.AvailablePermits(r.t.Context())
	r.must(err)
	return n
}

func (r *rig) release(l *rratelimiter.Limiter, n int64) int64 {
	r.t.Helper()
	back, err := l.Release(r.t.Context(), n)
	r.must(err)
	return back
}

// config writes fields of the configuration directly.
func (r *rig) config(l *rratelimiter.Limiter, fields ...string) {
	r.t.Helper()
	if len(fields) > 0 {
		r.must(r.rdb.HSet(r.t.Context(), l.Name(), fields).Err())
	}
}

// set writes the free permits directly.
func (r *rig) set(l *rratelimiter.Limiter, value string) {
	r.t.Helper()
	r.must(r.rdb.Set(r.t.Context(), keysOf(l)[keys.Value], value, 0).Err())
}

// add writes records directly, all with the same time in ms.
func (r *rig) add(l *rratelimiter.Limiter, at int64, members ...string) {
	r.t.Helper()
	all := make([]redis.Z, len(members))
	for i, member := range members {
		all[i] = redis.Z{Score: float64(at), Member: member}
	}
	for page := range slices.Chunk(all, 5000) {
		r.must(r.rdb.ZAdd(r.t.Context(), keysOf(l)[keys.Permits], page...).Err())
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
func (r *rig) members(l *rratelimiter.Limiter) []stored { return r.membersAt(keysOf(l)[keys.Permits]) }

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
func (r *rig) same(l *rratelimiter.Limiter, want rratelimiter.State) {
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
