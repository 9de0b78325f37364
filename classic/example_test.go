package classic_test

import (
	"context"
	"errors"
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
		classic.Gateway{Every: 500 * time.Millisecond, Capacity: 2, Interval: time.Second},
		classic.WithClock(server.Now))
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

func ExampleLimiter_Peek() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewGCRA(server.Redis(), "api", rratelimiter.PerMinute(10), 5, classic.WithClock(server.Now))
	if _, err := limiter.Allow(ctx, 3); err != nil {
		fmt.Println(err)
		return
	}
	for _, n := range []int64{2, 3} {
		result, err := limiter.Peek(ctx, n)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter.Round(time.Millisecond), err)
	}
	// Output:
	// true 2 0s <nil>
	// false 0 6s <nil>
}

// The usual weakness of a fixed window: twice the rate on both sides of a border.
// A month's quota of a language model's tokens: each answer is charged when its length is known.
func ExampleLimiter_Charge() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	month := classic.Days{Period: classic.Monthly(1)}
	quota := classic.NewQuota(server.Redis(), "tenant:7", 1_000_000, month, classic.WithClock(server.Now))
	for _, used := range []int64{999_000, 4_000} {
		before, err := quota.Charge(ctx, 0) // is a token free?
		fmt.Println(before.Allowed, before.Remaining, err)
		after, err := quota.Charge(ctx, used)
		fmt.Println(after.Remaining, after.RetryAfter.Round(24*time.Hour), err)
	}
	refused, err := quota.Allow(ctx, 1)
	fmt.Println(refused.Allowed, err)
	// Output:
	// true 1000000 <nil>
	// 1000 0s <nil>
	// true 1000 <nil>
	// 0 744h0m0s <nil>
	// false <nil>
}

func ExampleNewCursorWindow() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewCursorWindow(server.Redis(), "api", rratelimiter.PerMinute(10), classic.WithClock(server.Now))
	server.Advance(59 * time.Second)
	for range 2 {
		result, err := limiter.Allow(ctx, 10)
		fmt.Println(result.Allowed, result.ResetAfter, err)
		server.Advance(time.Second)
	}
	// Output:
	// true 1s <nil>
	// true 1m0s <nil>
}

// Each window has its own key, which ends with the second in which the window begins.
func ExampleNewWindowKeys() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewWindowKeys(server.Redis(), "api", rratelimiter.PerSecond(2), classic.WithClock(server.Now))
	for _, n := range []int64{2, 1} {
		result, err := limiter.Allow(ctx, n)
		fmt.Println(result.Allowed, result.Remaining, err)
	}
	fmt.Println(server.Redis().Keys(ctx, "*").Val())
	// Output:
	// true 0 <nil>
	// false 0 <nil>
	// [api:1767225600]
}

// The permits of a window are the elements of a list.
func ExampleNewListWindow() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewListWindow(server.Redis(), "api", rratelimiter.PerMinute(3))
	for range 2 {
		result, err := limiter.Allow(ctx, 2)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter, err)
	}
	fmt.Println(server.Redis().LLen(ctx, "api").Val())
	// Output:
	// true 1 0s <nil>
	// false 1 1m0s <nil>
	// 2
}

// Permits return one by one, an interval after they were granted.
func ExampleNewSlidingLog() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewSlidingLog(server.Redis(), "api", rratelimiter.PerMinute(2), classic.WithClock(server.Now))
	for range 3 {
		result, err := limiter.Allow(ctx, 1)
		fmt.Println(result.Allowed, result.RetryAfter, err)
		server.Advance(20 * time.Second)
	}
	// Output:
	// true 0s <nil>
	// true 0s <nil>
	// false 20s <nil>
}

// A minute of six sub-windows. The permits of a sub-window return together.
func ExampleNewSubWindows() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewSubWindows(server.Redis(), "api", rratelimiter.PerMinute(4), 6, classic.WithClock(server.Now))
	for range 3 {
		result, err := limiter.Allow(ctx, 2)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter, err)
		server.Advance(8 * time.Second)
	}
	// Output:
	// true 2 0s <nil>
	// true 0 0s <nil>
	// false 0 44s <nil>
}

// In the first quarter of a window, three quarters of the previous one still count.
func ExampleNewTwoCounters() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewTwoCounters(server.Redis(), "api", rratelimiter.PerMinute(100), classic.WithClock(server.Now))
	server.Advance(30 * time.Second)
	for range 2 {
		result, err := limiter.Allow(ctx, 20)
		fmt.Println(result.Allowed, result.Remaining, err)
		server.Advance(45 * time.Second)
	}
	// Output:
	// true 80 <nil>
	// true 65 <nil>
}

// A bucket of ten tokens, which gets one token a second.
func ExampleNewTokenBucket() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewTokenBucket(server.Redis(), "api",
		classic.Tokens{Capacity: 10, PerStep: 1, Step: time.Second}, classic.WithClock(server.Now))
	for _, n := range []int64{8, 5} {
		result, err := limiter.Allow(ctx, n)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter, err)
	}
	// Output:
	// true 2 0s <nil>
	// false 2 3s <nil>
}

// A bucket of three drops, which leaks one drop in 20 s.
func ExampleNewLeakyBucket() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewLeakyBucket(server.Redis(), "api", rratelimiter.PerMinute(3), 3,
		classic.WithClock(server.Now))
	for range 2 {
		result, err := limiter.Allow(ctx, 2)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter, err)
	}
	// Output:
	// true 1 0s <nil>
	// false 1 20s <nil>
}

// A queue with room for two permits. The third caller is dropped and does not wait.
func ExampleNewLeakyQueue() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	queue := classic.NewLeakyQueue(server.Redis(), "mails", rratelimiter.PerSecond(100), 2,
		classic.WithClock(server.Now))
	for range 3 {
		err := queue.Acquire(ctx, 1) // the second caller waits for 10 ms
		fmt.Println(err == nil, errors.Is(err, classic.ErrQueueFull))
	}
	// Output:
	// true false
	// true false
	// false true
}

// A burst of three passes at once, then one permit every 20 s. The clock is that of the server.
func ExampleNewGCRA() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewGCRA(server.Redis(), "api", rratelimiter.PerMinute(3), 3)
	for _, n := range []int64{3, 1} {
		result, err := limiter.Allow(ctx, n)
		fmt.Println(result.Allowed, result.Remaining, result.RetryAfter.Round(time.Millisecond), err)
	}
	// Output:
	// true 0 0s <nil>
	// false 0 20s <nil>
}

// A bucket that a route of Spring Cloud Gateway shares: its next request finds the tokens that are
// left here.
func ExampleNewSpringBucket() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := classic.NewSpringBucket(
		server.Redis(), "orders.alice", classic.Spring{ReplenishRate: 10, BurstCapacity: 20},
	)
	result, err := limiter.Allow(ctx, 5)
	if err != nil {
		fmt.Println(err)
		return
	}
	stored, err := server.Redis().Get(ctx, "request_rate_limiter.{orders.alice}.tokens").Result()
	fmt.Println(result.Allowed, result.Remaining, stored, err)
	// Output: true 15 15 <nil>
}

// The key that a header field has in Spring Cloud Gateway.
func ExampleSpringHeader() {
	fmt.Println(classic.SpringHeader("alice"), classic.SpringHeader("ü"))
	// Output: alice Ã¼
}

// A million requests a day, as in Spring Cloud Gateway with the requestedTokens 86400: each second
// adds a million tokens, and a request takes those of the seconds of a day.
func ExampleNewSpringBucket_day() {
	server := limittest.Start()
	defer server.Close()

	limiter := classic.NewSpringBucket(
		server.Redis(), "orders.alice", classic.Spring{ReplenishRate: 1e6, BurstCapacity: 86_400_000_000},
	)
	result, err := limiter.Allow(context.Background(), 86_400)
	fmt.Println(result.Allowed, result.Remaining/86_400, err)
	// Output: true 999999 <nil>
}

// A thousand mails a day. The day ends at midnight in Berlin.
func ExampleNewQuota() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	berlin := time.FixedZone("Berlin", 3600) // a program calls time.LoadLocation
	quota := classic.NewQuota(
		server.Redis(), "user:7", 1000, classic.Days{Location: berlin}, classic.WithClock(server.Now),
	)
	result, err := quota.Allow(ctx, 250)
	fmt.Println(quota.Key(), result.Remaining, result.ResetAfter, err)
	// Output: user:7::2026-01-01 750 23h0m0s <nil>
}

// A contract that is billed on the last day of each month.
func ExampleMonthly() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	quota := classic.NewQuota(
		server.Redis(), "user:7", 1000, classic.Days{Period: classic.Monthly(31)}, classic.WithClock(server.Now),
	)
	result, err := quota.Allow(ctx, 250)
	fmt.Println(quota.Key(), result.Remaining, result.ResetAfter, err)
	// Output: user:7::month:2025-12-31 750 720h0m0s <nil>
}

// The limiter is cold at first: there are up to 600 ms between two permits, and less with each one,
// down to 200 ms.
func ExampleNewSmoothWarmingUp() {
	still := time.Now()
	limiter := classic.NewSmoothWarmingUp(5, 4*time.Second, classic.WithClock(func() time.Time { return still }))
	var last time.Duration
	for range 5 {
		at, err := limiter.Reserve(1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(at - last)
		last = at
	}
	// Output:
	// 0s
	// 580ms
	// 540ms
	// 500ms
	// 460ms
}
