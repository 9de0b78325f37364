package names

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
)

// hostileNames are names that an attacker may send.
var hostileNames = map[string]string{
	"empty":                    "",
	"NUL":                      "\x00",
	"lines":                    "a\r\nDEL orders\r\n*1\r\n$8\r\nFLUSHALL\r\n",
	"invalid UTF-8":            "\xff\xfe\xc3\x28\xed\xa0\x80",
	"a pattern":                `*?[a-z]\`,
	"Lua":                      `'..redis.call("FLUSHALL")..'"]]`,
	"format":                   "%s%d%n%!",
	"a number":                 "5",
	"as long as a megabyte":    strings.Repeat("long", 1<<18),
	"a megabyte of braces":     strings.Repeat("{", 1<<20),
	"right to left, combining": "\u202eאב\u0301\u200b",
}

// A name and a client id may have any bytes: they are used literally, and affect no other key.
func TestAnyBytesAreANameOrAnID(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, text := range hostileNames {
			if len(text) > 1000 && !s.IsReal() {
				continue // slow there
			}
			t.Run(what, func(t *testing.T) {
				rdb := s.Client()
				if err := rdb.FlushDB(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				if err := rdb.Set(t.Context(), "orders", "mine", 0).Err(); err != nil {
					t.Fatal(err)
				}
				id := text
				if id == "" {
					id = "me"
				}
				for _, l := range []*rratelimiter.Limiter{
					rratelimiter.NewClient(rdb, rratelimiter.WithClientID(id), rig.Patient).RateLimiter(text),
					rratelimiter.NewClient(rdb, rratelimiter.WithClientID(id), rig.Patient,
						rratelimiter.WithNameMapper(func(string) string { return text + "mapped" })).RateLimiter("x"),
				} {
					rig.MustSet(t, l, rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 3, Interval: time.Hour})
					rig.MustTry(t, l, 2, true)
					rig.MustTry(t, l, 2, false)
					if !s.IsReal() && !utf8.ValidString(text) {
						// Its patterns do not match such text.
					} else if ids, err := l.Clients(t.Context()); err != nil || len(ids) != 1 || ids[0] != id {
						t.Errorf("clients: %d, %v", len(ids), err)
					}
					if gone, err := l.Delete(t.Context()); !gone || err != nil {
						t.Error(gone, err)
					}
				}
				if left := rdb.DBSize(t.Context()).Val(); left != 1 || rdb.Get(t.Context(), "orders").Val() != "mine" {
					t.Errorf("%d keys are left", left)
				}
			})
		}
	})
}

// An error has the limiter's name in one readable line, whatever its length and bytes.
func TestErrorsQuoteNames(t *testing.T) {
	rdb := redistest.Shared(t).Client()
	for what, name := range hostileNames {
		_, err := rratelimiter.NewClient(rdb, rig.Patient).RateLimiter(name).Allow(t.Context(), 1)
		if !errors.Is(err, rratelimiter.ErrNotInitialized) || len(err.Error()) > 1000 ||
			strings.ContainsAny(err.Error(), "\r\n\x00\u202e") {
			t.Errorf("%s: %.2000q", what, err)
		}
	}
	refused := rratelimiter.NewClient(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"192.0.2.1:1"}})).
		RateLimiter(hostileNames["a megabyte of braces"])
	if _, err := refused.Allow(t.Context(), 1); !errors.Is(err, rratelimiter.ErrCrossSlotName) ||
		len(err.Error()) > 1000 {
		t.Errorf("%.2000q", err)
	}
}

// Commands so long that the server would close the connection, and so fail the calls of other
// limiters, are not sent.
func TestNamesThatNoServerTakesAreRefused(t *testing.T) {
	c := rratelimiter.NewClient(rig.RefusingClient(t), rratelimiter.WithClientID("me"))
	long := strings.Repeat("x", keys.MaxBytes/keys.Count)
	for method, call := range rig.EveryMethod(c,
		c.RateLimiter(long, rratelimiter.WithRate(rratelimiter.PerSecond(1)))) {
		if err := call(t.Context()); !errors.Is(err, rratelimiter.ErrInvalidOption) || len(err.Error()) > 1000 {
			t.Errorf("%s: %.1000q", method, err)
		}
	}
	if err := c.RateLimiter("short").Rename(t.Context(), long); !errors.Is(err, rratelimiter.ErrInvalidOption) {
		t.Errorf("renaming: %v", err)
	}
}

func TestOddNamesOverAPipelinedCluster(t *testing.T) {
	rdb := rig.AutoPipelined(t, redistest.Cluster(t, 3).ClusterClient())
	ctx := t.Context()
	l := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(20*time.Second)).RateLimiter("a{b")
	_, set := l.TrySetRate(ctx, rratelimiter.PerMinute(5))
	_, deleted := l.Delete(ctx)
	for name, err := range map[string]error{"TrySetRate": set, "Delete": deleted} {
		if !errors.Is(err, rratelimiter.ErrCrossSlotName) {
			t.Errorf("%s: %v, want ErrCrossSlotName", name, err)
		}
	}
}
