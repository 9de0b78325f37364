package main

import (
	"strings"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
)

func TestIdealTime(t *testing.T) {
	for _, c := range []struct {
		callers int
		rate    rratelimiter.Rate
		arrive  time.Duration
		want    time.Duration
	}{
		{100, rratelimiter.PerSecond(100), 0, 0},
		{101, rratelimiter.PerSecond(100), 0, time.Second},
		{1000, rratelimiter.PerSecond(100), 0, 9 * time.Second},
		{10_000, rratelimiter.PerSecond(1000), 0, 9 * time.Second},
		{1000, rratelimiter.PerSecond(100), time.Second, 9*time.Second + 99*time.Millisecond},
		{10, rratelimiter.PerSecond(100), time.Second, 900 * time.Millisecond},
	} {
		if got := idealTime(c.callers, c.rate, c.arrive); got != c.want {
			t.Errorf("%d callers, %v, arriving over %v: %v, want %v", c.callers, c.rate, c.arrive, got, c.want)
		}
	}
}

func TestWaitingIsMeasured(t *testing.T) {
	b := newLab(t, size{processes: 2})
	rate := rratelimiter.Rate{Permits: 4, Interval: 2 * time.Second}
	// of the interval, µs: on a busy machine a process starts late, and then waits less than the
	// interval
	const half = 1_000_000
	for _, c := range append(contenders(rowLibrary), &contender{name: rowProcesses}) {
		s, err := b.wait(t.Context(), c, scene{addr: b.addr, names: []string{"bench"}, rate: rate}, 8, 0)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if s.Requests != 8 || s.Permits != 8 || s.Ideal != 2 || s.Seconds < s.Ideal || s.Commands < 2 || s.P99 < half ||
			s.P50 > s.P99 {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

func TestAWorkerThatFailsIsToldOf(t *testing.T) {
	b := newLab(t, size{processes: 2})
	_, err := b.processRun(t.Context(), scene{addr: b.addr, names: []string{"no such limiter"}, rate: unlimited}, 1)
	if err == nil || !strings.Contains(err.Error(), "has no rate") {
		t.Errorf("workers without a limiter: %v", err)
	}
}
