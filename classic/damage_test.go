package classic_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// damage_test.go has states that no client writes: an invalid state must neither refuse forever nor
// grant too much.

// Whatever its keys hold, a limiter returns no error, grants again in time, and from then on grants
// no more than a new one.
func TestDamageIsRepaired(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		states := int64(10)
		if s.IsReal() || testing.Short() {
			states = 5
		}
		for _, subject := range subjects() {
			t.Run(subject.name, func(t *testing.T) {
				onServer(t, s, func(b *bench) {
					for seed := range states {
						b.do("flushdb")
						b.repairs(subject, seed)
					}
				})
			})
		}
	})
}

// repairs damages the keys of a limiter, and makes requests until one is granted, and for a while
// after.
func (b *bench) repairs(s subject, seed int64) {
	b.Helper()
	random := rand.New(rand.NewSource(seed))
	l := s.make(b.rdb, "key", b.clock())
	b.granted(l, 1)
	b.takes(l, 15*random.Intn(2))
	var done string
	for _, key := range slices.Sorted(slices.Values(b.rdb.Keys(b.Context(), "*").Val())) {
		done += b.damage(random, key)
	}

	var log []window.Grant
	ask := func() bool {
		r, err := l.Allow(b.Context(), 1)
		if err != nil {
			b.Fatalf("seed %d,%s: %v", seed, done, err)
		}
		if r.Allowed {
			log = append(log, window.Grant{Permits: 1, Start: b.now, End: b.now})
		} else if r.RetryAfter <= 0 {
			b.Fatalf("seed %d,%s: refused, to come back after %v", seed, done, r.RetryAfter)
		}
		return r.Allowed
	}
	for began := b.now; !ask(); b.pass(s.repaired / 20) {
		if b.now.Sub(began) > s.repaired {
			b.Fatalf("seed %d,%s: nothing granted after %v", seed, done, b.now.Sub(began))
		}
	}
	for range 40 {
		for ask() && random.Intn(3) > 0 {
		}
		b.pass(time.Duration(random.Intn(200)) * ms)
	}
	for _, key := range b.rdb.Keys(b.Context(), "*").Val() {
		if left := b.do("pttl", key).(int64); left == -1 {
			b.Fatalf("seed %d,%s: %s never expires", seed, done, key)
		}
	}
	if b.mini == nil {
		return // time advances on a real server, and keys expire early by the clock of the test
	}
	for _, over := range s.over {
		if most, at := window.Largest(log, over); most > s.bound(over) {
			b.Fatalf("seed %d,%s: %d permits in the %v from %v, more than %d",
				seed, done, most, over, at, s.bound(over))
		}
	}
}

// damage changes a key at random and returns a description.
func (b *bench) damage(random *rand.Rand, key string) string {
	b.Helper()
	done := []any{"ping"}
	switch b.do("type", key) {
	case "string":
		done = []any{"set", key, b.junk(random)}
	case "list":
		done = []any{"rpush", key}
		for range 1 + random.Intn(30) {
			done = append(done, b.junk(random))
		}
	case "zset":
		done = []any{"zadd", key}
		for range 1 + random.Intn(20) {
			done = append(done, strconv.FormatFloat(b.number(random), 'f', -1, 64), b.junk(random))
		}
	case "hash":
		done = []any{"hset", key, "unknown", b.junk(random)}
		for _, field := range slices.Sorted(maps.Keys(b.rdb.HGetAll(b.Context(), key).Val())) {
			switch random.Intn(4) {
			case 0: // stays
			case 1:
				b.do("hdel", key, field)
				done = append(done, "unknown "+field, "deleted")
			default:
				done = append(done, field, b.junk(random))
			}
		}
		done = append(done, b.junk(random), b.junk(random))
	}
	if random.Intn(8) > 0 {
		b.do(done...)
	} else {
		done = []any{"del", key}
		b.do(done...)
	}
	switch random.Intn(3) {
	case 0:
		b.do("persist", key)
		done = append(done, "for ever")
	case 1:
		life := int64(math.Pow(10, 5+7*random.Float64()))
		b.do("pexpire", key, life)
		done = append(done, "for", life, "ms")
	}
	return fmt.Sprint(" ", done)
}

// junk returns a text in the place of a number.
func (b *bench) junk(random *rand.Rand) string {
	number := b.number(random)
	switch random.Intn(8) {
	case 0:
		return noNumbers[random.Intn(len(noNumbers))]
	case 1:
		return strconv.FormatFloat(number, 'f', -1, 64)
	case 2:
		return fmt.Sprintf("%020.0f", number)
	case 3:
		return fmt.Sprintf("0%.0f", math.Abs(number))
	}
	return fmt.Sprintf("%.0f", number)
}

// number returns a number of any size, or a time near now, or far from it, or in another unit.
func (b *bench) number(random *rand.Rand) float64 {
	size := math.Pow(10, 18*random.Float64())
	switch random.Intn(8) {
	case 0:
		return -size
	case 1:
		return size
	case 2:
		return 20 * random.Float64()
	case 3:
		return float64(b.now.Unix())
	case 4:
		return float64(b.now.UnixMicro())
	case 5:
		return float64(b.now.UnixMilli()/200) + 20*random.Float64() - 10 // the number of a sub-window
	case 6:
		return float64(b.now.Unix()-time.Date(2017, time.January, 1, 0, 0, 0, 0, time.UTC).Unix()) + size
	}
	return float64(b.now.UnixMilli()) + (2*random.Float64()-1)*size
}

var noNumbers = []string{
	"", "nan", "-nan", "inf", "-inf", "1e999", "-1e999", "0x10", "soon", "1.5.5", " 5", "5 ", "99999999999999999999",
	"-0",
	"9\x00",
	"1_000", "5.", ".5", "1e3", "+5",
}

// A bucket with an invalid state leaks from the next call on, even if that is refused.
func TestLeakyBucketLeaksWhateverItsStateIs(t *testing.T) {
	states := map[string][]any{
		"no time":           {"level", 5},
		"no time, no level": {"level", "1.5", "lastLeak", "soon"},
		"an hour ahead":     {"level", 5, "lastLeak", epoch.Add(time.Hour).UnixMilli()},
		"time in µs":        {"level", 5, "lastLeak", epoch.UnixMicro()},
		"level of 1e14":     {"level", "100000000000000", "lastLeak", epoch.UnixMilli()},
		"both":              {"level", "100000000000000"},
	}
	rate := rratelimiter.PerSecond(5)
	makers := map[string]func(b *bench) asker{
		"bucket": func(b *bench) asker { return classic.NewLeakyBucket(b.rdb, "key", rate, 2, b.clock()) },
		"queue":  func(b *bench) asker { return classic.NewLeakyQueue(b.rdb, "key", rate, 2, b.clock()) },
	}
	onServers(t, func(b *bench) {
		for form, make := range makers {
			for state, fields := range states {
				b.now = epoch
				b.do("del", "key")
				b.do(append([]any{"hset", "key"}, fields...)...)
				l, granted := make(b), 0
				for range 9 {
					granted += b.takes(l, 1)
					b.pass(50 * ms)
				}
				if granted < 1 || granted > 3 {
					b.Errorf("%s, %s: granted %d in 400 ms", form, state, granted)
				}
			}
		}
	})
}

// A number with more digits than any level has is invalid, on every server.
func TestLeakyBucketReadsNoEndlessNumber(t *testing.T) {
	onServers(t, func(b *bench) {
		for _, level := range []string{"9999999999999999999999", "1000000000000000.5"} {
			b.do("hset", "key", "level", level, "lastLeak", b.now.UnixMilli())
			b.granted(classic.NewLeakyBucket(b.rdb, "key", tenPerSecond, 5, b.clock()), 5)
		}
	})
}

// The state of a client with another capacity, or another clock, is valid.
func TestLeakyBucketAcceptsOtherClients(t *testing.T) {
	onServers(t, func(b *bench) {
		large := classic.NewLeakyBucket(b.rdb, "key", tenPerSecond, 40, b.clock())
		small := classic.NewLeakyBucket(b.rdb, "key", tenPerSecond, 5, b.clock())
		b.granted(large, 40)
		equal(b, "retry after", b.refused(small, 1).RetryAfter, 3600*ms)
		b.holds("40.000000", "hget", "key", "level")

		b.do("hset", "key", "level", 5, "lastLeak", epoch.Add(59*time.Second).UnixMilli())
		equal(b, "retry after", b.refused(small, 1).RetryAfter, 59100*ms)
		b.holds(stamp(epoch.Add(59*time.Second)), "hget", "key", "lastLeak")
	})
}

func TestGatewayBucketHealsATimeAhead(t *testing.T) {
	onServers(t, func(b *bench) {
		p := classic.Gateway{Every: 100 * ms, Capacity: 10, Interval: time.Second}
		l := classic.NewGatewayBucket(b.rdb, "bucket", p, b.clock())
		b.do("hset", "bucket", "lastRefillTime", epoch.Add(30*time.Second).UnixMilli(), "tokensRemaining", 0)
		equal(b, "retry after", b.refused(l, 1).RetryAfter, 30100*ms) // another client's clock
		b.do("hset", "bucket", "lastRefillTime", epoch.UnixMicro(), "tokensRemaining", 0)
		equal(b, "retry after", b.refused(l, 1).RetryAfter, 100*ms)
		b.lives("bucket", time.Second+ms)
		b.pass(300 * ms)
		b.granted(l, 3)
		b.refused(l, 1)
	})
}

// A TTL in ms, given to EXPIRE, is a thousand times too long.
func TestWindowsRepairATTLThatIsTooLong(t *testing.T) {
	onServers(t, func(b *bench) {
		for key, l := range map[string]asker{
			"count": classic.NewFixedWindow(b.rdb, "count", rratelimiter.PerSecond(2)),
			"list":  classic.NewListWindow(b.rdb, "list", rratelimiter.PerSecond(2)),
		} {
			b.granted(l, 2)
			b.do("expire", key, 10) // a window of another length
			b.refused(l, 1)
			b.lives(key, 10*time.Second)
			b.do("expire", key, 1000)
			b.near("retry after", b.refused(l, 1).RetryAfter, time.Second)
			b.lives(key, time.Second)
			b.pass(time.Second + ms)
			b.granted(l, 2)
		}
		b.do("set", "count", "soon", "ex", 1000)
		equal(
			b, "reset after",
			b.granted(classic.NewFixedWindow(b.rdb, "count", rratelimiter.PerSecond(2)), 1).ResetAfter,
			time.Second,
		)
	})
}

// INCRBY accepts a number in no form but its own.
func TestCountersRepairANumberWithZeros(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("set", "count", "0007", "px", 1000)
		b.do("set", "keys:"+strconv.FormatInt(epoch.Unix(), 10), "0007", "px", 1000)
		b.do("set", "user::2036-01-01", "0007", "px", 1000)
		equal(b, "fixed window", b.takes(classic.NewFixedWindow(b.rdb, "count", tenPerSecond), 20), 10)
		equal(b, "window keys", b.takes(classic.NewWindowKeys(b.rdb, "keys", tenPerSecond, b.clock()), 20), 10)
		equal(b, "quota", b.takes(classic.NewQuota(b.rdb, "user", 10, classic.Days{}, b.clock()), 20), 10)
	})
}

// Returning permits to an invalid count stores a zero that INCRBY accepts: it does not accept "-0".
func TestQuotaReturnRepairsTheCount(t *testing.T) {
	onServers(t, func(b *bench) {
		q := classic.NewQuota(b.rdb, "user", 10, classic.Days{}, b.clock())
		for _, stored := range []string{"-5", "soon"} {
			b.do("set", q.Key(), stored)
			if count, err := q.Return(b.Context(), 1); err != nil || count != 0 {
				b.Errorf("%s: %d counted, %v", stored, count, err)
			}
			b.holds("0", "get", q.Key())
			if n, err := b.rdb.IncrBy(b.Context(), q.Key(), 3).Result(); err != nil || n != 3 {
				b.Errorf("%s: INCRBY: %d, %v", stored, n, err)
			}
		}
	})
}

// A sum that is too low grants the same permits in every interval, unless it is compared with the
// records.
func TestSlidingLogRepairsASumThatIsTooLow(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSlidingLog(b.rdb, "name", rratelimiter.PerSecond(1000), b.clock())
		for i := range 1000 {
			b.do("zadd", "name_windows", stamp(b.now.Add(-500*ms)), fmt.Sprint("1:", i))
		}
		b.do("hset", "name", "currentRate", 5)
		b.refused(l, 1)
		b.holds("1000", "hget", "name", "currentRate")
	})
}

// A record counts as at least one permit, whatever its member contains.
func TestSlidingLogCountsEachRecord(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSlidingLog(b.rdb, "name", tenPerSecond, b.clock())
		b.do("zadd", "name_windows", stamp(b.now), "0:a", stamp(b.now), "0b", stamp(b.now), "-3", stamp(b.now), "id")
		equal(b, "granted", b.takes(l, 20), 6)
	})
}

// A record with an impossible time is removed.
func TestSlidingLogForgetsRecordsAhead(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSlidingLog(b.rdb, "name", tenPerSecond, b.clock())
		b.do("zadd", "name_windows", stamp(b.now.Add(30*time.Second)), "4:a", stamp(b.now.Add(time.Hour)), "6:b")
		equal(b, "granted", b.takes(l, 10), 6)
		b.holds(7, "zcard", "name_windows")
	})
}

func TestTokenBucketForgetsADebtThatNobodyMade(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTokenBucket(b.rdb, "key", tokens, b.clock())
		for state, wait := range map[int]time.Duration{-1000: 501 * 5 * time.Second, -1001: 5 * time.Second} {
			b.do("set", "key", state)
			b.do("set", "key_time", b.now.Unix())
			equal(b, fmt.Sprint(state, " tokens: retry after"), b.refused(l, 1).RetryAfter, wait)
		}
	})
}

func TestSpringBucketForgetsADebtThatNobodyMade(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSpringBucket(b.rdb, "id", classic.Spring{ReplenishRate: 2, BurstCapacity: 10}, b.clock())
		for state, wait := range map[int]time.Duration{-1000: 501 * time.Second, -1001: time.Second} {
			b.do("set", "request_rate_limiter.{id}.tokens", state)
			b.do("set", "request_rate_limiter.{id}.timestamp", b.now.Unix())
			equal(b, fmt.Sprint(state, " tokens: retry after"), b.refused(l, 1).RetryAfter, wait)
		}
	})
}

func TestGCRAForgetsATimeThatNobodyMade(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewGCRA(b.rdb, "key", rratelimiter.PerMinute(1), 5, b.clock())
		ahead := func(d time.Duration) string {
			return strconv.FormatInt(b.now.Add(d).Unix()-time.Date(2017, time.January, 1, 0, 0, 0, 0, time.UTC).Unix(),
				10)
		}
		b.do("set", "rate:key", ahead(550*time.Minute)) // a debt of a limiter with a larger burst
		equal(b, "retry after", b.refused(l, 1).RetryAfter.Round(time.Second), 546*time.Minute)
		b.do("set", "rate:key", ahead(551*time.Minute))
		b.granted(l, 5)
		b.refused(l, 1)
	})
}
