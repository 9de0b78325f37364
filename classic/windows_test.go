package classic_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// windows_test.go tests the layouts and the borders of the fixed windows. Plain commands write and
// read the layouts.

var tenPerSecond = rratelimiter.PerSecond(10)

func TestFixedWindowGoesOnWithACount(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("incrby", "ip:/route", 7)
		b.do("pexpire", "ip:/route", 600)
		l := classic.NewFixedWindow(b.rdb, "ip:/route", tenPerSecond)
		equal(b, "remaining", b.granted(l, 2).Remaining, 1)
		b.holds("9", "get", "ip:/route")
		b.lives("ip:/route", 600*ms)
		r := b.refused(l, 2)
		b.near("retry after", r.RetryAfter, 600*ms)
		b.holds("9", "get", "ip:/route") // a refusal is not counted
		b.granted(l, 1)
		b.pass(601 * ms)
		b.holds(nil, "get", "ip:/route")
		equal(b, "limit", b.granted(l, 10).Limit, 10)
		b.holds("10", "get", "ip:/route")
		b.lives("ip:/route", time.Second)
	})
}

func TestFixedWindowTakesOtherLimits(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewFixedWindow(b.rdb, "user:/route", rratelimiter.Rate{Permits: 500, Interval: 30 * time.Second})
		b.granted(l, 499)
		b.granted(l, 1)
		b.refused(l, 1)
		b.lives("user:/route", 30*time.Second)
		b.pass(30*time.Second + ms)
		b.granted(l, 500)
	})
}

// A service that dies between INCR and EXPIRE leaves a key that refuses forever.
func TestFixedWindowRepairsALostTTL(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewFixedWindow(b.rdb, "key", tenPerSecond)
		for _, count := range []int{3, 10, 11} {
			b.do("set", "key", count)
			b.asked(l, 1, count < 10)
			b.lives("key", time.Second)
			b.pass(time.Second + ms)
			b.granted(l, 10)
		}
	})
}

// A server returns the rest of a TTL in whole ms, rounded down.
func TestRetryAfterOfARefusalIsNeverZero(t *testing.T) {
	b := newBench(t, redistest.Embedded(t))
	for _, l := range []asker{
		classic.NewFixedWindow(b.rdb, "count", tenPerSecond),
		classic.NewListWindow(b.rdb, "list", tenPerSecond),
	} {
		b.granted(l, 10)
		b.pass(time.Second - 400*time.Microsecond)
		equal(b, "retry after", b.refused(l, 1).RetryAfter, ms)
	}
}

func TestFixedWindowPassesTwiceAroundItsEnd(t *testing.T) {
	onServers(t, func(b *bench) {
		// A window so long that the time of a real server, which goes on, does not end it.
		l := classic.NewFixedWindow(b.rdb, "key", rratelimiter.PerMinute(10))
		equal(b, "at 0", b.takes(l, 1), 1)
		b.at(50 * time.Second)
		equal(b, "at 50 s", b.takes(l, 20), 9)
		b.at(time.Minute + ms)
		equal(b, "after a minute", b.takes(l, 20), 10)
	})
}

func TestWindowKeysGoesOnWithACount(t *testing.T) {
	onServers(t, func(b *bench) {
		key := "1.2.3.4:" + strconv.FormatInt(epoch.Unix(), 10)
		b.do("incrby", key, 8)
		b.do("expire", key, 1)
		b.at(300 * ms)
		l := classic.NewWindowKeys(b.rdb, "1.2.3.4", tenPerSecond, b.clock())
		b.granted(l, 1)
		b.holds("9", "get", key)
		equal(b, "retry after", b.refused(l, 2).RetryAfter, 700*ms)
		b.at(time.Second)
		b.granted(l, 10)
		next := "1.2.3.4:" + strconv.FormatInt(epoch.Unix()+1, 10)
		b.holds("10", "get", next)
		b.lives(next, time.Second)
	})
}

// The comparison of the usual form, count > limit, comes before INCR: it lets one more than the
// limit through.
func TestWindowKeysIsNotOffByOne(t *testing.T) {
	onServers(t, func(b *bench) {
		naive := func(key string) bool {
			if count, err := b.rdb.Get(b.Context(), key).Int(); err == nil && count > 10 {
				return false
			}
			b.do("incr", key)
			b.do("expire", key, 1)
			return true
		}
		passed := 0
		for range 20 {
			if naive("naive:1") {
				passed++
			}
		}
		equal(b, "the usual form", passed, 11)
		equal(b, "ours", b.takes(classic.NewWindowKeys(b.rdb, "ours", tenPerSecond, b.clock()), 20), 10)
	})
}

func TestWindowKeysPassesTwiceAroundABorder(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewWindowKeys(b.rdb, "ip", rratelimiter.PerSecond(5), b.clock())
		b.at(900 * ms)
		equal(b, "at 0.9 s", b.takes(l, 9), 5)
		b.at(1000 * ms)
		equal(b, "at 1 s", b.takes(l, 9), 5)
	})
}

func TestWindowKeysRepairsALostTTL(t *testing.T) {
	onServers(t, func(b *bench) {
		key := "ip:" + strconv.FormatInt(epoch.Unix(), 10)
		b.do("set", key, 10)
		b.refused(classic.NewWindowKeys(b.rdb, "ip", tenPerSecond, b.clock()), 1)
		b.lives(key, time.Second)
	})
}

func TestQuotaGoesOnWithACount(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("incrby", "user::2036-01-01", 7)
		b.do("decr", "user::2036-01-01")
		q := classic.NewQuota(b.rdb, "user", 10, classic.Days{}, b.clock())
		equal(b, "remaining", b.granted(q, 3).Remaining, 1)
		b.holds("9", "get", "user::2036-01-01")
		b.mortal("user::2036-01-01")
		equal(b, "retry after", b.refused(q, 2).RetryAfter, 12*time.Hour)
		b.at(12 * time.Hour)
		equal(b, "key", q.Key(), "user::2036-01-02")
		b.granted(q, 10)
		b.holds("10", "get", "user::2036-01-02")
	})
}

// mortal fails the test unless a key has a TTL. (It expires by the clock of the test, which a real
// server doesn't use.)
func (b *bench) mortal(key string) {
	b.Helper()
	if left := b.do("pttl", key).(int64); left == -1 {
		b.Errorf("%s never expires", key)
	}
}

func TestQuotaTakesBack(t *testing.T) {
	onServers(t, func(b *bench) {
		q := classic.NewQuota(b.rdb, "user", 10, classic.Days{Layout: "20060102"}, b.clock())
		b.granted(q, 10)
		left, err := q.Return(b.Context(), 4)
		if err != nil {
			b.Fatal(err)
		}
		equal(b, "counted", left, 6)
		b.holds("6", "get", q.Key())
		if left, err = q.Return(b.Context(), 100); err != nil {
			b.Fatal(err)
		}
		equal(b, "counted", left, 0)
		b.granted(q, 10)
		if !strings.HasSuffix(q.Key(), "::"+b.now.UTC().Format("20060102")) {
			b.Error(q.Key())
		}
	})
}

// GETSET removes the TTL of the key: from then on the count stays.
func TestQuotaResetKeepsTheTTL(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("set", "naive", 7, "ex", 100)
		b.holds("7", "getset", "naive", 0)
		b.holds(-1, "pttl", "naive")

		q := classic.NewQuota(b.rdb, "user", 10, classic.Days{}, b.clock())
		b.granted(q, 7)
		count, err := q.Reset(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		equal(b, "count", count, 7)
		b.holds("0", "get", q.Key())
		b.mortal(q.Key())
		b.granted(q, 10)
	})
}

func TestQuotaDaysHaveAPlace(t *testing.T) {
	onServers(t, func(b *bench) {
		east := time.FixedZone("", 13*3600) // a zone that already has the next date
		q := classic.NewQuota(b.rdb, "user", 10, classic.Days{Location: east}, b.clock())
		equal(b, "key", q.Key(), "user::2036-01-02")
		equal(b, "reset after", b.granted(q, 1).ResetAfter, 23*time.Hour)
	})
}

func TestListWindowGoesOnWithAList(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("rpush", "ip", "ip", "ip", "ip", "ip", "ip", "ip", "ip")
		b.do("expire", "ip", 1)
		l := classic.NewListWindow(b.rdb, "ip", tenPerSecond)
		b.granted(l, 2)
		b.holds(9, "llen", "ip")
		b.near("retry after", b.refused(l, 2).RetryAfter, time.Second)
		b.holds(9, "llen", "ip")
		b.granted(l, 1)
		b.lives("ip", time.Second)
		b.pass(time.Second + ms)
		b.holds(0, "llen", "ip")
		b.granted(l, 10)
		b.holds(10, "llen", "ip")
		b.lives("ip", time.Second)
		b.refused(l, 1)
		b.holds(int64(1), "dbsize") // the second key is deleted
	})
}

func TestListWindowRepairsALostTTL(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewListWindow(b.rdb, "ip", rratelimiter.PerSecond(2))
		b.do("rpush", "ip", "ip", "ip")
		b.refused(l, 1)
		b.lives("ip", time.Second)
	})
}

func TestCursorWindowGoesOnWithAHash(t *testing.T) {
	onServers(t, func(b *bench) {
		began := epoch.Add(-300 * ms).UnixMilli()
		b.do("hset", "name", "cursor", began, "currentRate", 7)
		l := classic.NewCursorWindow(b.rdb, "name", tenPerSecond, b.clock())
		b.granted(l, 2)
		b.holds("9", "hget", "name", "currentRate")
		b.holds(strconv.FormatInt(began, 10), "hget", "name", "cursor")
		equal(b, "retry after", b.refused(l, 2).RetryAfter, 700*ms)
		b.pass(700*ms - ms)
		b.refused(l, 2)
		b.pass(200 * ms)
		b.granted(l, 10)
		b.holds("10", "hget", "name", "currentRate")
		b.holds(strconv.FormatInt(began+1000, 10), "hget", "name", "cursor")
		b.lives("name", time.Second)
	})
}

// The naive form, and this one, which keeps its layout, slide no more than a fixed window.
func TestCursorWindowPassesTwiceAroundABorder(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("hset", "naive", "cursor", epoch.UnixMilli(), "currentRate", 0)
		naive := func() bool {
			cursor, _ := b.rdb.HGet(b.Context(), "naive", "cursor").Int64()
			used, _ := b.rdb.HGet(b.Context(), "naive", "currentRate").Int64()
			if b.now.UnixMilli()-cursor >= 1000 {
				cursor, used = cursor+1000, 0
			}
			if used >= 10 {
				return false
			}
			b.do("hset", "naive", "cursor", cursor, "currentRate", used+1)
			return true
		}
		ours := classic.NewCursorWindow(b.rdb, "ours", tenPerSecond, b.clock())
		exact := classic.NewSlidingLog(b.rdb, "exact", tenPerSecond, b.clock())
		var byNaive, byOurs, byExact int
		for _, at := range []time.Duration{900 * ms, 1100 * ms} {
			b.at(at)
			for range 10 {
				if naive() {
					byNaive++
				}
			}
			byOurs += b.takes(ours, 10)
			byExact += b.takes(exact, 10)
		}
		equal(b, "the naive form, within 0.2 s", byNaive, 20)
		equal(b, "ours, within 0.2 s", byOurs, 20)
		equal(b, "a sliding log, within 0.2 s", byExact, 10)
	})
}
