package promlimit

import (
	"fmt"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

func BenchmarkCall(b *testing.B) {
	info := rratelimiter.CallInfo{
		Limiter: "orders", Callers: 100, Granted: 60, Denied: 40, Permits: 60, Latency: time.Millisecond, Attempts: 1,
	}
	for name, label := range map[string]func(string) string{
		"none": nil,
		"name": func(limiter string) string { return limiter },
	} {
		b.Run("label="+name, func(b *testing.B) {
			m := New(Config{Label: label})
			b.ReportAllocs()
			for b.Loop() {
				m.Call(info)
			}
		})
	}
}

func BenchmarkRequest(b *testing.B) {
	m := New(Config{})
	for name, info := range map[string]rratelimiter.RequestInfo{
		"waits=false": {},
		"waits=true":  {Waits: true},
		"leased":      {Leased: true},
	} {
		info.Limiter, info.Permits, info.Granted, info.Latency = "orders", 1, 1, time.Millisecond
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					m.Request(b.Context(), info)
				}
			})
		})
	}
}

// BenchmarkHotLimiter measures callers that acquire from a real server at full speed, with an
// observer and without.
func BenchmarkHotLimiter(b *testing.B) {
	server := redistest.Real(b)
	rate := rratelimiter.WithRate(rratelimiter.Rate{Permits: 1e9, Interval: 250 * time.Millisecond})
	for _, seen := range []bool{false, true} {
		for _, callers := range []int{1, 1024} {
			b.Run(fmt.Sprintf("callers=%d/observer=%v", callers, seen), func(b *testing.B) {
				var options []rratelimiter.Option
				if seen {
					options = append(options, rratelimiter.WithObserver(New(Config{})))
				}
				l := rratelimiter.NewClient(server.Client(), options...).RateLimiter("hot", rate)
				b.ReportAllocs()
				b.SetParallelism(callers)
				if callers == 1 {
					for b.Loop() {
						if err := l.Acquire(b.Context(), 1); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := l.Acquire(b.Context(), 1); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
