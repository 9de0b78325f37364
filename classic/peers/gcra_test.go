// Package peers compares the classic algorithms with the libraries whose layouts they share. It is
// a separate module, so that no other module depends on these libraries.
package peers

import (
	"fmt"
	"math/rand"
	"strconv"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// The same requests at the same times get the same results from both, and both store the same TAT.
func TestGCRAIsRedisRates(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	server := redistest.Embedded(t)
	rdb := server.Client()
	theirs := redis_rate.NewLimiter(rdb)
	granted, refused := 0, 0
	for seed := range int64(30) {
		random := rand.New(rand.NewSource(seed))
		rate := rratelimiter.Rate{
			Permits: 1 + random.Int63n(100), Interval: time.Duration(1+random.Int63n(20_000)) * time.Millisecond,
		}
		burst := 1 + random.Int63n(2*rate.Permits)
		limit := redis_rate.Limit{Rate: int(rate.Permits), Burst: int(burst), Period: rate.Interval}
		key := fmt.Sprint("theirs:", seed)
		ours := classic.NewGCRA(rdb, fmt.Sprint("ours:", seed), rate, burst)
		now := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
		server.Mini().SetTime(now)
		for i := range 100 {
			pause := time.Duration(random.ExpFloat64() * float64(rate.Interval) / float64(rate.Permits))
			now = now.Add(pause.Truncate(time.Microsecond))
			server.Mini().SetTime(now)
			n := 1 + random.Int63n(min(burst, 3))
			if random.Intn(10) == 0 {
				n = 1 + random.Int63n(burst)
			}
			if random.Intn(20) == 0 { // a debt, which redis_rate finds in its key, too
				used := 1 + random.Int63n(2*burst)
				for _, l := range []*classic.Limiter{ours, classic.NewGCRA(rdb, key, rate, burst)} {
					if _, err := l.Charge(t.Context(), used); err != nil {
						t.Fatal(err)
					}
				}
			}
			their, err := theirs.AllowN(t.Context(), key, limit, int(n))
			if err != nil {
				t.Fatal(err)
			}
			our, err := ours.Allow(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			our.NextAfter = 0 // redis_rate has none
			if our != result(their) {
				t.Fatalf("seed %d, request %d: ours %+v, redis_rate's %+v", seed, i, our, their)
			}
			// The embedded server formats redis_rate's numbers differently.
			if our, their := number(t, rdb, fmt.Sprint("rate:ours:", seed)), number(t, rdb, "rate:"+key); our != their {
				t.Fatalf("seed %d, request %d: ours leaves %v, redis_rate %v", seed, i, our, their)
			}
			if our.Allowed {
				granted++
			} else {
				refused++
			}
		}
	}
	if granted < 500 || refused < 500 {
		t.Errorf("%d granted, %d refused: too few of a kind", granted, refused)
	}
	t.Logf("%d granted, %d refused, all the same", granted, refused)
}

// result converts a result of redis_rate, which has -1 for a RetryAfter of zero.
func result(their *redis_rate.Result) rratelimiter.Result {
	return rratelimiter.Result{
		Allowed: their.Allowed > 0, Limit: int64(their.Limit.Burst), Remaining: int64(their.Remaining),
		RetryAfter: max(0, their.RetryAfter), ResetAfter: their.ResetAfter,
	}
}

func storedText(t *testing.T, rdb *redis.Client, key string) string {
	t.Helper()
	value, err := rdb.Get(t.Context(), key).Result()
	if err != nil && err != redis.Nil {
		t.Fatal(err)
	}
	return value
}

// number returns 0 if there is no number.
func number(t *testing.T, rdb *redis.Client, key string) float64 {
	t.Helper()
	value := storedText(t, rdb, key)
	if value == "" {
		return 0
	}
	number, err := strconv.ParseFloat(value, 64)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// Both libraries use one key in turn, and share one burst.
func TestGCRASharesAKeyWithRedisRate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client()
		theirs, limit := redis_rate.NewLimiter(rdb), redis_rate.PerHour(10)
		ours := classic.NewGCRA(rdb, "key", rratelimiter.PerHour(10), 10)
		for left := int64(9); left >= 0; left-- {
			var got rratelimiter.Result
			var err error
			if left%2 == 0 {
				got, err = ours.Allow(t.Context(), 1)
			} else {
				var their *redis_rate.Result
				if their, err = theirs.Allow(t.Context(), "key", limit); err == nil {
					got = result(their)
				}
			}
			if err != nil || !got.Allowed || got.Remaining != left {
				t.Fatalf("%+v, %v: not %d left", got, err, left)
			}
			value := storedText(t, rdb, "rate:key")
			if exact := fmt.Sprintf("%.17g", number(t, rdb, "rate:key")); s.IsReal() && exact != value {
				t.Errorf("%s is not how a server writes %s", value, exact)
			}
		}
		our, err := ours.Allow(t.Context(), 1)
		if err != nil || our.Allowed {
			t.Errorf("%+v, %v", our, err)
		}
		their, err := theirs.Allow(t.Context(), "key", limit)
		if err != nil || their.Allowed > 0 {
			t.Errorf("%+v, %v", their, err)
		}
	})
}
