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

// load.go has callers that ask as fast as they can. Each has a histogram of its own and looks at the clock once a request,
// so that measuring does not disturb what is measured.

// An asker asks a limiter, by its number, for n permits; where wait is set it waits for them.
type asker func(ctx context.Context, limiter int, n int64, wait bool) (bool, error)

// spread says which limiter a caller asks next.
type spread int

const (
	uniform spread = iota
	zipf           // s = 1.1: of 10,000 limiters, the first gets a sixth of all requests
)

// work is what callers do.
type work struct {
	callers  int
	time     time.Duration
	limiters int
	spread   spread
	mixed    bool // 1 to 10 permits at random, waiting or not; else one, not waiting
}

// counts is what callers saw.
type counts struct {
	requests, denied, permits int64
	took, p50, p99            time.Duration
	latencies                 *hdrhistogram.Histogram // until the crew works again; nil where others measured
}

// summarise takes the percentiles of latencies.
func (c *counts) summarise(latencies *hdrhistogram.Histogram) {
	c.latencies = latencies
	c.p50 = time.Duration(latencies.ValueAtQuantile(50)) * tick
	c.p99 = time.Duration(latencies.ValueAtQuantile(99)) * tick
}

// tick is the unit of the histograms.
const tick = 100 * time.Nanosecond

const longestLatency = int64(10 * time.Minute / tick)

// fewCallers have finer histograms: figures that differ by a hundredth are told apart.
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
	_                         [64]byte // a cache line to itself
}

// note counts one request.
func (c *caller) note(latency time.Duration, n int64, granted bool) {
	_ = c.latency.RecordValue(min(int64(latency/tick), longestLatency)) // can't be out of range
	c.requests++
	if granted {
		c.permits += n
	} else {
		c.denied++
	}
}

// A crew keeps callers, whose histograms are large, from one measurement to the next.
type crew struct {
	few, many []*caller
	sum       struct{ few, many *hdrhistogram.Histogram }
}

// get gives so many callers that have seen nothing yet.
func (c *crew) get(n int) ([]*caller, *hdrhistogram.Histogram) {
	pool, sum, fine := &c.many, &c.sum.many, n <= fewCallers
	if fine {
		pool, sum = &c.few, &c.sum.few
	}
	for len(*pool) < n {
		*pool = append(*pool, &caller{latency: newHistogram(fine), random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))})
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

// run lets callers ask until the time is over.
func (c *crew) run(ctx context.Context, w work, ask asker) (counts, error) {
	callers, sum := c.get(w.callers)
	var failed atomic.Bool
	return together(callers, sum, func(c *caller, start time.Time) {
		next := func() int { return c.random.IntN(w.limiters) }
		if w.spread == zipf {
			z := rand.NewZipf(c.random, 1.1, 1, uint64(w.limiters-1))
			next = func() int { return int(z.Uint64()) }
		}
		for last, end := start, start.Add(w.time); last.Before(end) && !failed.Load(); {
			limiter, n, wait := 0, int64(1), false
			if w.limiters > 1 {
				limiter = next()
			}
			if w.mixed {
				n, wait = 1+c.random.Int64N(10), c.random.Int64N(2) == 0
			}
			granted, err := ask(ctx, limiter, n, wait)
			now := time.Now()
			if err != nil {
				c.err = err
				failed.Store(true)
				return
			}
			c.note(now.Sub(last), n, granted)
			last = now
		}
	})
}

// once lets callers wait for one permit each, all at once or arriving evenly over a time.
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

// together runs callers from the same moment on, and sums up what they saw.
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
