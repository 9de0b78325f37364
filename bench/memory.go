package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// memory.go measures the cost of many outstanding permits: bytes, and the longest script once all
// of them have expired.

const (
	memoryLimiter = "bench"
	memoryCallers = 100  // callers that take the permits
	memoryBuckets = 1000 // granularities in the interval
)

// memoryRate is twice as high as the number of permits that are taken, so that none is refused.
func (b *lab) memoryRate() rratelimiter.Rate { return rratelimiter.PerHour(2 * b.outstanding) }

// memory takes permits one by one with this library, evenly over an interval of a clock that lies
// in the past.
func (b *lab) memory(ctx context.Context, c *contender) (Sample, error) {
	options := map[string]option{
		rowPerRequest: func(rratelimiter.Rate) rratelimiter.LimiterOption {
			return rratelimiter.WithRecordPerRequest()
		},
		rowGranularity: granularity(memoryBuckets),
	}
	rate := b.memoryRate()
	start := time.Now().Add(-3 * rate.Interval)
	var asked atomic.Int64
	clock := func() time.Time {
		n := min(asked.Load(), b.outstanding)
		return start.Add(time.Duration(float64(rate.Interval) * float64(n) / float64(b.outstanding)))
	}
	if err := b.clear(ctx); err != nil {
		return Sample{}, err
	}
	client := rratelimiter.NewClient(b.rdb, rratelimiter.WithClock(clock))
	l := client.RateLimiter(memoryLimiter, options[c.name].of(rate)...)
	if err := l.SetRate(ctx, rate); err != nil {
		return Sample{}, err
	}
	callers, sum := b.crew.get(memoryCallers)
	if _, err := together(callers, sum, func(c *caller, _ time.Time) {
		for asked.Add(1) <= b.outstanding && c.err == nil {
			var granted bool
			if granted, c.err = l.TryAcquire(ctx, 1); c.err == nil && !granted {
				c.err = errors.New("a permit was refused")
			}
		}
	}); err != nil {
		return Sample{}, err
	}
	later := rratelimiter.NewClient(b.rdb).RateLimiter(memoryLimiter, options[c.name].of(rate)...)
	return b.expire(ctx, rate, func() error {
		_, err := later.TryAcquire(ctx, 1)
		return err
	})
}

// javaMemory measures a contender on records in Redisson's format: one per permit, with an id of 16
// random bytes. The benchmark writes them itself, which is faster than Redisson.
func (b *lab) javaMemory(ctx context.Context, c *contender) (Sample, error) {
	rate := b.memoryRate()
	if err := b.clear(ctx); err != nil {
		return Sample{}, err
	}
	if err := b.setRates(ctx, []string{memoryLimiter}, rate); err != nil {
		return Sample{}, err
	}
	if err := b.writeAsJava(ctx, time.Now().Add(-2*rate.Interval), rate); err != nil {
		return Sample{}, err
	}
	ask, err := library(ctx, rratelimiter.NewClient(b.rdb), scene{names: []string{memoryLimiter}, rate: rate}, nil)
	if c.name == rowScript {
		ask, err = openScript(ctx, b, scene{names: []string{memoryLimiter}}, b.rdb)
	}
	if err != nil {
		return Sample{}, err
	}
	return b.expire(ctx, rate, func() error {
		_, err := ask(ctx, 0, 1, false)
		return err
	})
}

// writeAsJava writes the outstanding records, with times evenly over an interval that begins at
// start.
func (b *lab) writeAsJava(ctx context.Context, start time.Time, rate rratelimiter.Rate) error {
	const batch = 1000
	var id [16]byte
	random := rand.NewChaCha8([32]byte{})
	for first := int64(0); first < b.outstanding; first += batch {
		members := make([]redis.Z, 0, batch)
		for i := first; i < min(first+batch, b.outstanding); i++ {
			_, _ = random.Read(id[:]) // never fails
			member, err := rratelimiter.PackRecord(rratelimiter.Redisson321, id[:], 1)
			if err != nil {
				return err
			}
			at := start.Add(time.Duration(float64(rate.Interval) * float64(i) / float64(b.outstanding)))
			members = append(members, redis.Z{Score: float64(at.UnixMilli()), Member: member})
		}
		if err := b.rdb.ZAdd(ctx, permitsKey(memoryLimiter), members...).Err(); err != nil {
			return err
		}
	}
	return b.rdb.Set(ctx, valueKey(memoryLimiter), rate.Permits-b.outstanding, 0).Err()
}

// expire measures the set of records, which have all expired, and then makes calls until no expired
// record is left. The duration of a script is measured in two ways: by the processor time of the
// server, which excludes waiting but includes other work than scripts, and by the slow log, which
// also counts the time in which the server does not have a processor.
func (b *lab) expire(ctx context.Context, rate rratelimiter.Rate, call func() error) (Sample, error) {
	const unheard = 10 // µs: shorter scripts are not logged
	key := permitsKey(memoryLimiter)
	sample := Sample{Permits: b.outstanding}
	var err error
	if sample.Records, err = b.rdb.ZCard(ctx, key).Result(); err != nil {
		return sample, err
	}
	if sample.Bytes, err = b.rdb.MemoryUsage(ctx, key, 0).Result(); err != nil {
		return sample, err
	}
	slow := map[string]string{"slowlog-log-slower-than": strconv.Itoa(unheard), "slowlog-max-len": "100000"}
	before, err := b.configure(ctx, slow)
	if err != nil {
		return sample, err
	}
	defer b.configure(ctx, before)
	if err := b.rdb.Do(ctx, "slowlog", "reset").Err(); err != nil {
		return sample, err
	}
	began := time.Now()
	edge := strconv.FormatInt(began.Add(-rate.Interval).UnixMilli(), 10)
	for left := int64(1); left > 0; sample.Commands++ {
		spent, err := b.read(ctx)
		if err != nil {
			return sample, err
		}
		if err := call(); err != nil {
			return sample, err
		}
		after, err := b.read(ctx)
		if err != nil {
			return sample, err
		}
		sample.Longest = max(sample.Longest, after.cpu-spent.cpu)
		if left, err = b.rdb.ZCount(ctx, key, "-inf", edge).Result(); err != nil {
			return sample, err
		}
	}
	sample.Seconds = time.Since(began).Seconds()
	log, err := b.rdb.SlowLogGet(ctx, 100_000).Result()
	for _, entry := range log {
		if len(entry.Args) > 0 && strings.HasPrefix(strings.ToLower(entry.Args[0]), "eval") {
			sample.Slowest = max(sample.Slowest, micros(entry.Duration))
		}
	}
	return sample, err
}

// configure sets parameters of the server and returns their previous values.
func (b *lab) configure(ctx context.Context, parameters map[string]string) (before map[string]string, err error) {
	before = map[string]string{}
	for name, value := range parameters {
		old, err := b.rdb.ConfigGet(ctx, name).Result()
		if err != nil {
			return before, err
		}
		before[name] = old[name]
		if err := b.rdb.ConfigSet(ctx, name, value).Err(); err != nil {
			return before, err
		}
	}
	return before, nil
}
