package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// BenchmarkMiddleware measures the cost of a guard for a request: first without a guard, then its
// own work with a limiter that costs nothing, then with one and two limits on a real Redis, and
// with limits that are decided from memory.
func BenchmarkMiddleware(b *testing.B) {
	client := rratelimiter.NewClient(redistest.Shared(b).Client())
	leased := rratelimiter.NewClient(
		redistest.Shared(b).Client(), rratelimiter.WithLimiterDefaults(rratelimiter.WithLease(time.Second)),
	)
	denied := rratelimiter.NewClient(
		redistest.Shared(b).Client(), rratelimiter.WithLimiterDefaults(rratelimiter.WithDenyCache(1000)),
	)
	free := Shared("free", fixed{rratelimiter.Result{Allowed: true, Limit: 5, Remaining: 4}, nil})
	second, minute := Per(client, "1s", rratelimiter.PerSecond(4e9), byAddr), Per(
		client, "1m", rratelimiter.PerMinute(4e9), byAddr,
	)
	served := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	guarded := func(limits ...Limit) http.Handler { return patient(limits...).Middleware(served) }
	for _, c := range []struct {
		name string
		h    http.Handler
	}{
		{"no guard", served},
		{"no Redis", guarded(free)},
		{"one limit", guarded(second)},
		{"two limits", guarded(second, minute)},
		{"refused from memory", guarded(Per(denied, "denied", rratelimiter.PerHour(1), byAddr))},
		{"a lease", guarded(Per(leased, "leased", rratelimiter.PerMinute(4e9), byAddr))},
		{"a lease, no key", guarded(Per(leased, "leased", rratelimiter.PerMinute(4e9), nil))},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				for pb.Next() {
					w := httptest.NewRecorder()
					if c.h.ServeHTTP(w, r); w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests {
						b.Errorf("%d %s", w.Code, w.Body)
						return
					}
				}
			})
		})
	}
}
