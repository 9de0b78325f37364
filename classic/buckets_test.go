package classic_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
)

// buckets_test.go has the layouts and the boundaries of buckets and of GCRA.

var tokens = classic.Tokens{Capacity: 10, PerStep: 2, Step: 5 * time.Second}

func TestTokenBucketGoesOnWithTwoKeys(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("set", "key", 3, "ex", 25)
		b.do("set", "key_time", epoch.Unix()-12, "ex", 25)
		l := classic.NewTokenBucket(b.rdb, "key", tokens, b.clock())
		r := b.granted(l, 6) // two steps brought four
		equal(b, "remaining", r.Remaining, 1)
		b.holds("1", "get", "key")
		// two seconds of a step are carried over
		b.holds(strconv.FormatInt(epoch.Unix()-2, 10), "get", "key_time")
		b.lives("key", 25*time.Second)
		b.lives("key_time", 25*time.Second)
		equal(b, "retry after", b.refused(l, 2).RetryAfter, 3*time.Second)
		b.pass(3*time.Second - ms)
		b.refused(l, 2)
		b.pass(ms)
		b.granted(l, 3)
		b.holds("0", "get", "key")
		equal(b, "reset after", b.refused(l, 1).ResetAfter, 25*time.Second)
	})
}

func TestTokenBucketIsFullAtFirst(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTokenBucket(b.rdb, "key", tokens, b.clock())
		equal(b, "remaining", b.granted(l, 4).Remaining, 6)
		b.holds("6", "get", "key")
		b.holds(strconv.FormatInt(epoch.Unix(), 10), "get", "key_time")
		b.holds(25, "ttl", "key")
		b.holds(26, "ttl", "key_time") // one second longer at first
		b.granted(l, 1)
		b.holds(25, "ttl", "key_time")
		b.pass(time.Hour)
		b.granted(l, 10)
		b.refused(l, 1)
	})
}

func TestTokenBucketHealsItsTimeKey(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTokenBucket(b.rdb, "key", tokens, b.clock())
		for _, lost := range []string{"", "soon", "nan", "inf", "1e99", strconv.FormatInt(epoch.Unix()+3600, 10)} {
			b.do("set", "key", 1)
			b.do("set", "key_time", lost)
			if lost == "" {
				b.do("del", "key_time")
			}
			equal(b, "retry after", b.refused(l, 3).RetryAfter, 5*time.Second)
			b.holds(strconv.FormatInt(b.now.Unix(), 10), "get", "key_time")
			b.lives("key_time", 25*time.Second)
			b.pass(5 * time.Second)
			b.granted(l, 3)
		}
	})
}

// The plain form loses the rest: two seconds of each seven.
func TestTokenBucketCarriesOverTheRest(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTokenBucket(b.rdb, "key", classic.Tokens{Capacity: 100, PerStep: 1, Step: 5 * time.Second},
			b.clock())
		b.granted(l, 100)
		granted := 0
		for range 10 {
			b.pass(7 * time.Second)
			granted += b.takes(l, 3)
		}
		equal(b, "permits in 70 s", granted, 14)
	})
}

func TestTokenBucketOfDebtMakesTheNextOneWait(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTokenBucket(
			b.rdb, "key", classic.Tokens{Capacity: 10, PerStep: 2, Step: time.Second, Debt: 5}, b.clock(),
		)
		b.granted(l, 9)
		b.granted(l, 6) // one is there, five are owed
		b.holds("-5", "get", "key")
		b.holds(8, "ttl", "key") // until 15 are refilled
		r := b.refused(l, 1)
		equal(b, "remaining", r.Remaining, 0)
		equal(b, "retry after", r.RetryAfter, 3*time.Second)
		b.pass(3*time.Second - ms)
		b.refused(l, 1)
		b.pass(ms)
		b.granted(l, 1)
		b.granted(
			classic.NewTokenBucket(
				b.rdb, "full", classic.Tokens{Capacity: 10, PerStep: 2, Step: time.Second, Debt: 5}, b.clock(),
			),
			15,
		)
	})
}

// goldenKey, and the figures beside it, are those of a test case of gateways.
const goldenKey = "ratelimit:127.0.0.1:/user/get:1000"

func TestGatewayBucketGoldenCase(t *testing.T) {
	onServers(t, func(b *bench) {
		equal(b, "name", classic.GatewayKey("127.0.0.1", "/user/get", time.Second), goldenKey)
		now := int64(1520402606803)
		l := classic.NewGatewayBucket(b.rdb, goldenKey,
			classic.Gateway{Every: 500 * ms, Capacity: 2, Interval: time.Second},
			classic.WithClock(func() time.Time { return time.UnixMilli(now) }))
		state := func(last int64, tokens string) {
			b.Helper()
			b.holds(strconv.FormatInt(last, 10), "hget", goldenKey, "lastRefillTime")
			b.holds(tokens, "hget", goldenKey, "tokensRemaining")
		}
		b.granted(l, 1)
		state(1520402606803, "1")
		b.granted(l, 1)
		state(1520402606803, "0")
		equal(b, "retry after", b.refused(l, 1).RetryAfter, 500*ms)
		now += 700
		b.granted(l, 1)
		state(1520402607303, "0") // 200 ms are kept
		now += 300
		b.granted(l, 1)
		state(1520402607803, "0")
		now -= 5000 // a clock that is behind
		b.refused(l, 1)
		state(1520402607803, "0")
		now += 6001 // an idle interval
		b.granted(l, 2)
		state(1520402608804, "0")
	})
}

func TestGatewayBucketGoesOnWithAHash(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("hset", "bucket", "lastRefillTime", epoch.Add(-250*ms).UnixMilli(), "tokensRemaining", 3)
		l := classic.NewGatewayBucket(
			b.rdb, "bucket", classic.Gateway{Every: 100 * ms, Capacity: 10, Interval: time.Second}, b.clock(),
		)
		b.granted(l, 4)
		b.holds("1", "hget", "bucket", "tokensRemaining")
		b.holds(strconv.FormatInt(epoch.UnixMilli()-50, 10), "hget", "bucket", "lastRefillTime")
		b.holds(2, "hlen", "bucket")
		b.lives("bucket", time.Second+ms) // ms, which EXPIRE would take for a quarter of an hour
	})
}

// The usual script sets the TTL when it makes the bucket: a bucket in use expires, and is full
// again.
func TestGatewayBucketInUseDoesNotDie(t *testing.T) {
	onServers(t, func(b *bench) {
		p := classic.Gateway{Every: 100 * ms, Capacity: 10, Interval: time.Second}
		l := classic.NewGatewayBucket(b.rdb, "ours", p, b.clock())
		b.granted(l, 10)
		b.do("hset", "naive", "lastRefillTime", b.now.UnixMilli(), "tokensRemaining", 0)
		b.do("pexpire", "naive", 1000)
		for range 11 {
			b.pass(100 * ms)
			b.granted(l, 1)
			if n := b.do("exists", "naive").(int64); n == 1 {
				b.do("hset", "naive", "lastRefillTime", b.now.UnixMilli(), "tokensRemaining", 0)
			}
		}
		b.holds(0, "exists", "naive") // so the next request finds a full bucket
		b.refused(l, 1)
	})
}

func TestGatewayBucketNeverDividesByZero(t *testing.T) {
	onServers(t, func(b *bench) {
		limit, interval := int64(2000), time.Second
		every := time.Duration(interval.Milliseconds()/limit) * ms // as in the usual script
		l := classic.NewGatewayBucket(
			b.rdb, "bucket", classic.Gateway{Every: every, Capacity: limit, Interval: interval}, b.clock(),
		)
		if _, err := l.Allow(b.Context(), 1); !errors.Is(err, rratelimiter.ErrInvalidRate) {
			b.Error(err)
		}
	})
}

func TestSpringBucketGoesOnWithTwoKeys(t *testing.T) {
	const tokensKey = "request_rate_limiter.{orders.alice}.tokens"
	const timeKey = "request_rate_limiter.{orders.alice}.timestamp"
	onServers(t, func(b *bench) {
		b.do("set", tokensKey, 3, "ex", 4)
		b.do("set", timeKey, epoch.Unix()-2, "ex", 4)
		l := classic.NewSpringBucket(b.rdb, "orders.alice", classic.Spring{ReplenishRate: 5, BurstCapacity: 14},
			b.clock())
		b.pass(300 * ms)
		r := b.granted(l, 6) // two seconds brought ten
		equal(b, "remaining", r.Remaining, 7)
		equal(b, "reset after", r.ResetAfter, 1700*ms)
		b.holds("7", "get", tokensKey)
		b.holds(stampSeconds(b.now), "get", timeKey)
		b.lives(tokensKey, 5*time.Second) // 2 x 14 / 5 s, cut
		b.lives(timeKey, 5*time.Second)
		b.pass(700*ms - ms)
		r = b.refused(l, 9)
		equal(b, "retry after", r.RetryAfter, ms)
		b.pass(ms)
		equal(b, "retry after", b.refused(l, 13).RetryAfter, time.Second)
		b.holds("12", "get", tokensKey) // a refusal is written, too
		b.holds(stampSeconds(b.now), "get", timeKey)
		b.lives(timeKey, 5*time.Second)
		b.pass(time.Second)
		b.granted(l, 14)
	})
}

// Redis 7.2.0 to 7.2.4 writes the gateway's numbers with an exponent.
func TestSpringBucketReadsExponents(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("set", "request_rate_limiter.{id}.tokens", "2.5e+3")
		b.do("set", "request_rate_limiter.{id}.timestamp", b.now.Unix())
		l := classic.NewSpringBucket(b.rdb, "id", classic.Spring{ReplenishRate: 1, BurstCapacity: 5000}, b.clock())
		b.refused(l, 2501)
		b.granted(l, 2500)
	})
}

// As in the gateway: a time ahead is replaced by the first request, and a time behind is made up
// for again.
func TestSpringBucketWhoseClockGoesBack(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSpringBucket(b.rdb, "id", classic.Spring{ReplenishRate: 5, BurstCapacity: 10}, b.clock())
		b.granted(l, 10)
		b.now = b.now.Add(-time.Hour)
		equal(b, "retry after", b.refused(l, 1).RetryAfter, time.Second)
		b.holds(stampSeconds(b.now), "get", "request_rate_limiter.{id}.timestamp")
		b.now = b.now.Add(time.Hour)
		b.granted(l, 10)
	})
}

func TestSpringBucketGoesByTheServersClock(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewSpringBucket(b.rdb, "id", classic.Spring{ReplenishRate: 1, BurstCapacity: 100})
		before := b.rdb.Time(b.Context()).Val().Unix()
		if r := b.granted(l, 100); r.NextAfter <= 0 || r.NextAfter > time.Second {
			b.Errorf("%+v", r)
		}
		after := b.rdb.Time(b.Context()).Val().Unix()
		stored, err := strconv.ParseInt(b.do("get", "request_rate_limiter.{id}.timestamp").(string), 10, 64)
		if err != nil || stored < before || stored > after {
			b.Errorf("%d is not from %d to %d (%v)", stored, before, after, err)
		}
	})
}

// A million requests a day, as the gateway's documentation sets up a rate below one request a
// second: a day's seconds are the tokens of one request.
func TestSpringBucketLimitsByTheDay(t *testing.T) {
	onServers(t, func(b *bench) {
		const day, million = 86_400, 1_000_000
		l := classic.NewSpringBucket(
			b.rdb, "id", classic.Spring{ReplenishRate: million, BurstCapacity: million * day}, b.clock(),
		)
		equal(b, "remaining", b.granted(l, day).Remaining, day*(million-1))
		b.granted(l, day*(million-1))
		equal(b, "retry after", b.refused(l, day).RetryAfter, time.Second)
		b.pass(time.Second)
		equal(b, "granted", b.takesOf(l, 20, day), 11) // 1,000,000 / 86,400
		b.lives("request_rate_limiter.{id}.tokens", 2*day*time.Second)
	})
}

// The largest capacity is that of the gateway, 2^53 - 1, and each token counts.
func TestSpringBucketCountsEachTokenOfTheLargestCapacity(t *testing.T) {
	const most = 1<<53 - 1
	onServers(t, func(b *bench) {
		l := classic.NewSpringBucket(b.rdb, "slow", classic.Spring{ReplenishRate: 1, BurstCapacity: most}, b.clock())
		equal(b, "remaining", b.granted(l, most-2).Remaining, 2)
		equal(b, "remaining", b.granted(l, 1).Remaining, 1)
		b.pass(time.Second)
		equal(b, "remaining", b.granted(l, 1).Remaining, 1)
		r := b.refused(l, most)
		equal(b, "retry after", r.RetryAfter, 9_000_000_000*time.Second) // the longest time that is told
		equal(b, "reset after", r.ResetAfter, 9_000_000_000*time.Second)
		fast := classic.NewSpringBucket(b.rdb, "fast", classic.Spring{ReplenishRate: most, BurstCapacity: most},
			b.clock())
		b.granted(fast, most)
		b.refused(fast, 1)
		b.pass(time.Second)
		equal(b, "remaining", b.granted(fast, 1).Remaining, most-1)
	})
}

// A header field names the gateway's bucket: each of its bytes is one character, which Redis gets
// as UTF-8.
func TestSpringHeaderIsReadAsTheGatewayReadsIt(t *testing.T) {
	onServers(t, func(b *bench) {
		for value, want := range map[string]string{
			"":                               "",
			"alice":                          "alice",
			"ü":                              "\xc3\x83\xc2\xbc", // Ã¼
			"\xfc":                           "ü",
			"\x00\x7f\x80\xff":               "\x00\x7f\xc2\x80\xc3\xbf",
			"\xe6\x97\xa5":                   "\xc3\xa6\xc2\x97\xc2\xa5",
			classic.SpringHeader("\xc3\xbc"): "\xc3\x83\xc2\x83\xc3\x82\xc2\xbc", // twice is once too often
		} {
			equal(b, fmt.Sprintf("%q", value), classic.SpringHeader(value), want)
		}
		id := "orders." + classic.SpringHeader("ü")
		b.granted(classic.NewSpringBucket(b.rdb, id, classic.Spring{ReplenishRate: 1, BurstCapacity: 9}, b.clock()), 2)
		b.holds("7", "get", "request_rate_limiter.{orders.\xc3\x83\xc2\xbc}.tokens")
	})
}

// With a rate below one token a second, a request is served after the time that it was told.
func TestSpringBucketAddsPartsOfTokens(t *testing.T) {
	onServers(t, func(b *bench) {
		for _, rate := range []float64{0.5, 0.1, 0.3, 0.7, 1.0 / 3, 1e-4, 2.9} {
			l := classic.NewSpringBucket(
				b.rdb, fmt.Sprint(rate), classic.Spring{ReplenishRate: rate, BurstCapacity: 3}, b.clock(),
			)
			b.granted(l, 3)
			for n := range int64(3) {
				r := b.refused(l, n+1)
				want := time.Duration(math.Ceil(float64(n+1)/rate-1e-9)) * time.Second
				equal(b, fmt.Sprint("retry after at ", rate), r.RetryAfter, want)
				if n == 0 {
					equal(b, fmt.Sprint("next after at ", rate), r.NextAfter, want)
				}
				b.pass(r.RetryAfter - time.Second)
				if r, err := l.Peek(b.Context(), n+1); err != nil || r.Allowed {
					b.Errorf("a second before: %+v, %v", r, err)
				}
				b.pass(time.Second)
				b.granted(l, n+1)
				b.do("set", "request_rate_limiter.{"+fmt.Sprint(rate)+"}.tokens", 0)
			}
		}
	})
}

func stampSeconds(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func TestLeakyBucketGoesOnWithAHash(t *testing.T) {
	onServers(t, func(b *bench) {
		b.do("hset", "bucket", "level", "4.5", "lastLeak", epoch.Add(-200*ms).UnixMilli())
		l := classic.NewLeakyBucket(b.rdb, "bucket", tenPerSecond, 5, b.clock())
		r := b.granted(l, 2) // 2.5 are left
		equal(b, "reset after", r.ResetAfter, 450*ms)
		b.holds("4.500000", "hget", "bucket", "level")
		b.holds(strconv.FormatInt(epoch.UnixMilli(), 10), "hget", "bucket", "lastLeak")
		b.lives("bucket", 450*ms)
		equal(b, "retry after", b.refused(l, 1).RetryAfter, 50*ms)
		b.pass(49 * ms)
		b.refused(l, 1)
		b.pass(ms)
		b.granted(l, 1)
	})
}

func TestLeakyBucketFlowsOutEvenly(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewLeakyBucket(b.rdb, "bucket", rratelimiter.Rate{Permits: 3, Interval: time.Second}, 5, b.clock())
		equal(b, "at once", b.takes(l, 20), 5)
		granted := 0
		for range 3000 / 50 {
			b.pass(50 * ms)
			granted += b.takes(l, 1)
		}
		equal(b, "in 3 s", granted, 9)
	})
}

func TestLeakyQueueLetsCallersGoOneByOne(t *testing.T) {
	onServers(t, func(b *bench) {
		// so slow that the queue's TTL, of 1 s, does not end before it is looked at
		rate := rratelimiter.PerSecond(2)
		q := classic.NewLeakyQueue(b.rdb, "queue", rate, 3, b.clock())
		began := time.Now()
		for range 2 {
			if err := q.Acquire(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
		}
		if took := time.Since(began); took < 500*ms {
			b.Errorf("the second went on after %v", took)
		}
		equal(b, "retry after", b.refused(q, 1).RetryAfter, time.Second)
		b.holds("2.000000", "hget", "queue", "level")
		if err := q.Acquire(b.Context(), 2); !errors.Is(err, classic.ErrQueueFull) {
			b.Error(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		if err := q.Acquire(ctx, 1); !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
		b.holds("2.000000", "hget", "queue", "level")
		b.pass(time.Second)
		b.granted(q, 1)
	})
}

func TestGCRAGoesOnWithATime(t *testing.T) {
	onServers(t, func(b *bench) {
		const y2017 = 1483228800
		tat := float64(epoch.Unix()-y2017) + 0.25
		b.do("set", "rate:key", strconv.FormatFloat(tat, 'f', -1, 64), "ex", 1)
		l := classic.NewGCRA(b.rdb, "key", tenPerSecond, 5, b.clock())
		r := b.granted(l, 2) // two and a half were taken
		equal(b, "remaining", r.Remaining, 0)
		moved, err := strconv.ParseFloat(b.do("get", "rate:key").(string), 64)
		if err != nil || math.Abs(moved-tat-0.2) > 1e-6 {
			b.Error(moved, err)
		}
		b.lives("rate:key", time.Second)
		if wait := b.refused(l, 1).RetryAfter; wait < 49*ms || wait > 51*ms {
			b.Errorf("retry after %v", wait)
		}
	})
}

func TestGCRAPassesABurst(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewGCRA(b.rdb, "key", tenPerSecond, 10, b.clock())
		b.granted(l, 10)
		b.refused(l, 1)
		granted := 0
		for range 9 {
			b.pass(100*ms + time.Microsecond)
			granted += b.takes(l, 3)
		}
		equal(b, "in the rest of the second", granted, 9)
	})
}

// The embedded server parses a text that begins with a zero as an octal number.
func TestGCRAReadsMicrosecondsAsDecimal(t *testing.T) {
	onServers(t, func(b *bench) {
		const y2017 = 1483228800
		for _, micros := range []int{70000, 77777, 7, 10, 89999, 100000, 0} {
			b.now = epoch.Add(time.Duration(micros) * time.Microsecond)
			b.do("del", "rate:key")
			b.granted(classic.NewGCRA(b.rdb, "key", tenPerSecond, 5, b.clock()), 1)
			stored := b.do("get", "rate:key")
			tat, err := strconv.ParseFloat(stored.(string), 64)
			if want := float64(epoch.Unix()-y2017) + float64(micros)/1e6 + 0.1; err != nil ||
				math.Abs(tat-want) > 1e-6 {
				b.Errorf("%d µs: TAT %f, not %f (%v)", micros, tat, want, err)
			}
			if b.mini == nil {
				continue
			}
			b.mini.SetTime(b.now) // and by the server's own clock
			b.do("del", "rate:key")
			b.granted(classic.NewGCRA(b.rdb, "key", tenPerSecond, 5), 1)
			b.holds(stored, "get", "rate:key")
		}
	})
}

// GCRA uses the server's clock, whatever the client's is.
func TestGCRAGoesByTheServersClock(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewGCRA(b.rdb, "key", rratelimiter.PerHour(1), 1)
		b.granted(l, 1)
		b.refused(l, 1)
		now := b.rdb.Time(b.Context()).Val()
		tat, err := strconv.ParseFloat(b.do("get", "rate:key").(string), 64)
		if err != nil {
			b.Fatal(err)
		}
		if ahead := time.Unix(1483228800+int64(tat), 0).Sub(now); ahead < 59*time.Minute || ahead > time.Hour {
			b.Errorf("the next permit is due in %v", ahead)
		}
	})
}

// A refusal stores no refill, so the interval after which the bucket is full runs from the refill
// that is stored.
func TestGatewayBucketIsFullAnIntervalAfterTheStoredRefill(t *testing.T) {
	onServers(t, func(b *bench) {
		p := classic.Gateway{Every: time.Second, Capacity: 20, Interval: 5 * time.Second}
		l := classic.NewGatewayBucket(b.rdb, "bucket", p, b.clock())
		r := b.granted(l, 20)
		equal(b, "reset after", r.ResetAfter, 5*time.Second+ms)
		b.at(4900 * ms)
		r = b.refused(l, 20)
		equal(b, "remaining", r.Remaining, 4)
		equal(b, "retry after", r.RetryAfter, 101*ms)
		equal(b, "reset after", r.ResetAfter, 101*ms)
		equal(b, "retry after for 5", b.refused(l, 5).RetryAfter, 100*ms)
		// it stores the refill at 4 s
		equal(b, "reset after of a grant", b.granted(l, 1).ResetAfter, 4101*ms)
		b.at(9 * time.Second)
		b.refused(l, 20)
		b.pass(ms)
		b.granted(l, 20)
	})
}

// A wait that no Duration can hold is the longest one, not a short one.
func TestWaitsOfLargeParametersDoNotOverflow(t *testing.T) {
	const (
		longest = time.Duration(math.MaxInt64)
		whole   = longest / ms * ms
		month   = 30 * 24 * time.Hour
		most    = math.MaxUint32
	)
	rate := func(interval time.Duration) rratelimiter.Rate {
		return rratelimiter.Rate{Permits: 1, Interval: interval}
	}
	onServers(t, func(b *bench) {
		for _, c := range []struct {
			limiter  *classic.Limiter
			capacity int64
			want     time.Duration
		}{
			{classic.NewGCRA(b.rdb, "days", rate(24*time.Hour), 200_000, b.clock()), 200_000, longest},
			{classic.NewGCRA(b.rdb, "ages", rate(whole), most, b.clock()), most, longest},
			{classic.NewLeakyBucket(b.rdb, "leaky", rate(24*time.Hour), 200_000, b.clock()), 200_000, whole},
			{classic.NewLeakyBucket(b.rdb, "slow leaky", rate(whole), most, b.clock()), most, whole},
			{
				classic.NewTokenBucket(b.rdb, "tokens", classic.Tokens{Capacity: most, PerStep: 1, Step: month},
					b.clock()), most,
				whole,
			},
			{
				classic.NewGatewayBucket(b.rdb, "gateway",
					classic.Gateway{Every: month, Capacity: most, Interval: whole - ms}, b.clock()),
				most, whole,
			},
			{
				classic.NewSpringBucket(b.rdb, "spring", classic.Spring{ReplenishRate: 1, BurstCapacity: most},
					b.clock()), most,
				most * time.Second,
			},
			{
				classic.NewGatewayBucket(b.rdb, "slow gateway",
					classic.Gateway{Every: whole - ms, Capacity: most, Interval: whole - ms}, b.clock()),
				most, whole,
			},
		} {
			equal(b, c.limiter.Name()+": reset after a grant", b.granted(c.limiter, c.capacity).ResetAfter, c.want)
			r := b.refused(c.limiter, c.capacity)
			equal(b, c.limiter.Name()+": retry after", r.RetryAfter, c.want)
			equal(b, c.limiter.Name()+": reset after", r.ResetAfter, c.want)
		}
	})
}
