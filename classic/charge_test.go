package classic_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// charge_test.go compares each algorithm that is charged with a plain model, and has the layouts
// and the bounds of debts.

// charged charges n permits and fails the test on an error.
func (b *bench) charged(l asker, n int64) rratelimiter.Result {
	b.Helper()
	r, err := l.Charge(b.Context(), n)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// An entry is what a model knows of a call: n permits were counted after some time.
type entry struct {
	at time.Duration
	n  float64
}

// A plain model computes the free permits after some time from all entries; below zero: a debt.
type plain func(log []entry, at time.Duration) float64

// held returns the permits of the entries of some times.
func held(log []entry, counts func(at time.Duration) bool) (sum float64) {
	for _, e := range log {
		if counts(e.at) {
			sum += e.n
		}
	}
	return sum
}

// flow returns the free permits of a bucket to which refill adds permits between two times.
func flow(capacity float64, refill func(from, to time.Duration) float64) plain {
	return func(log []entry, at time.Duration) float64 {
		free, last := capacity, time.Duration(0)
		for _, e := range append(log[:len(log):len(log)], entry{at, 0}) {
			free = min(capacity, free+refill(last, e.at)) - e.n
			last = e.at
		}
		return free
	}
}

// stepwise returns the refill of whole steps since the beginning.
func stepwise(step time.Duration, each float64) func(from, to time.Duration) float64 {
	return func(from, to time.Duration) float64 { return float64(to/step-from/step) * each }
}

// evenly returns a continuous refill.
func evenly(perSecond float64) func(from, to time.Duration) float64 {
	return func(from, to time.Duration) float64 { return (to - from).Seconds() * perSecond }
}

// models has the model of each subject, with the parameters of subjects, and the longest debt in
// permits.
func models() map[string]struct {
	free plain
	debt float64
} {
	const limit, interval = 10, 2 * time.Second
	endless := math.Inf(1)
	aligned := func(window time.Duration) plain {
		return func(log []entry, at time.Duration) float64 {
			return limit - held(log, func(t time.Duration) bool { return t/window == at/window })
		}
	}
	opened := func(log []entry, at time.Duration) float64 { // a window opens with the first permit
		begin, sum := -interval, 0.0
		for _, e := range log {
			if e.at >= begin+interval {
				begin, sum = e.at, 0
			}
			sum += e.n
		}
		if at >= begin+interval {
			sum = 0
		}
		return limit - sum
	}
	last := func(log []entry, window time.Duration) (last time.Duration) { // of the entries of a window
		for _, e := range log {
			if e.at/interval == window {
				last = e.at
			}
		}
		return last
	}
	gateway := func(log []entry, at time.Duration) float64 { // full once an interval has passed without a refill
		const every = 200 * ms
		free, last := float64(limit), -2*interval
		for _, e := range append(log[:len(log):len(log)], entry{at, 0}) {
			if e.at > last+interval {
				free, last = limit, e.at
			}
			refills := max(0, (e.at-last)/every)
			free, last = min(limit, free+float64(refills))-e.n, last+refills*every
			if free < 0 { // the next refill comes after the debt
				free, last = 0, last-time.Duration(free)*every
			}
		}
		if last > at {
			free -= float64(last-at) / float64(every)
		}
		return free
	}
	type model = struct {
		free plain
		debt float64
	}
	return map[string]model{
		"fixed window": {opened, endless},
		"window keys":  {aligned(interval), endless},
		"quota": {func(log []entry, at time.Duration) float64 {
			const day, noon = 24 * time.Hour, 12 * time.Hour // at the epoch
			return limit - held(log, func(t time.Duration) bool { return (t+noon)/day == (at+noon)/day })
		}, endless},
		"list window":   {opened, endless},
		"cursor window": {aligned(interval), endless},
		"sliding log": {func(log []entry, at time.Duration) float64 {
			return limit - held(log, func(t time.Duration) bool { return t > at-interval })
		}, endless},
		"sub-windows": {func(log []entry, at time.Duration) float64 {
			const part = interval / 5
			return limit - held(log, func(t time.Duration) bool { return t/part > at/part-5 })
		}, endless},
		"two counters": {func(log []entry, at time.Duration) float64 {
			window := at / interval
			in := func(w time.Duration) float64 {
				return held(log, func(t time.Duration) bool { return t/interval == w })
			}
			previous := in(window-1) * float64(interval-at%interval) / float64(interval)
			if at-last(log, window-1) >= interval {
				previous = 0
			}
			return limit - in(window) - previous
		}, endless},
		"token bucket":           {flow(10, stepwise(2*time.Second, 3)), 100},
		"token bucket with debt": {flow(10, stepwise(2*time.Second, 3)), 140},
		"gateway bucket":         {gateway, 100},
		"Spring bucket":          {flow(limit, stepwise(time.Second, 3)), 100},
		"leaky bucket":           {flow(6, evenly(5)), 60},
		"GCRA":                   {flow(6, evenly(5)), 60},
	}
}

// A charge counts what it should, and all that it says is true: whether there is a debt, and when
// the first permit is free. Other requests at random times are decided as by the model.
func TestChargesCountAsInThePlainModel(t *testing.T) {
	all := models()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, subject := range subjects() {
			model, known := all[subject.name]
			if !known || subject.timed && s.IsReal() {
				continue // a real server's time can't stand still between calls, as the test's does
			}
			t.Run(subject.name, func(t *testing.T) {
				for seed := range int64(3) {
					onServer(t, s, func(b *bench) { b.compareCharges(subject, model.free, model.debt, seed) })
				}
			})
		}
	})
}

func (b *bench) compareCharges(s subject, free plain, longest float64, seed int64) {
	b.Helper()
	const almost = 1e-5 // GCRA and leaky buckets calculate with parts of permits
	random := rand.New(rand.NewSource(seed))
	b.do("flushdb")
	b.pass(epoch.Sub(b.now))
	l := s.make(b.rdb, fmt.Sprintf("%s %d", s.name, seed), b.clock())
	bound := s.most
	owed := int64(0) // of Tokens.Debt
	if s.name == "token bucket with debt" {
		owed = 4
	}
	var log []entry
	now := func() time.Duration { return b.now.Sub(epoch) }
	var refused, debts, cut int
	for range 150 {
		pause := time.Duration(random.Intn(400)) * ms
		if random.Intn(10) == 0 {
			pause *= 20
		}
		if s.night {
			pause *= 1000
		}
		b.pass(pause)
		n := 1 + random.Int63n(bound)
		f := free(log, now())
		if math.Abs(f-math.Round(f)) < almost && f < float64(s.most) {
			b.pass(ms) // no decision depends on the last digits
			f = free(log, now())
		}
		if random.Intn(3) > 0 {
			r, err := l.Allow(b.Context(), n)
			if err != nil {
				b.Fatal(err)
			}
			want := float64(n) <= f+almost+float64(owed) && (owed == 0 || f >= 1)
			if r.Allowed != want {
				b.Fatalf("seed %d, after %v: Allow(%d) with %v free: %+v", seed, now(), n, f, r)
			}
			if r.Allowed {
				log = append(log, entry{now(), float64(n)})
			} else {
				refused++
			}
			continue
		}
		switch random.Intn(12) {
		case 0:
			n *= 5
		case 1:
			n = 1 << 40
		case 2, 3:
			n = 0
		}
		r, err := l.Charge(b.Context(), n)
		counts := min(float64(n), max(0, math.Floor(f+longest+almost)))
		atBound := errors.Is(err, rratelimiter.ErrDebtBound)
		if atBound != (counts < float64(n)) || err != nil && !atBound {
			b.Fatalf("seed %d, after %v: Charge(%d) with %v free: %+v, %v", seed, now(), n, f, r, err)
		}
		if err != nil {
			cut++
		}
		if counts > 0 {
			log = append(log, entry{now(), counts})
		}
		was := f
		f = free(log, now())
		if r.Remaining != int64(max(0, math.Floor(f+almost))) || r.Allowed != (was >= 1-almost) || r.Limit == 0 ||
			(r.RetryAfter == 0) != (r.Remaining > 0) {
			b.Fatalf("seed %d, after %v: Charge(%d) of %v leaves %v: %+v", seed, now(), n, was, f, r)
		}
		if r.RetryAfter == 0 {
			continue
		}
		if f < 0 {
			debts++
		}
		if r.RetryAfter != r.NextAfter || r.RetryAfter > r.ResetAfter {
			b.Fatalf("seed %d: %+v", seed, r)
		}
		at := now() + r.RetryAfter
		if first := free(log, at+time.Microsecond); first < 1-almost {
			b.Fatalf("seed %d, after %v: %v are free when the first should be: %+v", seed, now(), first, r)
		}
		if before := free(log, at-ms); before >= 1 {
			b.Fatalf("seed %d, after %v: %v are free before the first should be: %+v", seed, now(), before, r)
		}
		if r.RetryAfter > 30*time.Second && !s.night {
			b.pass(r.RetryAfter - time.Duration(random.Intn(2000))*ms)
		}
	}
	if refused < 5 || debts < 5 || !math.IsInf(longest, 0) && cut == 0 {
		b.Errorf("seed %d: %d requests were refused, %d charges made a debt, %d were cut", seed, refused, debts, cut)
	}
}

// The keys live as long as a debt: nothing is granted before it is paid, and then as Charge has
// said.
func TestKeysLiveAsLongAsADebt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, subject := range subjects() {
			if subject.name == "leaky queue, without waiting" {
				continue // Allow waits for an empty queue, not for room
			}
			t.Run(subject.name, func(t *testing.T) {
				for _, n := range []int64{3, 1 << 40} {
					onServer(t, s, func(b *bench) {
						b.do("flushdb")
						l := subject.make(b.rdb, "key", b.clock())
						b.granted(l, 1)
						r, err := l.Charge(b.Context(), n*subject.most)
						if n > 3 {
							r, err = l.Charge(b.Context(), math.MaxInt64)
						}
						if err != nil && !errors.Is(err, rratelimiter.ErrDebtBound) || r.Remaining != 0 ||
							r.RetryAfter < ms {
							b.Fatalf("%+v, %v", r, err)
						}
						b.pass(r.RetryAfter - 500*ms) // TTLs of a real server run on meanwhile
						b.refused(l, 1)
						b.pass(500 * ms)
						if b.mini == nil {
							b.pass(ms) // it counts TTLs down only afterwards
						}
						b.pass(time.Microsecond) // GCRA calculates with doubles
						b.granted(l, 1)
						if r, err := l.Peek(b.Context(), 1); err != nil || r.ResetAfter > 10*24*time.Hour {
							b.Errorf("%+v, %v", r, err)
						}
					})
				}
			})
		}
	})
}

// A number that is too large is counted up to the bound, and the error says so.
func TestChargeAboveTheBound(t *testing.T) {
	onServers(t, func(b *bench) {
		l := classic.NewTokenBucket(b.rdb, "key", tokens, b.clock())
		r, err := l.Charge(b.Context(), math.MaxInt64)
		if !errors.Is(err, rratelimiter.ErrDebtBound) {
			b.Error(err)
		}
		equal(b, "result", r, rratelimiter.Result{
			Allowed: true, Limit: 10,
			RetryAfter: 51 * 5 * time.Second, NextAfter: 51 * 5 * time.Second, ResetAfter: 55 * 5 * time.Second,
		})
		b.holds("-100", "get", "key")
		if _, err = l.Charge(b.Context(), 1); !errors.Is(err, rratelimiter.ErrDebtBound) {
			b.Error(err)
		}
		b.holds("-100", "get", "key")
		b.pass(5 * time.Second)
		b.charged(l, 2)
		b.holds("-100", "get", "key")
	})
}

// What other services find in the keys.
func TestLayoutOfADebt(t *testing.T) {
	const y2017 = 1483228800
	rate := rratelimiter.PerSecond(10)
	onServers(t, func(b *bench) {
		b.charged(classic.NewTokenBucket(b.rdb, "tokens", tokens, b.clock()), 13)
		b.holds("-3", "get", "tokens")
		b.lives("tokens", 35*time.Second)
		spring := classic.Spring{ReplenishRate: 2, BurstCapacity: 10}
		b.charged(classic.NewSpringBucket(b.rdb, "id", spring, b.clock()), 35)
		b.holds("-25", "get", "request_rate_limiter.{id}.tokens")
		b.holds(stampSeconds(b.now), "get", "request_rate_limiter.{id}.timestamp")
		b.lives("request_rate_limiter.{id}.tokens", 18*time.Second)
		b.lives("request_rate_limiter.{id}.timestamp", 18*time.Second)
		gateway := classic.NewGatewayBucket(
			b.rdb, "gateway", classic.Gateway{Every: 100 * ms, Capacity: 10, Interval: time.Second}, b.clock(),
		)
		equal(b, "retry after", b.charged(gateway, 43).RetryAfter, 3400*ms)
		b.holds("0", "hget", "gateway", "tokensRemaining")
		b.holds(stamp(b.now.Add(3300*ms)), "hget", "gateway", "lastRefillTime")
		b.lives("gateway", 4301*ms)
		b.charged(classic.NewGCRA(b.rdb, "key", rate, 10, b.clock()), 45)
		if tat, err := strconv.ParseFloat(b.do("get", "rate:key").(string), 64); err != nil ||
			math.Abs(tat-float64(b.now.Unix()-y2017)-4.5) > 1e-6 {
			b.Error(tat, err)
		}
		b.lives("rate:key", 5*time.Second)
		b.charged(classic.NewLeakyBucket(b.rdb, "leaky", rate, 10, b.clock()), 45)
		b.holds("45.000000", "hget", "leaky", "level")
		b.lives("leaky", 4500*ms)
		b.charged(classic.NewFixedWindow(b.rdb, "fixed", rate), 45)
		b.holds("45", "get", "fixed")
		b.charged(classic.NewListWindow(b.rdb, "list", rate), 1<<40)
		b.holds(10, "llen", "list")
		log := classic.NewSlidingLog(b.rdb, "log", rate, b.clock())
		b.charged(log, 45)
		b.holds("45", "hget", "log", "currentRate")
		if _, err := log.Charge(b.Context(), math.MaxInt64); !errors.Is(err, rratelimiter.ErrDebtBound) {
			b.Error(err)
		}
		b.holds("9007199254740991", "hget", "log", "currentRate")
		b.holds(2, "zcard", "log_windows")
		var held int64
		for _, member := range b.rdb.ZRange(b.Context(), "log_windows", 0, -1).Val() {
			permits, _, _ := strings.Cut(member, ":")
			n, err := strconv.ParseInt(permits, 10, 64)
			if err != nil {
				b.Error(err)
			}
			held += n
		}
		equal(b, "permits of all records", held, 9007199254740991)
	})
}

// A quota counts beyond its limit, as a bill does, and the next period starts at zero.
func TestQuotaIsChargedForItsOwnPeriod(t *testing.T) {
	onServers(t, func(b *bench) {
		q := classic.NewQuota(b.rdb, "user", 1000, classic.Days{Period: classic.Monthly(1)}, b.clock())
		b.granted(q, 900)
		equal(b, "allowed", b.charged(q, 100).Allowed, true) // some were free
		r := b.charged(q, 5000)
		equal(b, "allowed", r.Allowed, false)
		equal(b, "remaining", r.Remaining, 0)
		equal(b, "retry after", r.RetryAfter, r.ResetAfter)
		b.holds("6000", "get", q.Key())
		if count, err := q.Return(b.Context(), 5500); err != nil || count != 500 {
			b.Error(count, err)
		}
		b.charged(q, 1000)
		b.pass(r.ResetAfter - ms)
		b.refused(q, 1)
		b.pass(ms)
		b.granted(q, 1000)
		if _, err := q.Charge(b.Context(), math.MaxInt64); !errors.Is(err, rratelimiter.ErrDebtBound) {
			b.Error(err)
		}
		b.holds("9007199254740991", "get", q.Key())
	})
}

// A debt is that of all processes, and also of those whose limit is lower.
func TestADebtOutlivesALowerLimit(t *testing.T) {
	onServers(t, func(b *bench) {
		rate := rratelimiter.PerSecond(1)
		for name, of := range map[string]func(most int64) asker{
			"GCRA":  func(most int64) asker { return classic.NewGCRA(b.rdb, "gcra", rate, most, b.clock()) },
			"leaky": func(most int64) asker { return classic.NewLeakyBucket(b.rdb, "leaky", rate, most, b.clock()) },
			"Spring": func(most int64) asker {
				spring := classic.Spring{ReplenishRate: 1, BurstCapacity: most}
				return classic.NewSpringBucket(b.rdb, "id", spring, b.clock())
			},
			"tokens": func(most int64) asker {
				second := classic.Tokens{Capacity: most, PerStep: 1, Step: time.Second}
				return classic.NewTokenBucket(b.rdb, "tokens", second, b.clock())
			},
			"gateway": func(most int64) asker {
				return classic.NewGatewayBucket(b.rdb, "gateway", classic.Gateway{
					Every: time.Second, Capacity: most, Interval: time.Duration(most) * time.Second,
				}, b.clock())
			},
		} {
			if _, err := of(200).Charge(b.Context(), 1<<40); !errors.Is(err, rratelimiter.ErrDebtBound) {
				b.Errorf("%s: %v", name, err)
			}
			if r := b.refused(of(20), 1); r.NextAfter < 1900*time.Second {
				b.Errorf("%s: %+v", name, r)
			}
		}
	})
}

func TestWrongChargesCountNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		b := newBench(t, s)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, subject := range subjects() {
			l := subject.make(b.rdb, "key", b.clock())
			for _, n := range []int64{-1, math.MinInt64} {
				if _, err := l.Charge(t.Context(), n); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
					t.Errorf("%s: Charge(%d): %v", subject.name, n, err)
				}
			}
			r, err := l.Charge(t.Context(), 0)
			if err != nil || !r.Allowed || r.Remaining != r.Limit || r.RetryAfter != 0 || r.ResetAfter != 0 {
				t.Errorf("%s: Charge(0): %+v, %v", subject.name, r, err)
			}
			if _, err := l.Charge(ended, 1); !errors.Is(err, context.Canceled) ||
				errors.Is(err, rratelimiter.ErrOutcomeUnknown) {
				t.Errorf("%s: %v", subject.name, err)
			}
		}
		b.holds(0, "dbsize")
		if _, err := classic.NewGCRA(b.rdb, "key", rratelimiter.PerSecond(1), 0).Charge(t.Context(), 1); !errors.Is(
			err, rratelimiter.ErrInvalidRate) {
			t.Error(err)
		}
	})
}

// A charge whose reply is lost is not repeated: it may be counted, and the error says so.
func TestAChargeIsCountedAtMostOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, subject := range subjects() {
			var cut atomic.Bool
			rdb := s.Client(func(o *redis.Options) {
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, addr)
					return &lossy{conn, &cut}, err
				}
			})
			b := newBench(t, s)
			b.do("flushdb")
			l := subject.make(rdb, "key", b.clock())
			before := b.charged(l, 1)
			cut.Store(true)
			_, err := l.Charge(t.Context(), 2)
			// The first call of a list window takes nothing, and is repeated.
			want := subject.name != "list window"
			if errors.Is(err, rratelimiter.ErrOutcomeUnknown) != want || (err != nil) != want {
				t.Errorf("%s: %v", subject.name, err)
			}
			// GCRA, which calculates with doubles, may say one permit less.
			r, err := l.Peek(t.Context(), 1)
			if counted := before.Remaining - r.Remaining; err != nil || counted < 2 || counted > 3 {
				t.Errorf("%s: %+v, %v", subject.name, r, err)
			}
		}
	})
}

// A caller that waits is served when the debt is paid.
func TestAcquireWaitsForTheEndOfADebt(t *testing.T) {
	for _, s := range subjects() {
		if s.name == "leaky queue, without waiting" {
			continue // it drops what does not fit
		}
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := limittest.NewRealTime(t)
				l := s.make(server.Redis(), "key", classic.WithClock(server.Now))
				r, err := l.Charge(t.Context(), 2*s.most)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				if err := l.Acquire(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > r.RetryAfter+2*ms || took < r.RetryAfter-2*ms {
					t.Errorf("waited %v, RetryAfter is %v", took, r.RetryAfter)
				}
			})
		})
	}
}

func TestChargeOfASmooth(t *testing.T) {
	now := epoch
	clock := classic.WithClock(func() time.Time { return now })
	charge := func(l *classic.Smooth, n int64, want rratelimiter.Result, cut bool) {
		t.Helper()
		r, err := l.Charge(t.Context(), n)
		want.Limit = int64(l.Rate())
		if r != want || errors.Is(err, rratelimiter.ErrDebtBound) != cut || err != nil && !cut {
			t.Errorf("Charge(%d): %+v, %v", n, r, err)
		}
	}
	second := time.Second
	after := func(allowed bool, wait time.Duration) rratelimiter.Result { // a second fills it
		return rratelimiter.Result{Allowed: allowed, RetryAfter: wait, NextAfter: wait, ResetAfter: wait + second}
	}
	l := classic.NewSmoothBursty(5, clock)
	now = now.Add(second) // five are stored
	charge(l, 4, rratelimiter.Result{Allowed: true, Remaining: 1, NextAfter: 200 * ms, ResetAfter: 800 * ms}, false)
	charge(l, 11, after(true, 2*second), false)
	if r, err := l.Allow(t.Context(), 1); err != nil || r.Allowed || r.RetryAfter != 2*second {
		t.Errorf("%+v, %v", r, err)
	}
	charge(l, 0, after(false, 2*second), false)
	charge(l, math.MaxInt64, after(false, 10*second), true)
	charge(l, 1, after(false, 10*second), true)
	now = now.Add(10 * second)
	if r, err := l.Allow(t.Context(), 1); err != nil || !r.Allowed {
		t.Errorf("%+v, %v", r, err)
	}
	slow := classic.NewSmoothBursty(0.1, clock)
	charge(slow, 3, after(true, 30*second), false)
	charge(slow, 8, after(false, 100*second), true)
	if _, err := l.Charge(t.Context(), -1); !errors.Is(err, rratelimiter.ErrInvalidPermits) {
		t.Error(err)
	}
	warming := classic.NewSmoothWarmingUp(5, 2*second, clock)
	r, err := warming.Charge(t.Context(), 1<<40)
	if !errors.Is(err, rratelimiter.ErrDebtBound) || r.RetryAfter > 15*second {
		t.Errorf("%+v, %v", r, err)
	}
}
