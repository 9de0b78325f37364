package window

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/internal/tests/rig"
	"github.com/rratelimiter/rratelimiter/internal/window"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// window_test.go checks the limit in real time: by the callers' clocks, in nanoseconds, no window
// of the interval holds more permits than the rate.

var exactRates = []rratelimiter.Rate{
	{Permits: 3, Interval: time.Millisecond},
	{Permits: 5, Interval: 10 * time.Millisecond},
	{Permits: 20, Interval: 100 * time.Millisecond},
	rratelimiter.PerSecond(50),
	rratelimiter.PerSecond(1000),
}

// A way is one method to get a permit; the test alternates between several.
type way struct {
	name string
	opts []rratelimiter.LimiterOption
	take func(ctx context.Context, l *rratelimiter.Limiter) (bool, error)
}

func tryOne(ctx context.Context, l *rratelimiter.Limiter) (bool, error) { return l.TryAcquire(ctx, 1) }

func acquireOne(ctx context.Context, l *rratelimiter.Limiter) (bool, error) {
	return l.TryAcquireTimeout(ctx, 1, time.Second)
}

func allowAllOne(ctx context.Context, l *rratelimiter.Limiter) (bool, error) {
	results, err := l.Client().AllowAll(ctx, 1, l)
	return err == nil && results[0].Allowed, err
}

func upToOne(ctx context.Context, l *rratelimiter.Limiter) (bool, error) {
	n, err := l.AcquireUpTo(ctx, 1)
	return n == 1, err
}

var exactWays = []way{
	{"TryAcquire", nil, tryOne},
	{"TryAcquireTimeout", nil, acquireOne},
	{"AcquireUpTo", nil, upToOne},
	{"AllowAll", nil, allowAllOne},
	{"a record per request", []rratelimiter.LimiterOption{rratelimiter.WithRecordPerRequest()}, tryOne},
	{"the server's time", []rratelimiter.LimiterOption{rratelimiter.WithServerTime()}, tryOne},
}

// waysOf returns the methods to test with a rate: with a long interval only the first few, because
// they take long.
func waysOf(rate rratelimiter.Rate) []way {
	if rate.Interval >= time.Second {
		return exactWays[:2]
	}
	if bucket := rate.Interval / 20; bucket >= 2*time.Millisecond {
		granular := []rratelimiter.LimiterOption{rratelimiter.WithGranularity(bucket)}
		return append(
			[]way{{"a granularity", granular, tryOne}, {"AllowAll with a granularity", granular, allowAllOne}},
			exactWays...)
	}
	return exactWays
}

// judgeExactly fails the test if a window holds more than the rate, or if nothing was granted. How
// much is granted depends on the machine.
func judgeExactly(t *testing.T, rate rratelimiter.Rate, lasted time.Duration, grants []window.Grant) {
	t.Helper()
	most, at := window.Largest(grants, rate.Interval)
	ideal := float64(rate.Permits) * (float64(lasted)/float64(rate.Interval) + 1)
	t.Logf(
		"%v: at most %d in a window, %d in sum, %.1f %% of what the rate allows", rate, most, len(grants),
		100*float64(len(grants))/ideal,
	)
	if most > rate.Permits || len(grants) == 0 {
		t.Errorf("%v: %d permits within an interval, from %v on; %d in sum", rate, most, at, len(grants))
	}
}

func TestNoWindowAboveTheRateInRealTime(t *testing.T) {
	server := redistest.Real(t)
	for _, rate := range exactRates {
		for _, way := range waysOf(rate) {
			t.Run(fmt.Sprintf("%v, %s", rate, way.name), func(t *testing.T) {
				t.Parallel()
				lasts := max(100*time.Millisecond, 5*rate.Interval/4)
				l := rratelimiter.NewClient(server.Client(), rratelimiter.WithCallTimeout(time.Minute)).
					RateLimiter(t.Name(), append(way.opts, rratelimiter.WithRate(rate))...)
				var mu sync.Mutex
				var grants []window.Grant
				var all sync.WaitGroup
				began := time.Now()
				for range 8 {
					all.Go(func() {
						for first := true; first || time.Since(began) < lasts; first = false {
							start := time.Now()
							granted, err := way.take(t.Context(), l)
							if err != nil {
								t.Error(err)
								return
							}
							if granted {
								mu.Lock()
								grants = append(grants, window.Grant{Permits: 1, Start: start, End: time.Now()})
								mu.Unlock()
							}
						}
					})
				}
				all.Wait()
				judgeExactly(t, rate, time.Since(began), grants)
			})
		}
	}
}

// TestNoWindowAboveTheRateInFakeTime: requests come at any microsecond, and each call takes no
// time.
func TestNoWindowAboveTheRateInFakeTime(t *testing.T) {
	for _, rate := range exactRates[:4] {
		for _, way := range waysOf(rate) {
			t.Run(fmt.Sprintf("%v, %s", rate, way.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limittest.NewRealTime(t).Client().RateLimiter("l",
						append(way.opts, rratelimiter.WithRate(rate))...)
					random := rand.New(rand.NewPCG(1, uint64(rate.Interval)))
					var grants []window.Grant
					began := time.Now()
					for time.Since(began) < 5*rate.Interval && len(grants) < 150 {
						time.Sleep(time.Duration(random.Int64N(
							max(2, rate.Interval.Microseconds()/rate.Permits))) * time.Microsecond)
						start := time.Now()
						granted, err := way.take(t.Context(), l)
						if err != nil {
							t.Fatal(err)
						}
						if granted {
							grants = append(grants, window.Grant{Permits: 1, Start: start, End: time.Now()})
						}
					}
					judgeExactly(t, rate, time.Since(began), grants)
				})
			})
		}
	}
}

// TestNoWindowAboveTheRateWithoutRedis: the process by itself keeps the same bound.
func TestNoWindowAboveTheRateWithoutRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	for _, rate := range exactRates {
		t.Run(rate.String(), func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: redistest.Nowhere(t), MaxRetries: -1})
			defer rdb.Close()
			l := rratelimiter.NewClient(rdb).RateLimiter("l", rratelimiter.WithRate(rate), rratelimiter.WithFallback(1))
			if _, err := l.TryAcquire(t.Context(), 1); err != nil { // detects that the server is away
				t.Fatal(err)
			}
			var grants []window.Grant
			began := time.Now()
			for time.Since(began) < max(100*time.Millisecond, 5*rate.Interval/4) {
				start := time.Now()
				granted, err := l.TryAcquire(t.Context(), 1)
				if err != nil {
					t.Fatal(err)
				}
				if granted {
					grants = append(grants, window.Grant{Permits: 1, Start: start, End: time.Now()})
				}
			}
			judgeExactly(t, rate, time.Since(began), grants)
		})
	}
}

// Two processes with callers of all kinds: no window holds more than the rate, by the log of grants
// and by the scores, and the rate is used.
func TestNoWindowAboveTheRate(t *testing.T) {
	const permits, interval, lasts = 200, 250 * ms, 3 * time.Second
	server := redistest.Real(t)
	watch := server.Client()
	scores := map[string]window.Score{}
	look := func() {
		found, err := watch.ZRangeWithScores(t.Context(), "{l}:permits", 0, -1).Result()
		if err != nil {
			t.Error(err)
		}
		for _, z := range found {
			member := z.Member.(string)
			r, err := rratelimiter.UnpackRecord([]byte(member))
			if err != nil {
				t.Error(err)
			}
			scores[member] = window.Score{At: int64(math.Round(z.Score * 1000)), Permits: int64(r.Permits)}
		}
	}
	calls := &rig.Log{}
	var mu sync.Mutex
	var grants []window.Grant
	var all sync.WaitGroup
	ctx, stop := context.WithTimeout(t.Context(), lasts)
	defer stop()
	stood := rig.Standstills(t)
	for range 2 {
		client := rratelimiter.NewClient(server.Client(), rig.Patient, rratelimiter.WithObserver(calls))
		for worker := range 12 {
			l := client.RateLimiter("l", rratelimiter.WithRate(rratelimiter.Rate{Permits: permits, Interval: interval}))
			all.Go(func() {
				for ctx.Err() == nil {
					n, ok, start := 1+rand.Int64N(3), false, time.Now()
					var err error
					switch worker % 6 {
					case 0:
						ok, err = l.TryAcquire(ctx, n)
						time.Sleep(rand.N(5 * ms))
					case 1:
						ok, err = l.TryAcquireTimeout(ctx, n, rand.N(interval))
						time.Sleep(rand.N(5 * ms))
					case 2:
						short, cancel := context.WithTimeout(ctx, rand.N(interval))
						err = l.Acquire(short, n)
						ok = err == nil
						cancel()
					default:
						err = l.Acquire(ctx, n)
						ok = err == nil
					}
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					if ok {
						mu.Lock()
						grants = append(grants, window.Grant{Permits: n, Start: start, End: time.Now()})
						mu.Unlock()
					}
				}
			})
		}
	}
	var silent time.Duration // while the server stood still
	for ctx.Err() == nil {
		time.Sleep(interval / 5)
		asked := time.Now()
		look()
		if took := time.Since(asked); took > 20*ms {
			silent += took
		}
	}
	all.Wait()
	look()
	if most, at := window.Largest(grants, interval); most > permits {
		t.Errorf("%d permits in the %v from %v", most, interval, at)
	}
	var written []window.Score
	for _, s := range scores {
		written = append(written, s)
	}
	// A record has the time at which its call was sent. Calls of two processes may overtake each
	// other, so a record counts only if that cannot move it into or out of the window.
	var slowest time.Duration
	var used int64
	for _, f := range calls.All() {
		slowest = max(slowest, f.Latency)
		used += f.Permits
	}
	if most, at := window.LargestScores(written, interval-slowest-ms); most > permits {
		t.Errorf("%d permits in the %v from %d, as they were written; calls took up to %v", most, interval, at, slowest)
	}
	still := stood() + silent
	if ideal := int64(permits * max(lasts-still, 0) / interval); used < ideal*95/100 {
		t.Errorf("%d permits were used of %d; the machine stood still for up to %v", used, ideal, still)
	}
}
