package classic_test

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// bounds_test.go sends random traffic through each algorithm and counts the grants of any time of
// some length: never more than the documented bound, and sometimes nearly as many, or the traffic
// proves nothing.

// A subject is an algorithm with the bound that it guarantees.
type subject struct {
	name     string
	make     func(rdb *redis.Client, key string, opts ...classic.Option) asker
	most     int64                       // largest request
	bound    func(t time.Duration) int64 // permits in any time t
	over     []time.Duration             // times to check
	exact    bool                        // the bound is reached
	timed    bool                        // windows end as keys expire, to the ms
	night    bool                        // traffic has to be around midnight
	repaired time.Duration               // a limiter with broken keys grants again within this time
}

func subjects() []subject {
	const limit, interval = 10, 2 * time.Second
	rate := rratelimiter.Rate{Permits: limit, Interval: interval}
	windows := []time.Duration{interval, 3 * interval}
	everywhere := []time.Duration{ms, 300 * ms, time.Second, interval, 5 * time.Second, 17 * time.Second}
	// aligned returns the bound of adjacent windows: all that a time can touch.
	aligned := func(t time.Duration) int64 { return limit * (int64((t+interval-2*ms)/interval) + 1) }
	// flowing returns the bound of a burst and a continuous refill.
	flowing := func(burst int64, perSecond float64) func(time.Duration) int64 {
		return func(t time.Duration) int64 { return burst + int64(math.Floor(perSecond*(t-ms).Seconds()+1e-6)) }
	}
	return []subject{
		{
			name:     "fixed window",
			repaired: 20 * time.Second,
			timed:    true,
			most:     limit,
			bound:    aligned,
			over:     windows,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewFixedWindow(rdb, key, rate, opts...)
			},
		},
		{
			name:     "window keys",
			repaired: interval,
			timed:    true,
			most:     limit,
			bound:    aligned,
			over:     windows,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewWindowKeys(rdb, key, rate, opts...)
			},
		},
		{
			name:     "quota",
			repaired: 24 * time.Hour,
			most:     limit,
			night:    true,
			over:     []time.Duration{24 * time.Hour},
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewQuota(rdb, key, limit, classic.Days{}, opts...)
			},
			bound: func(time.Duration) int64 { return 2 * limit },
		},
		{
			name:     "list window",
			repaired: 20 * time.Second,
			timed:    true,
			most:     limit,
			bound:    aligned,
			over:     windows,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewListWindow(rdb, key, rate, opts...)
			},
		},
		{
			name:     "cursor window",
			repaired: 2 * interval,
			most:     limit,
			bound:    aligned,
			over:     windows,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewCursorWindow(rdb, key, rate, opts...)
			},
		},
		{
			name:     "token bucket",
			repaired: 12 * time.Minute,
			most:     10,
			over:     everywhere,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewTokenBucket(rdb, key, classic.Tokens{Capacity: 10, PerStep: 3, Step: 2 * time.Second},
					opts...)
			},
			bound: func(t time.Duration) int64 { return 10 + 3*int64((t+2*time.Second-1)/(2*time.Second)) },
		},
		{
			name:     "token bucket with debt",
			repaired: 16 * time.Minute,
			most:     14,
			over:     everywhere,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewTokenBucket(
					rdb,
					key,
					classic.Tokens{Capacity: 10, PerStep: 3, Step: 2 * time.Second, Debt: 4},
					opts...)
			},
			bound: func(t time.Duration) int64 { return 14 + 3*int64((t+2*time.Second-1)/(2*time.Second)) },
		},
		{
			name:     "gateway bucket",
			repaired: 200*time.Second + interval,
			most:     limit,
			over:     everywhere,
			bound: func(t time.Duration) int64 {
				return limit + int64((t+200*ms-ms)/(200*ms))
			},
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewGatewayBucket(
					rdb,
					key,
					classic.Gateway{Every: 200 * ms, Capacity: limit, Interval: interval},
					opts...)
			},
		},
		{
			name:     "Spring bucket",
			repaired: 334 * time.Second,
			most:     limit,
			over:     everywhere,
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewSpringBucket(rdb, key, classic.Spring{ReplenishRate: 3, BurstCapacity: limit},
					opts...)
			},
			bound: func(t time.Duration) int64 { return limit + 3*int64((t+time.Second-ms)/time.Second) },
		},
		{
			name:     "sliding log",
			repaired: time.Minute + interval,
			most:     limit,
			over:     []time.Duration{interval},
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewSlidingLog(rdb, key, rate, opts...)
			},
			bound: func(time.Duration) int64 { return limit },
			exact: true,
		},
		{
			name:     "sub-windows",
			repaired: 2 * interval,
			most:     limit,
			over:     []time.Duration{interval * 4 / 5, interval},
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewSubWindows(rdb, key, rate, 5, opts...)
			},
			bound: func(t time.Duration) int64 { return limit * int64((t+interval*4/5-1)/(interval*4/5)) },
		},
		{
			name:     "two counters",
			repaired: 3 * interval,
			most:     limit,
			over:     []time.Duration{interval},
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewTwoCounters(rdb, key, rate, opts...)
			},
			bound: func(time.Duration) int64 { return 2*limit - 1 },
		},
		{
			name:     "leaky bucket",
			repaired: time.Minute + 132*time.Second,
			most:     6,
			over:     everywhere,
			bound:    flowing(6, 5),
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewLeakyBucket(rdb, key, rate, 6, opts...)
			},
			exact: true,
		},
		{
			name:     "leaky queue, without waiting",
			repaired: time.Minute + 132*time.Second,
			most:     1,
			over:     everywhere,
			bound:    flowing(1, 5),
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewLeakyQueue(rdb, key, rate, 6, opts...)
			},
			exact: true,
		},
		{
			name:     "GCRA",
			repaired: 132 * time.Second,
			most:     6,
			over:     everywhere,
			bound:    flowing(6, 5),
			make: func(rdb *redis.Client, key string, opts ...classic.Option) asker {
				return classic.NewGCRA(rdb, key, rate, 6, opts...)
			},
			exact: true,
		},
	}
}

func TestBounds(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, subject := range subjects() {
			if subject.timed && s.IsReal() {
				continue // a real server's time can't stand still between calls, as the test's does
			}
			t.Run(subject.name, func(t *testing.T) {
				onServer(t, s, func(b *bench) {
					highest := b.traffic(subject, 0)
					b.Logf("up to %.0f %% of the bound", 100*highest)
					if highest < 0.7 || subject.exact && highest < 1 {
						b.Errorf("no time held more than %.0f %% of what the bound allows", 100*highest)
					}
				})
			})
		}
	})
}

// traffic makes random requests and returns the highest part of the bound that was reached.
func (b *bench) traffic(s subject, seed int64) (highest float64) {
	b.Helper()
	random := rand.New(rand.NewSource(seed))
	key := fmt.Sprintf("%s %d", s.name, seed)
	l := s.make(b.rdb, key, b.clock())
	var log []window.Grant
	if s.night {
		b.pass(b.now.Truncate(24 * time.Hour).Add(24*time.Hour - 30*time.Second).Sub(b.now))
	}
	for range 400 {
		switch random.Intn(8) {
		case 0:
			b.pass(time.Duration(random.Intn(3000)) * ms)
		case 1: // around a border of windows
			next := b.now.Truncate(2 * time.Second).Add(2*time.Second - time.Duration(random.Intn(3))*ms)
			b.pass(max(0, next.Sub(b.now)))
		case 2: // nothing
		default:
			b.pass(time.Duration(random.Intn(250)) * ms)
		}
		n := 1 + random.Int63n(min(3, s.most))
		if random.Intn(5) == 0 {
			n = 1 + random.Int63n(s.most)
		}
		r, err := l.Allow(b.Context(), n)
		if err != nil {
			b.Fatal(err)
		}
		if b.mini == nil { // the TTLs of a real server end by its own clock, also while the test is delayed
			for _, name := range b.rdb.Keys(b.Context(), key+"*").Val() {
				b.rdb.Persist(b.Context(), name)
			}
		}
		if r.Allowed {
			log = append(log, window.Grant{Permits: n, Start: b.now, End: b.now})
		} else if r.RetryAfter <= 0 {
			b.Fatalf("seed %d: refused at %v, to come back after %v", seed, b.now, r.RetryAfter)
		}
	}
	for _, over := range s.over {
		most, at := window.LargestAt(log, over, ms)
		highest = max(highest, float64(most)/float64(s.bound(over)))
		if most > s.bound(over) {
			b.Errorf("seed %d: %d permits in the %v from %v, more than %d", seed, most, over, at, s.bound(over))
		}
	}
	return highest
}

// One permit more than Remaining is granted when NextAfter is over, and not a millisecond before.
func TestNextAfter(t *testing.T) {
	s := redistest.Embedded(t)
	for _, subject := range subjects() {
		switch subject.name {
		case "token bucket with debt", "leaky queue, without waiting":
			continue // Remaining does not decide: some grant more, the other less
		}
		t.Run(subject.name, func(t *testing.T) {
			b := newBench(t, s)
			b.do("flushdb")
			random := rand.New(rand.NewSource(1))
			l := subject.make(b.rdb, "key", b.clock())
			r := b.granted(l, 1)
			for range 200 {
				if r.NextAfter < ms || r.NextAfter > r.ResetAfter {
					b.Fatalf("%+v", r)
				}
				if r.Remaining > 0 && random.Intn(3) > 0 {
					b.pass(time.Duration(random.Intn(100)) * ms)
					r = b.granted(l, 1+random.Int63n(min(r.Remaining, 3)))
					continue
				}
				b.pass(r.NextAfter - ms)
				b.refused(l, r.Remaining+1)
				b.pass(ms + time.Microsecond) // GCRA calculates with doubles
				r = b.granted(l, r.Remaining+1)
			}
		})
	}
}
