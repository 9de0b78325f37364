package classic_test

import (
	"context"
	"testing"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// BenchmarkAllow measures a request on a real Redis, with a context that can end and with one that
// never does.
func BenchmarkAllow(b *testing.B) {
	rdb := redistest.Shared(b).Client()
	rate := rratelimiter.PerSecond(4e9)
	ends, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, l := range map[string]asker{
		"GCRA": classic.NewGCRA(rdb, "g", rate, 4e9), "list window": classic.NewListWindow(rdb, "l", rate),
	} {
		for what, ctx := range map[string]context.Context{"endless": context.Background(), "ends": ends} {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.Allow(ctx, 1); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
