package compat

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// names_test.go tests that Redisson and this library share limiters with unusual names.

// oddNames are names that Java strings can hold, which is Unicode text.
var oddNames = []string{
	"", " ", "a{b", "a}b", "a{}b", "{", "}", "{}", "{}x", "x{", "{tag}x", "x{tag}", "{a}{b}", "a\x00b", "a\r\nb",
	"*?[a]\\", "%s", "'\"", "a:b:value",
	"заказы", "注文", "\U0001f6a6", "e\u0301", "\u00e9", "\u202eabc", "\ufffd",
}

func TestOddNamesMeet(t *testing.T) {
	for _, version := range []string{redisson.Versions[0], redisson.Versions[len(redisson.Versions)-1]} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server := redistest.Real(t)
			rdb := server.Client()
			java := redisson.Start(t, version, redisson.Addr(server.Addr))
			for _, name := range oddNames {
				l := rratelimiter.NewClient(rdb, rratelimiter.WithCallTimeout(patience)).
					RateLimiter(name, rratelimiter.WithRecordFormat(rratelimiter.Redisson313))
				if err := rdb.FlushDB(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				if set, err := java.TrySetRate(t.Context(), name,
					redisson.Rate{Permits: 10, Interval: time.Minute}); !set ||
					err != nil {
					t.Errorf("%q: Java sets the rate: %v, %v", name, set, err)
					continue
				}
				byJava, err := java.TryAcquire(t.Context(), name, 2)
				byGo, err2 := l.TryAcquire(t.Context(), 3)
				if !byJava || !byGo || err != nil || err2 != nil {
					t.Errorf("%q: %v, %v, %v, %v", name, byJava, err, byGo, err2)
				}
				inJava, err := java.Available(t.Context(), name)
				inGo, err2 := l.AvailablePermits(t.Context())
				keys := rdb.Keys(t.Context(), "*").Val()
				slices.Sort(keys)
				if inJava != 5 || inGo != 5 || err != nil || err2 != nil || len(keys) != 3 {
					t.Errorf("%q: free by Java %d, %v, by Go %d, %v, keys %s",
						name, inJava, err, inGo, err2, fmt.Sprintf("%q", keys))
				}
			}
		})
	}
}
