package promlimit_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/promlimit"
)

// Limiters with many names, here one for each address, share a label; others have their own.
func Example() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	metrics := promlimit.New(promlimit.Config{Label: func(limiter string) string {
		if strings.HasPrefix(limiter, "ratelimit:") {
			return "gateway"
		}
		return limiter
	}})
	registry := prometheus.NewRegistry() // or the default one, with prometheus.MustRegister
	registry.MustRegister(metrics)
	client := server.Client(rratelimiter.WithObserver(metrics))

	for _, name := range []string{"ratelimit:192.0.2.1:1s", "ratelimit:192.0.2.2:1s", "orders"} {
		limiter := client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(10)))
		if err := limiter.Acquire(ctx, 3); err != nil {
			fmt.Println(err)
			return
		}
	}
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, family := range families {
		if family.GetName() == "rratelimiter_granted_permits_total" {
			for _, metric := range family.GetMetric() {
				fmt.Println(metric.GetLabel()[0].GetValue(), metric.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// gateway 6
	// orders 3
}

// Without a Label, all limiters are counted together.
func ExampleNew() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	metrics := promlimit.New(promlimit.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	client := server.Client(rratelimiter.WithObserver(metrics))
	for _, name := range []string{"orders", "mails"} {
		fmt.Println(client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerSecond(10))).TryAcquire(ctx, 3))
	}

	page := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "rratelimiter_granted_permits_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// true <nil>
	// true <nil>
	// rratelimiter_granted_permits_total{limiter=""} 6
}
