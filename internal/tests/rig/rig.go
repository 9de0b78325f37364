// Package rig is what the tests in internal/tests share. Each folder beside it is a package with
// the tests of one topic, which can run alone: go test ./internal/tests/lease. The tests use what
// users of the library use, read the keys in Redis, and look into a client only by the functions of
// core.go. TestMain of each package calls Main.
//
// Most tests run on the embedded server and on real ones, with a [Rig], whose clock the test moves:
//
//	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
//		r := rig.New(t, s)
//		l := r.Limiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
//		granted := r.Try(l, 1)
//		r.Advance(time.Second)
//		if !granted || !r.Try(l, 1) {
//			t.Error("a permit did not return after an interval")
//		}
//	})
//
// Tests of waiting callers, of several processes and of slow connections run in a [Bubble], where
// times are exact:
//
//	rig.InBubble(t, func(t *testing.T, b *rig.Bubble) {
//		l := b.Process().RateLimiter("rl", rratelimiter.WithRate(rratelimiter.PerSecond(1)))
//		b.Granted("the first caller", b.Acquire(l, 1), 0)
//		second := b.Acquire(l, 1)
//		b.SleepTo(time.Second)
//		b.Granted("the second caller", second, time.Second)
//	})
//
// Tests of lost requests and replies use a [Tap], which breaks connections at chosen points: see
// [Rig.Tapped].
package rig

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

// A Rig is a client of a server, with a clock that the test moves, and with direct access to the
// keys.
type Rig struct {
	T      *testing.T
	Server *redistest.Server
	Redis  *redis.Client        // to read and write the keys
	Client *rratelimiter.Client // with the id "me"
	Calls  atomic.Int64         // scripts that the client ran

	mu sync.Mutex
	at time.Time
}

// New returns a Rig. The options of the client come on top of its own: the clock, the id and a long
// call timeout.
func New(t *testing.T, s *redistest.Server, opts ...rratelimiter.Option) *Rig {
	r := &Rig{T: t, Server: s, Redis: s.Client(), at: time.Now().Truncate(time.Millisecond)}
	counted := s.Client(redistest.NoDeadlines)
	counted.AddHook(CountScripts(&r.Calls))
	r.Client = rratelimiter.NewClient(counted, append([]rratelimiter.Option{
		rratelimiter.WithClientID("me"), rratelimiter.WithClock(r.Now), rratelimiter.WithCallTimeout(20 * time.Second),
	}, opts...)...)
	return r
}

// Beside returns a Rig of another client, with an id, on the same server and with the same clock.
func (r *Rig) Beside(id string) *Rig {
	return New(r.T, r.Server, rratelimiter.WithClientID(id), rratelimiter.WithClock(r.Now))
}

// CountScripts returns a hook that counts script calls.
func CountScripts(n *atomic.Int64) redis.Hook {
	return redistest.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			n.Add(1)
		}
		return next(ctx, cmd)
	}}
}

// Now returns the time of the clock.
func (r *Rig) Now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

// Millis returns the time of the clock in ms, as records have it.
func (r *Rig) Millis() int64 { return r.Now().UnixMilli() }

// Advance moves the clock forward.
func (r *Rig) Advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(d)
}

// Limiter returns a limiter of the client.
func (r *Rig) Limiter(name string, opts ...rratelimiter.LimiterOption) *rratelimiter.Limiter {
	return r.Client.RateLimiter(name, opts...)
}

// Must stops the test if a command that prepares or inspects the state fails.
func (r *Rig) Must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// SetRate is Limiter.SetRate; an error fails the test.
func (r *Rig) SetRate(l *rratelimiter.Limiter, rate rratelimiter.Rate, opts ...rratelimiter.SetOption) {
	r.T.Helper()
	r.Must(l.SetRate(r.T.Context(), rate, opts...))
}

// Try is Limiter.TryAcquire; an error fails the test.
func (r *Rig) Try(l *rratelimiter.Limiter, n int64) bool {
	r.T.Helper()
	ok, err := l.TryAcquire(r.T.Context(), n)
	r.Must(err)
	return ok
}

// Free is Limiter.AvailablePermits; an error fails the test.
func (r *Rig) Free(l *rratelimiter.Limiter) int64 {
	r.T.Helper()
	n, err := l.AvailablePermits(r.T.Context())
	r.Must(err)
	return n
}

// Release is Limiter.Release; an error fails the test.
func (r *Rig) Release(l *rratelimiter.Limiter, n int64) int64 {
	r.T.Helper()
	back, err := l.Release(r.T.Context(), n)
	r.Must(err)
	return back
}

// WriteConfig writes fields of the configuration directly.
func (r *Rig) WriteConfig(l *rratelimiter.Limiter, fields ...string) {
	r.T.Helper()
	if len(fields) > 0 {
		r.Must(r.Redis.HSet(r.T.Context(), l.Name(), fields).Err())
	}
}

// WriteValue writes the free permits directly.
func (r *Rig) WriteValue(l *rratelimiter.Limiter, value string) {
	r.T.Helper()
	r.Must(r.Redis.Set(r.T.Context(), Keys(l)[keys.Value], value, 0).Err())
}

// AddRecords writes records directly, all with the same time in ms.
func (r *Rig) AddRecords(l *rratelimiter.Limiter, at int64, members ...string) {
	r.T.Helper()
	all := make([]redis.Z, len(members))
	for i, member := range members {
		all[i] = redis.Z{Score: float64(at), Member: member}
	}
	for page := range slices.Chunk(all, 5000) {
		r.Must(r.Redis.ZAdd(r.T.Context(), Keys(l)[keys.Permits], page...).Err())
	}
}

// ManyMembers returns n members of one permit each.
func ManyMembers(n int) []string {
	members := make([]string, n)
	for i := range members {
		members[i] = MemberOf(fmt.Sprintf("%08d", i), 1)
	}
	return members
}

// A Stored is a record as Redis holds it. Its score is the time in ms.
type Stored struct {
	Member string
	Score  float64
}

// Members returns the records, oldest first.
func (r *Rig) Members(l *rratelimiter.Limiter) []Stored { return r.MembersAt(Keys(l)[keys.Permits]) }

// MembersAt returns the records at a key, oldest first.
func (r *Rig) MembersAt(key string) []Stored {
	r.T.Helper()
	all, err := r.Redis.ZRangeWithScores(r.T.Context(), key, 0, -1).Result()
	r.Must(err)
	records := make([]Stored, len(all))
	for i, z := range all {
		records[i] = Stored{z.Member.(string), z.Score}
	}
	return records
}

// Wipe removes all keys.
func (r *Rig) Wipe() {
	r.T.Helper()
	r.Must(r.Redis.FlushDB(r.T.Context()).Err())
}

// SameState checks the result of State. The TTL may be a little shorter than the given one.
func (r *Rig) SameState(l *rratelimiter.Limiter, want rratelimiter.State) {
	r.T.Helper()
	got, err := l.State(r.T.Context())
	r.Must(err)
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
		r.T.Errorf("the state of %q is\n%+v, want\n%+v", l.Name(), got, want)
	}
}

// Dump returns the content of the server by key: the raw bytes, and whether there is a TTL.
func (r *Rig) Dump() map[string]string {
	r.T.Helper()
	ctx := r.T.Context()
	keys, err := r.Redis.Keys(ctx, "*").Result()
	r.Must(err)
	all := map[string]string{}
	for _, key := range keys {
		kind := r.Redis.Type(ctx, key).Val()
		var content any
		switch kind {
		case "string":
			content = r.Redis.Get(ctx, key).Val()
		case "hash":
			content = r.Redis.HGetAll(ctx, key).Val()
		case "zset":
			content = r.MembersAt(key)
		case "list":
			content = r.Redis.LRange(ctx, key, 0, -1).Val()
		case "set":
			members := r.Redis.SMembers(ctx, key).Val()
			slices.Sort(members)
			content = members
		default:
			r.T.Fatalf("%q is a %s", key, kind)
		}
		bytes, err := r.Redis.Dump(ctx, key).Result() // the embedded server supports it for strings alone
		if err != nil {
			bytes = ""
		}
		all[key] = fmt.Sprintf("%s %q %x expires: %v", kind, content, bytes, r.Redis.PTTL(ctx, key).Val() > 0)
	}
	return all
}

// Unchanged checks that the content of the server is what Dump returned before.
func (r *Rig) Unchanged(before map[string]string, what string) {
	r.T.Helper()
	if after := r.Dump(); !reflect.DeepEqual(before, after) {
		r.T.Errorf("%s changed the keys: from\n%v to\n%v", what, before, after)
	}
}

// CheckTTL checks the TTLs of keys, with a tolerance for the time since they were set. 0 means that
// a key has no TTL, -1 that there is no such key.
func (r *Rig) CheckTTL(want time.Duration, keys ...string) {
	r.T.Helper()
	for _, key := range keys {
		got := r.Redis.PTTL(r.T.Context(), key).Val()
		switch {
		case want == 0 && got != -1, want == -1 && got != -2, want > 0 && (got > want || got < want-30*time.Second):
			r.T.Errorf("%q has a TTL of %v, want %v", key, got, want)
		}
	}
}

// Settled waits until no recount runs in the background.
func (r *Rig) Settled(l *rratelimiter.Limiter) {
	r.T.Helper()
	for {
		if !Core(l.Client()).Inspect().Recounting {
			return
		}
		if r.T.Context().Err() != nil {
			r.T.Fatal("the records are still being added up")
		}
		time.Sleep(time.Millisecond)
	}
}

// ToBucket advances the clock to the given time after the start of a bucket of the given length
// (WithGranularity).
func (r *Rig) ToBucket(length, after time.Duration) {
	past := time.Duration(r.Now().UnixNano()) % length
	r.Advance(length - past + after)
}
