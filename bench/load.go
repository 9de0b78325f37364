package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// load.go runs callers that send requests as fast as possible. So that the measurement costs
// little, each caller has its own histogram, and where several callers run, each times one request
// in eight: reading the clock takes as long as the grant of a lease.

// An asker requests n permits of a limiter, given by its index; if wait is true, it waits for them.
// It reports whether they were granted.
type asker func(ctx context.Context, limiter int, n int64, wait bool) (bool, error)

// spread is the distribution of the requests of a caller over the limiters.
type spread int

const (
	uniform spread = iota
	zipf           // s = 1.1: of 10,000 limiters, the first gets a sixth of all requests
)

// work is a load: the number of callers, its duration and the form of the requests.
type work struct {
	callers  int
	time     time.Duration
	limiters int
	spread   spread
	// each request draws 1 to 10 permits, and whether it waits; else one permit without waiting
	mixed bool
}

// counts holds the results of all callers of one measurement.
type counts struct {
	requests, denied, permits int64
	took, p50, p99            time.Duration
	// valid until the crew's next measurement; nil for a JVM
	latencies *hdrhistogram.Histogram
}

// summarise sets the latencies and their percentiles.
func (c *counts) summarise(latencies *hdrhistogram.Histogram) {
	c.latencies = latencies
	c.p50 = time.Duration(latencies.ValueAtQuantile(50)) * tick
	c.p99 = time.Duration(latencies.ValueAtQuantile(99)) * tick
}

// tick is the unit of the histograms.
const tick = 100 * time.Nanosecond

const longestLatency = int64(10 * time.Minute / tick)

// fewCallers is the largest number of callers with fine histograms, of three digits instead of two,
// which distinguish figures that differ by 1 %.
const fewCallers = 64

func newHistogram(fine bool) *hdrhistogram.Histogram {
	digits := 2
	if fine {
		digits = 3
	}
	return hdrhistogram.New(1, longestLatency, digits)
}

// A caller is one goroutine.
type caller struct {
	latency                   *hdrhistogram.Histogram
	random                    *rand.Rand
	requests, denied, permits int64
	err                       error
	_                         [64]byte // padding against false sharing of a cache line
}

// note records one request.
func (c *caller) note(latency time.Duration, n int64, granted bool) {
	c.timed(latency)
	c.count(n, granted)
}

func (c *caller) timed(latency time.Duration) {
	_ = c.latency.RecordValue(min(int64(latency/tick), longestLatency)) // can't be out of range
}

func (c *caller) count(n int64, granted bool) {
	c.requests++
	if granted {
		c.permits += n
	} else {
		c.denied++
	}
}

// A crew reuses callers between measurements, because their histograms are large.
type crew struct {
	few, many []*caller
	sum       struct{ few, many *hdrhistogram.Histogram }
}

// get returns n callers and a histogram for their sum, all of them reset.
func (c *crew) get(n int) ([]*caller, *hdrhistogram.Histogram) {
	pool, sum, fine := &c.many, &c.sum.many, n <= fewCallers
	if fine {
		pool, sum = &c.few, &c.sum.few
	}
	for len(*pool) < n {
		*pool = append(
			*pool, &caller{latency: newHistogram(fine), random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))},
		)
	}
	if *sum == nil {
		*sum = newHistogram(fine)
	}
	(*sum).Reset()
	callers := (*pool)[:n]
	for _, c := range callers {
		c.latency.Reset()
		c.requests, c.denied, c.permits, c.err = 0, 0, 0, nil
	}
	return callers, *sum
}

// run lets the callers of a load send requests until its time is over.
func (c *crew) run(ctx context.Context, w work, ask asker) (counts, error) {
	callers, sum := c.get(w.callers)
	timed := 8 // one request in so many
	if w.callers == 1 {
		timed = 1
	}
	var over atomic.Bool
	return together(callers, sum, func(c *caller, start time.Time) {
		if c == callers[0] {
			time.AfterFunc(time.Until(start.Add(w.time)), func() { over.Store(true) })
		}
		next := func() int { return c.random.IntN(w.limiters) }
		if w.spread == zipf {
			z := rand.NewZipf(c.random, 1.1, 1, uint64(w.limiters-1))
			next = func() int { return int(z.Uint64()) }
		}
		for i := 0; !over.Load(); i++ {
			limiter, n, wait := 0, int64(1), false
			if w.limiters > 1 {
				limiter = next()
			}
			if w.mixed {
				n, wait = 1+c.random.Int64N(10), c.random.Int64N(2) == 0
			}
			var began time.Time
			if i%timed == 0 {
				began = time.Now()
			}
			granted, err := ask(ctx, limiter, n, wait)
			if err != nil {
				c.err = err
				over.Store(true)
				return
			}
			if i%timed == 0 {
				c.timed(time.Since(began))
			}
			c.count(n, granted)
		}
	})
}

// once lets n callers wait for one permit each. They start evenly over the duration arrive; all at
// once if it is 0.
func (c *crew) once(ctx context.Context, n int, arrive time.Duration, ask asker) (counts, error) {
	callers, sum := c.get(n)
	number := map[*caller]int{}
	for i, c := range callers {
		number[c] = i
	}
	return together(callers, sum, func(c *caller, start time.Time) {
		at := start.Add(arrive * time.Duration(number[c]) / time.Duration(n))
		time.Sleep(time.Until(at))
		var granted bool
		granted, c.err = ask(ctx, 0, 1, true)
		c.note(time.Since(at), 1, granted)
	})
}

// together starts all callers at the same moment, waits for them and returns the sum of their
// results.
func together(callers []*caller, sum *hdrhistogram.Histogram, body func(*caller, time.Time)) (counts, error) {
	var ready, over sync.WaitGroup
	gate := make(chan struct{})
	var start time.Time
	ready.Add(len(callers))
	for _, c := range callers {
		over.Go(func() {
			ready.Done()
			<-gate
			body(c, start)
		})
	}
	ready.Wait()
	start = time.Now()
	close(gate)
	over.Wait()
	all := counts{took: time.Since(start)}
	for _, c := range callers {
		if c.err != nil {
			return all, fmt.Errorf("a caller: %w", c.err)
		}
		sum.Merge(c.latency)
		all.requests += c.requests
		all.denied += c.denied
		all.permits += c.permits
	}
	all.summarise(sum)
	return all, nil
}
