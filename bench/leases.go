package main

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/compat/redisson"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// leases.go measures processes that share a limiter, with leases and without, and what leases of
// names that are used once leave behind.

// A sharing is a number of processes that share a limiter. Their requests for one permit come at
// random, at a demand in percent of the rate.
type sharing struct {
	name      string // of the workload
	processes int
	rate      rratelimiter.Rate
	demand    int
	java      bool // a Java process asks for more than the rate at the same time
}

const (
	sharedWarm  = time.Second
	sharedPart  = 50 // of the interval: a lease
	javaThreads = 8
)

// shared measures processes that share a limiter.
func (b *lab) shared(ctx context.Context, c *contender, g sharing) (Sample, error) {
	if err := b.clear(ctx); err != nil {
		return Sample{}, err
	}
	s := scene{addr: b.addr, names: []string{memoryLimiter}, rate: g.rate}
	if err := b.setScene(ctx, s); err != nil {
		return Sample{}, err
	}
	o := order{
		Addr: s.addr, Name: s.names[0], Pace: float64(g.demand) / 100 * float64(g.rate.Permits) / float64(g.processes),
		Time: b.sharedTime,
	}
	if c.name == rowSharedLease || c.name == rowBesideLease {
		o.Lease = g.rate.Interval / sharedPart
	}
	var findings []finding
	beside := new(redisson.RunResult)
	var counted time.Time // grants count from then on
	sample, err := b.spent(ctx, c, func() (all counts, err error) {
		var java sync.WaitGroup
		var javaErr error
		findings, all, err = runWorkers(ctx, o, g.processes, func(at time.Time) error {
			counted = at.Add(sharedWarm)
			if g.java {
				java.Go(func() {
					work := redisson.Work{Threads: javaThreads, For: sharedWarm + o.Time, At: at}
					beside, javaErr = b.javas[len(b.javas)-1].process.Run(ctx, o.Name, work)
				})
			}
			return b.inUse(ctx, at, g.rate, min(g.demand, 100))
		})
		java.Wait()
		all.took = o.Time
		return all, errors.Join(err, javaErr)
	})
	if err != nil {
		return Sample{}, err
	}
	// the workers' are not measured
	sample.Allocs, sample.RedisCPU = 0, 0
	// those of the warm-up do not count
	sample.Commands = int64(float64(sample.Commands) * o.Time.Seconds() / (sharedWarm + o.Time).Seconds())
	sample.Limit = float64(g.rate.Permits) * o.Time.Seconds() / g.rate.Interval.Seconds()
	var grants []window.Grant
	for _, f := range findings {
		for _, granted := range f.Grants {
			grants = append(grants,
				window.Grant{Permits: 1, Start: time.Unix(0, granted[0]), End: time.Unix(0, granted[1])})
		}
	}
	for _, granted := range beside.Grants {
		grants = append(grants, window.Grant{Permits: granted.Permits, Start: granted.Start, End: granted.End})
		if !granted.Start.Before(counted) {
			sample.ByJava += granted.Permits
		}
	}
	largest, _ := window.Largest(grants, g.rate.Interval)
	sample.Window = float64(largest) / float64(g.rate.Permits)
	return sample, nil
}

// inUse writes records of a part of the rate, in percent, evenly over the interval that ends at a
// time. Otherwise all processes would take the whole rate at once, again and again, and the result
// would depend on when the sample begins.
func (b *lab) inUse(ctx context.Context, at time.Time, rate rratelimiter.Rate, part int) error {
	taken := rate.Permits * int64(part) / 100
	var members []redis.Z
	for i := range taken {
		id := binary.BigEndian.AppendUint32([]byte("Go\x00\x00"), uint32(i))
		member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, id, 1)
		if err != nil {
			return err
		}
		granted := at.Add(-rate.Interval * time.Duration(taken-i) / time.Duration(taken))
		members = append(members, redis.Z{Score: float64(granted.UnixMilli()), Member: member})
	}
	if err := b.rdb.ZAdd(ctx, permitsKey(memoryLimiter), members...).Err(); err != nil {
		return err
	}
	return b.rdb.Set(ctx, valueKey(memoryLimiter), rate.Permits-taken, 0).Err()
}

// paced sends requests that come at random, o.Pace a second, from at on, and returns what became of
// those that came after the warm-up.
func (o order) paced(ctx context.Context, limiter *rratelimiter.Limiter, at time.Time) (finding, error) {
	callers, sum := new(crew).get(1)
	all := callers[0]
	var mu sync.Mutex // guards all and f
	var f finding
	var requests sync.WaitGroup
	begins := at.Add(sharedWarm)
	for next := at; next.Before(begins.Add(o.Time)); {
		time.Sleep(time.Until(next))
		came := next
		requests.Go(func() {
			start := time.Now()
			granted, err := limiter.TryAcquire(ctx, 1)
			end := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				all.err = err
			}
			if granted {
				f.Grants = append(f.Grants, [2]int64{start.UnixNano(), end.UnixNano()})
			}
			if !came.Before(begins) {
				all.note(end.Sub(start), 1, granted)
			}
		})
		next = next.Add(time.Duration(-math.Log(1-rand.Float64()) / o.Pace * float64(time.Second)))
	}
	requests.Wait()
	sum.Merge(all.latency)
	f.Requests, f.Denied, f.Permits, f.End, f.Latencies = all.requests, all.denied, all.permits, time.Now(),
		sum.Export()
	return f, all.err
}

// namesLease is the length of the leases of names that are used once.
const namesLease = time.Second

// once uses many names once each, and measures what is left in this process after the leases have
// ended.
func (b *lab) once(ctx context.Context, c *contender) (Sample, error) {
	if err := b.clear(ctx); err != nil {
		return Sample{}, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: b.addr, PoolTimeout: patience})
	defer rdb.Close()
	opts := []rratelimiter.LimiterOption{rratelimiter.WithRate(rratelimiter.PerMinute(600))}
	if c.name == rowLease {
		opts = append(opts, rratelimiter.WithLease(namesLease))
	}
	client := rratelimiter.NewClient(rdb)
	const callersOfNames = 256
	use := func(from, until int64) (counts, error) {
		next := from
		callers, sum := b.crew.get(callersOfNames)
		return together(callers, sum, func(c *caller, _ time.Time) {
			for i := atomic.AddInt64(&next, 1); i <= until && c.err == nil; i = atomic.AddInt64(&next, 1) {
				start := time.Now()
				var granted bool
				if granted, c.err = client.RateLimiter("name:"+strconv.FormatInt(i, 10), opts...).TryAcquire(ctx,
					1); c.err == nil &&
					!granted {
					c.err = errors.New("a permit was refused")
				}
				c.note(time.Since(start), 1, granted)
			}
		})
	}
	settled := func() (heap uint64, goroutines int) {
		time.Sleep(3 * namesLease) // for the leases to end
		for last := int64(-1); ; time.Sleep(100 * time.Millisecond) {
			now, err := b.read(ctx) // and for what is unused to come back
			if err != nil || now.evals == last {
				break
			}
			last = now.evals
		}
		runtime.GC()
		runtime.GC() // for what pools hold
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return memory.HeapAlloc, runtime.NumGoroutine()
	}
	if _, err := use(0, 1000); err != nil { // connects, and fills what is kept of the names used last
		return Sample{}, err
	}
	heap, goroutines := settled()
	sample, err := b.spent(ctx, c, func() (counts, error) { return use(1000, 1000+b.names) })
	if err != nil {
		return Sample{}, err
	}
	heapAfter, goroutinesAfter := settled()
	runtime.KeepAlive(client)
	sample.Kept, sample.Goroutines = max(int64(heapAfter)-int64(heap), 1), int64(goroutinesAfter-goroutines)
	return sample, nil
}
