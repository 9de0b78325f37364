package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestCallersAskUntilTheTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, granted, permits atomic.Int64
		var limiters [3]atomic.Int64
		const callers, each = 4, 20
		w := work{callers: callers, time: (each*2 - 1) * time.Millisecond / 2, limiters: len(limiters), mixed: true}
		seen, err := new(crew).run(t.Context(), w,
			func(_ context.Context, limiter int, n int64, wait bool) (bool, error) {
				time.Sleep(time.Millisecond)
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
		if asked.Load() != callers*each || seen.requests != asked.Load() ||
			seen.requests-seen.denied != granted.Load() ||
			seen.permits != permits.Load() {
			t.Errorf("%+v, but %d were asked, %d granted with %d permits",
				seen, asked.Load(), granted.Load(), permits.Load())
		}
		if seen.took != each*time.Millisecond || seen.p50 < time.Millisecond || seen.denied == 0 ||
			limiters[2].Load() == 0 {
			t.Errorf("%+v", seen)
		}
	})
}

func TestALatencyIsThatOfTheRequest(t *testing.T) {
	for _, callers := range []int{200, 50} {
		synctest.Test(t, func(t *testing.T) {
			var asked atomic.Int64
			arrive := time.Duration(callers) * time.Millisecond
			seen, err := new(crew).once(t.Context(), callers, arrive,
				func(context.Context, int, int64, bool) (bool, error) {
					latency := 5 * time.Millisecond
					if asked.Add(1)*50 <= int64(callers) { // 2 of 100
						latency = 7 * time.Millisecond
					}
					time.Sleep(latency)
					return true, nil
				})
			near := func(d, want time.Duration) bool { return d >= want-want/100 && d <= want+want/100 }
			if err != nil || seen.requests != int64(callers) || !near(seen.p50, 5*time.Millisecond) ||
				!near(seen.p99, 7*time.Millisecond) {
				t.Errorf("%d callers: %+v, %v", callers, seen, err)
			}
			if want := arrive - time.Millisecond + 5*time.Millisecond; seen.took != want {
				t.Errorf("%d callers, one every ms, took %v, not %v", callers, seen.took, want)
			}
		})
	}
}

func TestACallerThatFailsEndsTheSample(t *testing.T) {
	broken := errors.New("broken")
	c := new(crew)
	_, err := c.run(
		t.Context(),
		work{callers: 3, time: time.Hour, limiters: 1},
		func(context.Context, int, int64, bool) (bool, error) {
			return false, broken
		},
	)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	seen, err := c.once(t.Context(), 3, 0, func(context.Context, int, int64, bool) (bool, error) { return true, nil })
	if err != nil || seen.requests != 3 {
		t.Errorf("the next sample: %+v, %v", seen, err)
	}
}

func TestZipfPrefersTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := 0
		seen, err := new(crew).run(t.Context(),
			work{callers: 1, time: 10 * time.Second, limiters: 10_000, spread: zipf},
			func(_ context.Context, limiter int, _ int64, _ bool) (bool, error) {
				time.Sleep(time.Millisecond)
				if limiter == 0 {
					first++
				}
				return true, nil
			})
		if err != nil || first < 1000 || first > 2500 {
			t.Errorf("%d of %d for the first limiter, %v", first, seen.requests, err)
		}
	})
}
