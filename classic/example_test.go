package classic_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/classic"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// A limit for each address and route: a limiter has no state, so one is made for each request.
func ExampleNewFixedWindow() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	for _, ip := range []string{"1.2.3.4", "1.2.3.4", "1.2.3.4", "5.6.7.8"} {
		limiter := classic.NewFixedWindow(server.Redis(), ip+":/login", rratelimiter.PerMinute(2))
		result, err := limiter.Allow(ctx, 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(ip, result.Allowed, result.Remaining, result.RetryAfter)
	}
	// Output:
	// 1.2.3.4 true 1 0s
	// 1.2.3.4 true 0 0s
	// 1.2.3.4 false 0 1m0s
	// 5.6.7.8 true 1 0s
}

// A bucket in the form that API gateways use, with its usual name.
func ExampleNewGatewayBucket() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	key := classic.GatewayKey("127.0.0.1", "/user/get", time.Second)
	limiter := classic.NewGatewayBucket(server.Redis(), key,
		classic.Gateway{Every: 500 * time.Millisecond, Capacity: 2, Interval: time.Second}, classic.WithClock(server.Now))
	result, err := limiter.Allow(ctx, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limiter.Name(), result.Allowed, result.ResetAfter)
	// Output: ratelimit:127.0.0.1:/user/get:1000 true 1s
}

// The permits that a user has used today, read and set to zero at once.
func ExampleQuota_Reset() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	quota := classic.NewQuota(server.Redis(), "user:7", 1000, classic.Days{}, classic.WithClock(server.Now))
	if _, err := quota.Allow(ctx, 250); err != nil {
		fmt.Println(err)
		return
	}
	used, err := quota.Reset(ctx)
	fmt.Println(quota.Key(), used, err)
	// Output: user:7::2026-01-01 250 <nil>
}

// After a pause, any request is served at once, and the next one pays for it.
func ExampleNewSmoothBursty() {
	still := time.Now()
	limiter := classic.NewSmoothBursty(5, classic.WithClock(func() time.Time { return still }))
	first, _ := limiter.Reserve(10)
	second, _ := limiter.Reserve(1)
	fmt.Println(first, second)
	// Output: 0s 2s
}
