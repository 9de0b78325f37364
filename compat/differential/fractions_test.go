package differential

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// TestFractionsOfAMillisecond: on short intervals the scores of Go's records have fractions of a
// millisecond. The script of each Redisson is run on such a record at every millisecond. It must
// not grant before the record has expired, must grant as soon as it has, and its reply must not ask
// the caller to retry earlier. Redisson before 3.16.4 would, so records in its format have scores
// in whole milliseconds.
func TestFractionsOfAMillisecond(t *testing.T) {
	if err := redisson.Build(context.Background(), redisson.Versions...); err != nil {
		t.Fatal(err)
	}
	for _, version := range redisson.Versions {
		t.Run(version, func(t *testing.T) {
			server := redistest.Real(t)
			rdb := server.Client()
			java, err := redisson.Open(t.Context(), version, redisson.Addr(server.Addr))
			if err != nil {
				t.Fatal(err)
			}
			defer java.Close()
			const name, interval = "fractions", 150 // ms
			rate := rratelimiter.Rate{Permits: 3, Interval: interval * time.Millisecond}
			monitor := redistest.Monitor(t, server.Addr)
			if _, err := java.TrySetRate(t.Context(), name,
				redisson.Rate{Permits: rate.Permits, Interval: rate.Interval}); err != nil {
				t.Fatal(err)
			}
			if _, err := java.TryAcquire(t.Context(), name, 1); err != nil {
				t.Fatal(err)
			}
			keys, texts := keysOf(name, java.ID()), map[string]string{}
			take, args := scriptOf(t, monitor.Stop(), texts, keys)
			monitor = redistest.Monitor(t, server.Addr)
			if _, err := java.Available(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			count, _ := scriptOf(t, monitor.Stop(), texts, keys)
			run := func(s javaScript, args ...any) any {
				t.Helper()
				var own []string
				for _, at := range s.keys {
					own = append(own, keys[at])
				}
				reply, err := rdb.EvalSha(t.Context(), s.sha, own, args...).Result()
				if err != nil && !errors.Is(err, redis.Nil) {
					t.Fatal(err)
				}
				return reply
			}
			ask := func(now int64) (wait int64, granted bool) {
				t.Helper()
				reply := run(take, 1, now, fmt.Sprintf("%0*d", len(args[2]), now)[:len(args[2])])
				if reply == nil {
					return 0, true
				}
				return reply.(int64), false
			}
			for _, micros := range []int64{1, 499, 723, 999} {
				rdb.Del(t.Context(), keys[1:]...)
				whole := time.Now().UnixMilli()
				clock := func() time.Time { return time.UnixMicro(1000*whole + micros) }
				dated := float64(1000*whole+micros) / 1000
				var opts []rratelimiter.LimiterOption
				if old, ok := oldFormats[version]; ok {
					opts = append(opts, old)
				}
				l := rratelimiter.NewClient(rdb, rratelimiter.WithClock(clock),
					rratelimiter.WithCallTimeout(time.Minute)).
					RateLimiter(name, opts...)
				if ok, err := l.TryAcquire(t.Context(), 3); !ok || err != nil {
					t.Fatal(ok, err)
				}
				if version < "3.16" { // whole ms, rounded up
					dated = math.Ceil(dated)
				}
				if z := rdb.ZRangeWithScores(t.Context(), keys[3], 0, -1).Val(); len(z) != 1 || z[0].Score != dated {
					t.Errorf("%v, want one at %v", z, dated)
				}
				end := int64(math.Ceil(dated)) + interval // the first ms at which the record has expired
				if free := run(count, end-1); fmt.Sprint(free) != "0" {
					t.Errorf("dated at .%03d: %v permits are free before the record has expired", micros, free)
				}
				early := int64(0)
				for now := int64(math.Ceil(dated)); ; now++ {
					wait, granted := ask(now)
					if granted {
						if now != end {
							t.Errorf("dated at .%03d: granted %d ms later", micros, now-whole)
						}
						break
					}
					if now >= end {
						t.Fatalf("dated at .%03d: refused, although the record has expired: %d", micros, wait)
					}
					early = max(early, end-now-wait)
				}
				if early > 0 {
					t.Errorf("dated at .%03d: the reply asks callers to retry %d ms early", micros, early)
				}
				if free := run(count, end+1); fmt.Sprint(free) != "2" {
					t.Errorf("dated at .%03d: %v of 3 permits are free when one is taken again", micros, free)
				}
				if version < "3.52" {
					continue
				}
				// the clock stands still: same time as before
				if ok, err := l.TryAcquire(t.Context(), 2); !ok || err != nil {
					t.Fatal(ok, err)
				}
				if err := java.Release(t.Context(), name, 2); err != nil {
					t.Fatal(err)
				}
				if free := run(count, end-1); fmt.Sprint(free) != "2" {
					t.Errorf("dated at .%03d: %v permits are free after a release of 2", micros, free)
				}
			}
		})
	}
}

// oldFormats maps each version that cannot read the default record format to an option for the one
// that it reads.
var oldFormats = map[string]rratelimiter.LimiterOption{
	"3.13.6": rratelimiter.WithRecordFormat(rratelimiter.Redisson313),
	"3.15.6": rratelimiter.WithRecordFormat(rratelimiter.Redisson313),
	"3.16.8": rratelimiter.WithRecordFormat(rratelimiter.Redisson316),
}
