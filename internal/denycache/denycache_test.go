package denycache

import (
	"fmt"
	"testing"
	"time"
)

var now = time.UnixMilli(1_700_000_000_000)

// refusal is that of n of 10 permits an hour, for a minute.
func refusal(n int64) Refusal {
	return Refusal{
		N: n, Limit: 10, Left: n - 1, Interval: time.Hour, Free: now.Add(time.Minute), Reset: now.Add(time.Hour),
	}
}

func TestRefusalsHold(t *testing.T) {
	ten, five := Rate{10, 3_600_000}, Rate{5, 3_600_000}
	enforced := refusal(3)
	enforced.Enforced = ten
	for _, c := range []struct {
		what     string
		refusal  Refusal
		n        int64
		at       time.Time
		enforced Rate
		holds    bool
	}{
		{"as many permits", refusal(3), 3, now, Rate{}, true},
		{"more permits", refusal(3), 10, now, Rate{}, true},
		{"fewer permits", refusal(3), 2, now, Rate{}, false},
		{"more permits than the rate", refusal(3), 11, now, Rate{}, false},
		{"just before its end", refusal(3), 3, now.Add(time.Minute - 1), Rate{}, true},
		{"at its end", refusal(3), 3, now.Add(time.Minute), Rate{}, false},
		{"a handle that enforces a rate", refusal(3), 3, now, ten, false},
		{"a handle that enforces the same rate", enforced, 3, now, ten, true},
		{"a handle that enforces another rate", enforced, 3, now, five, false},
		{"a handle that enforces none", enforced, 3, now, Rate{}, true},
	} {
		var cache Cache
		cache.Add(5, "l", c.refusal, now, cache.Changes())
		if found := cache.Find("l", c.n, c.at, c.enforced); (found != nil) != c.holds {
			t.Errorf("%s: %+v, expected that it holds: %v", c.what, found, c.holds)
		}
		if found := cache.Find("other", c.n, c.at, c.enforced); found != nil {
			t.Errorf("%s: it holds for another limiter", c.what)
		}
	}
}

func TestTheSmallerRefusalStays(t *testing.T) {
	var cache Cache
	cache.Add(5, "l", refusal(3), now, 0)
	cache.Add(5, "l", refusal(5), now, 0)
	if found := cache.Find("l", 3, now, Rate{}); found == nil || found.N != 3 {
		t.Errorf("%+v, expected the refusal of 3", found)
	}
	later := refusal(5)
	later.Free = now.Add(time.Hour)
	cache.Add(5, "l", later, now.Add(time.Minute), 0)
	if found := cache.Find("l", 5, now.Add(2*time.Minute), Rate{}); found == nil || found.N != 5 {
		t.Errorf("%+v, expected the refusal of 5, since that of 3 is over", found)
	}
}

func TestChangesDropRefusals(t *testing.T) {
	for what, change := range map[string]func(*Cache){
		"a change of the limiter": func(c *Cache) { c.Forget("l") },
		"a change of all":         func(c *Cache) { c.Forget("") },
		"another rate":            func(c *Cache) { c.SeeRate("l", 11, time.Hour) },
		"another interval":        func(c *Cache) { c.SeeRate("l", 10, time.Minute) },
	} {
		var cache Cache
		before := cache.Changes()
		cache.Add(5, "l", refusal(3), now, before)
		change(&cache)
		if found := cache.Find("l", 3, now, Rate{}); found != nil {
			t.Errorf("%s: %+v holds", what, found)
		}
		cache.Add(5, "l", refusal(3), now, before)
		if found := cache.Find("l", 3, now, Rate{}); found != nil {
			t.Errorf("%s: a refusal from before it holds: %+v", what, found)
		}
	}
	var cache Cache
	cache.Add(5, "l", refusal(3), now, 0)
	cache.Forget("other")
	cache.SeeRate("l", 10, time.Hour)
	if found := cache.Find("l", 3, now, Rate{}); found == nil {
		t.Error("a change of another limiter, or the same rate, drops a refusal")
	}
}

func TestCacheIsBounded(t *testing.T) {
	var cache Cache
	for i := range 100 {
		name := fmt.Sprint(i)
		cache.Add(10, name, refusal(1), now, 0)
		if found := cache.Find(name, 1, now, Rate{}); found == nil {
			t.Fatalf("the last refusal, %s, is not kept", name)
		}
		if len(cache.all) > 10 {
			t.Fatalf("%d names", len(cache.all))
		}
	}
	if len(cache.all) != 10 {
		t.Errorf("%d names", len(cache.all))
	}
}

func TestHitsAreCounted(t *testing.T) {
	var cache Cache
	cache.Add(5, "l", refusal(1), now, 0)
	for want := range int64(3) {
		if hits := cache.Find("l", 1, now, Rate{}).Hit(); hits != want+1 {
			t.Errorf("Hit tells of %d hits, expected %d", hits, want+1)
		}
	}
	cache.Add(5, "l", refusal(1), now, 0) // hits stay
	if first, second, other := cache.Hits("l"), cache.Hits("l"), cache.Hits("other"); first != 3 || second != 0 ||
		other != 0 {
		t.Errorf("%d, %d and %d hits, expected 3, 0 and 0", first, second, other)
	}
}
