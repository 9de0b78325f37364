package names

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

func TestKeysHoldTheClientsIDAsItIs(t *testing.T) {
	for _, id := range []string{"9d6c5c5e-7a8e-4b8e-9d6c-5c5e7a8e4b8e", "a:b", "{x}", "\x00"} {
		c := rratelimiter.NewClient(redis.NewClient(&redis.Options{Addr: "192.0.2.1:1"}), rratelimiter.WithClientID(id))
		if c.ID() != id {
			t.Errorf("ID() is %q, want %q", c.ID(), id)
		}
		all := rig.LimiterCore(c.RateLimiter("rl")).Keys()
		if all[keys.ClientValue] != "{rl}:value:"+id || all[keys.ClientPermits] != "{rl}:permits:"+id {
			t.Errorf("the keys of client %q are %q", id, all)
		}
	}
	a := rratelimiter.NewClient(redis.NewClient(&redis.Options{}))
	b := rratelimiter.NewClient(redis.NewClient(&redis.Options{}))
	if len(a.ID()) != 36 || a.ID() == b.ID() {
		t.Errorf("the default ids %q and %q are not two UUIDs", a.ID(), b.ID())
	}
}

func TestNameMapperMakesTheKeysAndNotTheName(t *testing.T) {
	c := rratelimiter.NewClient(redis.NewClient(&redis.Options{}), rratelimiter.WithClientID("ID"),
		rratelimiter.WithNameMapper(func(name string) string { return "prod:" + name }))
	l := c.RateLimiter("rl")
	if l.Name() != "rl" {
		t.Errorf("the name is %q, want rl", l.Name())
	}
	want := []string{"prod:rl", "{prod:rl}:value", "{prod:rl}:value:ID", "{prod:rl}:permits", "{prod:rl}:permits:ID"}
	if !slices.Equal(rig.LimiterCore(l).Keys(), want) {
		t.Errorf("the keys are %q, want %q", rig.LimiterCore(l).Keys(), want)
	}
	if got := c.KeyOf("rl"); got != want[0] {
		t.Errorf("the key is %q, want %q", got, want[0])
	}
	if got := rratelimiter.NewClient(redis.NewClient(&redis.Options{})).KeyOf("rl"); got != "rl" {
		t.Errorf("without a mapper, the key is %q", got)
	}
}

// oddNames are names whose Redisson keys are in different slots, except by chance.
var oddNames = []string{"a{b", "a{}b", "a}b", "", "{", "}", "{}", "{}x", "x{"}

// randomName returns a name that often has braces.
func randomName(random *rand.Rand) string {
	const letters = "ab{}{}:\x00\xff-"
	name := make([]byte, random.IntN(12))
	for i := range name {
		if name[i] = byte(random.IntN(256)); random.IntN(2) == 0 {
			name[i] = letters[random.IntN(len(letters))]
		}
	}
	return string(name)
}

func TestSlotsAreTheClusters(t *testing.T) {
	rdb := redistest.Cluster(t, 3).ClusterClient()
	random := rand.New(rand.NewPCG(3, 1))
	var names []string
	for range 1000 {
		names = append(names, randomName(random))
	}
	names = append(append(names, oddNames...), "123456789", "foo{bar}zap", "foo{{bar}}zap", "foo{bar}{zap}")
	pipe := rdb.Pipeline()
	var replies []*redis.IntCmd
	for _, name := range names {
		replies = append(replies, pipe.ClusterKeySlot(t.Context(), name))
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if want := replies[i].Val(); int64(keys.Slot(name)) != want {
			t.Errorf("the slot of %q is %d, want %d", name, keys.Slot(name), want)
		}
	}

	// Names that were accepted work, whatever their slots; the others would fail.
	c := rratelimiter.NewClient(rdb, rig.Patient)
	for _, name := range names[:200] {
		l := c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		ok, err := l.TryAcquire(t.Context(), 3)
		if keys.SameSlot(rig.Keys(l)) {
			if !ok || err != nil {
				t.Errorf("acquiring from %q: %v, %v", name, ok, err)
			}
		} else if !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Errorf("acquiring from %q, whose keys lie in different slots: %v, %v", name, ok, err)
		}
	}
}

// TestOddNamesAreRefusedOnACluster has no cluster: no command may be sent.
func TestOddNamesAreRefusedOnACluster(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"192.0.2.1:1"}})
	defer rdb.Close()
	rdb.AddHook(rig.NoCommands(t))
	c := rratelimiter.NewClient(rdb)
	for _, name := range oddNames {
		for method, call := range rig.EveryMethod(c,
			c.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(1)))) {
			err := call(t.Context())
			if !errors.Is(err, rratelimiter.ErrCrossSlotName) {
				t.Errorf("%s of %q: %v, want ErrCrossSlotName", method, name, err)
			} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
				t.Errorf("%s of %q: %q does not name the limiter", method, name, err)
			}
		}
		if name != "" {
			if err := c.RateLimiter("{t}plain").Rename(t.Context(),
				name); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
				t.Errorf("renaming to %q: %v, want ErrCrossSlotName", name, err)
			}
		}
	}
	if err := c.RateLimiter("here").Rename(t.Context(), "there"); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
		t.Errorf("renaming to another slot: %v, want ErrCrossSlotName", err)
	}
	mapped := rratelimiter.NewClient(rdb, rratelimiter.WithNameMapper(func(name string) string { return "{" + name }))
	if _, err := mapped.RateLimiter("plain").Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrCrossSlotName) {
		t.Errorf("a name mapped to an odd one: %v, want ErrCrossSlotName", err)
	}
}

func TestOddNamesWorkOnASingleServer(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := rig.New(t, s)
		for _, name := range append(oddNames, "\x00\xff\r\n", "заказы", "*?[a]\\") {
			l := r.Limiter(name)
			r.SetRate(l, rratelimiter.PerMinute(10))
			if !r.Try(l, 4) || !r.Try(l, 6) || r.Try(l, 1) {
				t.Errorf("%q does not count to ten", name)
			}
			if released, err := l.Release(t.Context(), 3); released != 3 || err != nil {
				t.Errorf("%q released %d, %v", name, released, err)
			}
			r.SameState(l, rratelimiter.State{
				Rate: rratelimiter.PerMinute(10), Available: 3, Used: 7, Records: 2, Oldest: r.Now(), Newest: r.Now(),
				Consistent: true,
			})
			if err := l.Rename(t.Context(), name+"renamed"); err != nil {
				t.Errorf("renaming %q: %v", name, err)
			}
			if n, err := r.Limiter(name + "renamed").AvailablePermits(t.Context()); n != 3 || err != nil {
				t.Errorf("%q has, renamed, %d permits, %v", name, n, err)
			}
			if gone, err := r.Limiter(name + "renamed").Delete(t.Context()); !gone || err != nil {
				t.Errorf("deleting %q: %v, %v", name, gone, err)
			}
		}
		if left := r.Redis.DBSize(t.Context()).Val(); left != 0 {
			t.Errorf("%d keys are left", left)
		}
	})
}
