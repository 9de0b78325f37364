package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

func TestCallersAskUntilTheTimeIsOver(t *testing.T) {
	var asked, granted, permits atomic.Int64
	limiters := make([]atomic.Int64, 3)
	seen, err := new(crew).run(t.Context(), work{callers: 4, time: 20 * time.Millisecond, limiters: 3, mixed: true},
		func(_ context.Context, limiter int, n int64, wait bool) (bool, error) {
			asked.Add(1)
			limiters[limiter].Add(1)
			if n < 1 || n > 10 {
				return false, errors.New("a size outside 1 to 10")
			}
			if wait {
				granted.Add(1)
				permits.Add(n)
			}
			return wait, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if seen.requests != asked.Load() || seen.requests-seen.denied != granted.Load() || seen.permits != permits.Load() {
		t.Errorf("%+v, but %d were asked, %d granted with %d permits", seen, asked.Load(), granted.Load(), permits.Load())
	}
	if seen.took < 20*time.Millisecond || seen.denied == 0 || limiters[2].Load() == 0 {
		t.Errorf("%+v", seen)
	}
}

func TestALatencyIsThatOfTheRequest(t *testing.T) {
	for _, callers := range []int{1, fewCallers + 1} {
		seen, err := new(crew).once(t.Context(), callers, 0, func(context.Context, int, int64, bool) (bool, error) {
			time.Sleep(5 * time.Millisecond)
			return true, nil
		})
		if err != nil || seen.p50 < 4900*time.Microsecond || seen.p99 < seen.p50 || seen.p99 > seen.took+seen.took/50 {
			t.Errorf("%d callers: %+v, %v", callers, seen, err)
		}
	}
}

func TestACallerThatFailsEndsTheSample(t *testing.T) {
	broken := errors.New("broken")
	c := new(crew)
	_, err := c.run(t.Context(), work{callers: 3, time: time.Hour, limiters: 1}, func(context.Context, int, int64, bool) (bool, error) {
		return false, broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	seen, err := c.once(t.Context(), 3, 0, func(context.Context, int, int64, bool) (bool, error) { return true, nil })
	if err != nil || seen.requests != 3 {
		t.Errorf("the next sample: %+v, %v", seen, err)
	}
}

func TestZipfPrefersTheFirst(t *testing.T) {
	var first, all atomic.Int64
	_, err := new(crew).run(t.Context(), work{callers: 1, time: 20 * time.Millisecond, limiters: 10_000, spread: zipf},
		func(_ context.Context, limiter int, _ int64, _ bool) (bool, error) {
			all.Add(1)
			if limiter == 0 {
				first.Add(1)
			}
			return true, nil
		})
	if err != nil || first.Load()*20 < all.Load() {
		t.Errorf("%d of %d for the first limiter, %v", first.Load(), all.Load(), err)
	}
}
