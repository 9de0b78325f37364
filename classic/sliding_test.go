package classic_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
)

// sliding_test.go has the layouts and the boundaries of the sliding windows.

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

func TestSlidingLogGoesOnWithHashAndZset(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("hset", "name", "cursor", stamp(epoch.Add(-1200*ms)), "currentRate", 9)
		b.do(
			"zadd", "name_windows", stamp(epoch.Add(-1200*ms)), "2", stamp(epoch.Add(-700*ms)), "3",
			stamp(epoch.Add(-100*ms)),
			"4",
		)
		l := classic.NewSlidingLog(b.rdb, "name", tenPerSecond, b.clock())
		equal(b, "remaining", b.granted(l, 2).Remaining, 1) // the oldest has expired
		b.holds("9", "hget", "name", "currentRate")
		b.holds(stamp(epoch.Add(-700*ms)), "hget", "name", "cursor")
		records := b.rdb.ZRangeWithScores(b.Context(), "name_windows", 0, -1).Val()
		if len(records) != 3 || records[0].Member != "3" || !strings.HasPrefix(records[2].Member.(string), "2:") ||
			int64(records[2].Score) != epoch.UnixMilli() {
			b.Errorf("%v", records)
		}
		b.lives("name", time.Second)
		b.lives("name_windows", time.Second)
		r := b.refused(l, 5)
		equal(b, "retry after", r.RetryAfter, 900*ms) // three are not enough
		equal(b, "reset after", r.ResetAfter, time.Second)
		equal(b, "retry after", b.refused(l, 2).RetryAfter, 300*ms)
		b.pass(300*ms - ms)
		b.refused(l, 2)
		b.pass(ms)
		b.granted(l, 4)
	})
}

// Two requests of one size have the same member in the plain form, so the second moves the record
// of the first.
func TestSlidingLogLosesNoRecord(t *testing.T) {
	onServers(t, func(b *bench) {
		naive := func(permits int64) bool {
			b.do("zremrangebyscore", "naive", "-inf", b.now.UnixMilli()-1000)
			var used int64
			for _, member := range b.rdb.ZRange(b.Context(), "naive", 0, -1).Val() {
				n, _ := strconv.ParseInt(member, 10, 64)
				used += n
			}
			if used+permits > 10 {
				return false
			}
			b.do("zadd", "naive", b.now.UnixMilli(), permits)
			return true
		}
		ours := classic.NewSlidingLog(b.rdb, "ours", tenPerSecond, b.clock())
		var byNaive, byOurs int
		for range 8 {
			b.pass(10 * ms)
			if naive(5) {
				byNaive += 5
			}
			if r, err := ours.Allow(b.Context(), 5); err != nil {
				b.Fatal(err)
			} else if r.Allowed {
				byOurs += 5
			}
		}
		equal(b, "the plain form, within 0.1 s", byNaive, 40)
		equal(b, "ours, within 0.1 s", byOurs, 10)
		b.holds(2, "zcard", "ours_windows")
	})
}

func TestSlidingLogHealsItsSum(t *testing.T) {
	onServers(t, func(b *bench) {
		for name, state := range map[string]string{
			"missing":      "",
			"text":         "many",
			"not a number": "nan",
			"infinite":     "-inf",
			"negative":     "-5",
			"too high":     "100",
		} {
			b.do("flushdb")
			b.do(
				"zadd", "name_windows", stamp(b.now), "4:a", stamp(b.now), "4:b", stamp(b.now.Add(-time.Second)), "2:c",
				"+inf",
				"9:d",
			)
			if name != "missing" {
				b.do("hset", "name", "currentRate", state)
			}
			l := classic.NewSlidingLog(b.rdb, "name", tenPerSecond, b.clock())
			equal(b, name, b.granted(l, 1).Remaining, 1)
			b.refused(l, 2)
			b.holds("9", "hget", "name", "currentRate")
			b.holds(3, "zcard", "name_windows")
		}
	})
}

func TestSubWindowsGoesOnWithAHash(t *testing.T) {
	onServers(t, func(b *bench) {
		number := epoch.UnixMilli() / 200
		field := func(i int64) string { return strconv.FormatInt(number+i, 10) }
		b.do(
			"hset", "key", field(-5), 10, field(-4), 2, field(-1), 3, field(0), 1, field(900), 7, "text", 5, field(-2),
			"nan",
		)
		l := classic.NewSubWindows(b.rdb, "key", tenPerSecond, 5, b.clock())
		equal(b, "remaining", b.granted(l, 3).Remaining, 1)
		b.holds("4", "hget", "key", field(0))
		b.holds(3, "hlen", "key")
		b.lives("key", time.Second)
		equal(b, "retry after", b.refused(l, 3).RetryAfter, 200*ms) // the two leave together
		equal(b, "retry after", b.refused(l, 4).RetryAfter, 800*ms)
		b.pass(200*ms - ms)
		b.refused(l, 3)
		b.pass(ms)
		b.granted(l, 3)
		b.holds("3", "hget", "key", field(1))
		b.holds(nil, "hget", "key", field(-4))
	})
}

// A minute, because on a real server time goes on: a fifth of the window is left of the key's life
// in the end.
func TestSubWindowsLeaveTogether(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSubWindows(b.rdb, "key", rratelimiter.PerMinute(10), 5, b.clock())
		b.at(time.Second)
		b.granted(l, 4)
		b.at(12*time.Second - ms)
		b.granted(l, 6)
		b.at(time.Minute - ms)
		b.refused(l, 1)
		b.at(time.Minute) // 48 s after the second grant
		b.granted(l, 10)
	})
}

func TestTwoCountersGoesOnWithAHash(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("hset", "key", "window", epoch.Unix()-1, "current", 8, "previous", 3)
		l := classic.NewTwoCounters(b.rdb, "key", tenPerSecond, b.clock())
		b.at(250 * ms) // six of the eight count
		equal(b, "remaining", b.granted(l, 4).Remaining, 0)
		b.holds(strconv.FormatInt(epoch.Unix(), 10), "hget", "key", "window")
		b.holds("4", "hget", "key", "current")
		b.holds("8", "hget", "key", "previous")
		b.lives("key", 2*time.Second)
		equal(b, "retry after", b.refused(l, 2).RetryAfter, 250*ms)
		b.at(499 * ms)
		b.refused(l, 2)
		b.at(500 * ms)
		b.granted(l, 2)
		// Seven do not fit into this window; in the next, half of the six have to go.
		equal(b, "retry after", b.refused(l, 7).RetryAfter, 1000*ms)
		b.at(1500 * ms)
		b.granted(l, 7)
	})
}

// The worst case: the last window's permits came at its end.
func TestTwoCountersErrorIsThePreviousTimesTheElapsedPart(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTwoCounters(b.rdb, "key", rratelimiter.PerSecond(100), b.clock())
		b.at(999 * ms)
		b.granted(l, 100)
		b.at(1900 * ms)
		equal(b, "0.9 s later", b.takes(l, 200), 90)
	})
}

// A client that does not know the field lasts leaves it behind. The permits that it granted count
// for an interval.
func TestTwoCountersBesideAClientWithoutLasts(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTwoCounters(b.rdb, "key", rratelimiter.PerSecond(100), b.clock())
		b.granted(l, 1)
		b.do("hset", "key", "window", epoch.Unix(), "current", 100, "previous", 0)
		b.do("pexpire", "key", 2000)
		b.at(1010 * ms)
		equal(b, "1 % into the next window", b.takes(l, 200), 1)
		b.at(2900 * ms)
		// the same count, but at 2900 ms
		b.do("hset", "key", "window", epoch.Unix()+2, "current", 1, "previous", 1)
		b.do("pexpire", "key", 2000)
		b.at(3010 * ms)
		equal(b, "after a window of the other client", b.takes(l, 200), 99)
	})
}

// A caller who polls all the time gets the whole of a small limit, and a limit of one permit is
// exact.
func TestTwoCountersGrantsAllOfASmallLimit(t *testing.T) {
	onServers(t, func(b *bench) {
		const seconds = 10
		for _, limit := range []int{1, 2, 3, 10} {
			l := classic.NewTwoCounters(b.rdb, fmt.Sprint(limit), rratelimiter.PerSecond(int64(limit)), b.clock())
			got := 0
			for range seconds * 20 {
				got += b.takes(l, 1)
				b.pass(50 * ms)
			}
			if got < limit*seconds {
				b.Errorf("at %d a second, %d of %d are granted", limit, got, limit*seconds)
			}
			b.pass(time.Second)
			b.granted(l, int64(limit))
			equal(b, "retry after", b.refused(l, 1).RetryAfter <= time.Second, true)
		}
		one := subject{
			name:  "one",
			most:  1,
			over:  []time.Duration{2 * time.Second},
			bound: func(time.Duration) int64 { return 1 },
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewTwoCounters(rdb, key, rratelimiter.Rate{Permits: 1, Interval: 2 * time.Second},
					opts...)
			},
		}
		b.traffic(one, 1)
	})
}

// On a cluster, two keys need a hash tag; a name that has one keeps it.
func TestTwoKeysGetAHashTagOnlyOnACluster(t *testing.T) {
	onServers(t, func(b *bench) {
		b.granted(classic.NewSlidingLog(b.rdb, "name", tenPerSecond), 1)
		b.holds(1, "exists", "name_windows")
		for _, name := range []string{"name", "{name}"} {
			recorder := &recorder{}
			cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
			cluster.AddHook(recorder)
			defer cluster.Close()
			_, _ = classic.NewSlidingLog(cluster, name, tenPerSecond).Allow(b.Context(), 1)
			_, _ = classic.NewTokenBucket(cluster, name, tokens).Allow(b.Context(), 1)
			want := []string{"{name}", "{name}_windows", "{name}", "{name}_time"}
			equal(b, "keys of "+name, strings.Join(recorder.keys, " "), strings.Join(want, " "))
		}
	})
}
