package redisson

// Bench: how fast Redisson's limiter is. The callers are Java's (Bench.java); here what they
// measured becomes Go values.

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A Mode says how the callers of Bench call.
type Mode string

// Sync callers are threads that call tryAcquire(1) again and again; Async callers are so many calls
// of tryAcquireAsync(1) in the air; Blocked callers are threads that call acquire(1) once, all at
// the same moment.
const (
	Sync    Mode = "sync"
	Async   Mode = "async"
	Blocked Mode = "blocked"
)

// A BenchResult is what the callers of Bench saw.
type BenchResult struct {
	Requests, Granted int64
	Took              time.Duration // the whole of it
	P50, P99          time.Duration // how long a call took
}

// Bench lets callers call as fast as they can, for a time, or until each is served where they are
// blocked. The bound of the whole is ctx's, or the usual one on top of that time.
func (p *Process) Bench(
	ctx context.Context, name string, mode Mode, callers int, d time.Duration,
) (BenchResult, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout+d)
		defer cancel()
	}
	answer, err := p.named(ctx, "bench", name, string(mode), "callers="+strconv.Itoa(callers), "for="+millis(d))
	if err != nil {
		return BenchResult{}, err
	}
	numbers := map[string]int64{}
	for _, word := range answer {
		key, value, _ := strings.Cut(word, "=")
		if numbers[key], err = strconv.ParseInt(value, 10, 64); err != nil {
			return BenchResult{}, fmt.Errorf("redisson: bench answered %q", answer)
		}
	}
	return BenchResult{
		Requests: numbers["requests"], Granted: numbers["granted"], Took: time.Duration(numbers["nanos"]),
		P50: time.Duration(numbers["p50"]), P99: time.Duration(numbers["p99"]),
	}, nil
}
