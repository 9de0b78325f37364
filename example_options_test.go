package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// The owner of a limiter enforces its rate. Grants of the old rate still count.
func ExampleWithEnforcedRate() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	before := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(5)))
	fmt.Println(before.TryAcquire(ctx, 3))
	owner := client.RateLimiter("orders", rratelimiter.WithEnforcedRate(rratelimiter.PerMinute(9)))
	fmt.Println(owner.AvailablePermits(ctx))
	fmt.Println(owner.Config(ctx))
	// Output:
	// true <nil>
	// 6 <nil>
	// 9/m <nil>
}

// While Redis cannot serve, each of two processes grants half of the rate.
func ExampleWithFallback() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithFallback(0.5))
	server.Fail("LOADING Redis is loading the dataset in memory")
	for range 2 {
		result, err := limiter.Allow(ctx, 4)
		fmt.Println(result.Allowed, result.Remaining, "of", result.Limit, err)
	}
	// Output:
	// true 1 of 5 <nil>
	// false 1 of 5 <nil>
}

// Most requests are decided in the process, without a call to Redis.
func ExampleWithLease() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	const requests = 1000
	calls := make(watcher, requests)
	limiter := server.Client(rratelimiter.WithObserver(calls)).RateLimiter("orders",
		rratelimiter.WithRate(rratelimiter.PerMinute(10_000)), rratelimiter.WithLease(time.Second))
	for range requests {
		if ok, err := limiter.TryAcquire(ctx, 1); !ok || err != nil {
			fmt.Println(ok, err)
			return
		}
	}
	fmt.Println(len(calls) < requests/10)
	// Output: true
}

// A refusal is remembered until the permits can be free.
func ExampleWithDenyCache() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	calls := make(watcher, 10)
	limiter := server.Client(rratelimiter.WithObserver(calls)).RateLimiter("logins",
		rratelimiter.WithRate(rratelimiter.PerMinute(1)), rratelimiter.WithDenyCache(1000))
	for range 4 {
		fmt.Println(limiter.TryAcquire(ctx, 1))
	}
	fmt.Println("calls to Redis:", len(calls))
	// Output:
	// true <nil>
	// false <nil>
	// false <nil>
	// false <nil>
	// calls to Redis: 2
}

// Grants of the same 10 s share a record.
func ExampleWithGranularity() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders",
		rratelimiter.WithRate(rratelimiter.PerHour(100)), rratelimiter.WithGranularity(10*time.Second))
	for range 3 {
		server.Advance(time.Second)
		if _, err := limiter.TryAcquire(ctx, 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	state, err := limiter.State(ctx)
	fmt.Println(state.Used, "permits in", state.Records, "record", err)
	// Output: 3 permits in 1 record <nil>
}

// Two waiting callers are served by one call, and each has its own record.
func ExampleWithRecordPerRequest() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("jobs",
		rratelimiter.WithRate(rratelimiter.PerMinute(2)), rratelimiter.WithRecordPerRequest())
	fmt.Println(limiter.TryAcquire(ctx, 2))
	var callers sync.WaitGroup
	for range 2 {
		callers.Go(func() {
			if err := limiter.Acquire(ctx, 1); err != nil {
				fmt.Println(err)
			}
		})
	}
	server.AwaitWaiting("jobs", 2)
	server.Advance(time.Minute)
	callers.Wait()
	state, err := limiter.State(ctx)
	fmt.Println(state.Records, err)
	// Output:
	// true <nil>
	// 2 <nil>
}

// The format of Redisson 3.13.3 to 3.16.3 has 4 bytes for the id of a record, and 4 bytes for its permits.
func ExampleWithRecordFormat() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders",
		rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithRecordFormat(rratelimiter.Redisson313))
	fmt.Println(limiter.TryAcquire(ctx, 3))
	for _, member := range server.Redis().ZRange(ctx, "{orders}:permits", 0, -1).Val() {
		record, err := rratelimiter.UnpackRecord([]byte(member))
		fmt.Println(len(record.ID), record.Permits, err)
	}
	// Output:
	// true <nil>
	// 4 3 <nil>
}

// The clock of this host is 30 s late, but grants have the time of the server.
func ExampleWithServerTime() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	late := func() time.Time { return server.Now().Add(-30 * time.Second) }
	limiter := server.Client(rratelimiter.WithClock(late)).RateLimiter("orders",
		rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithServerTime())
	fmt.Println(limiter.TryAcquire(ctx, 1))
	state, err := limiter.State(ctx)
	fmt.Println(server.Now().Sub(state.Newest), err)
	// Output:
	// true <nil>
	// 0s <nil>
}

func ExampleWithCallTimeout() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client(rratelimiter.WithCallTimeout(50 * time.Millisecond))
	server.Fail("LOADING Redis is loading the dataset in memory")
	_, err := client.RateLimiter("orders").TryAcquire(ctx, 1) // is retried for 50 ms
	fmt.Println(errors.Is(err, rratelimiter.ErrUnavailable))
	// Output: true
}

// Each process has the rate for itself. With a stable id, a restarted process finds the permits that it used before.
func ExampleWithClientID() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	each := rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute}
	for _, id := range []string{"worker-1", "worker-2", "worker-1"} {
		client := server.Client(rratelimiter.WithClientID(id))
		limiter := client.RateLimiter("orders", rratelimiter.WithRate(each))
		result, err := limiter.Allow(ctx, 2)
		fmt.Println(client.ID(), result.Remaining, err)
	}
	// Output:
	// worker-1 3 <nil>
	// worker-2 3 <nil>
	// worker-1 1 <nil>
}

// A test moves the clock of the client. Package limittest has a server with such a clock.
func ExampleWithClock() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	var passed atomic.Int64 // seconds
	clock := func() time.Time { return time.Unix(1_000_000_000+passed.Load(), 0) }
	limiter := server.Client(rratelimiter.WithClock(clock)).RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	fmt.Println(limiter.TryAcquire(ctx, 1))
	fmt.Println(limiter.TryAcquire(ctx, 1))
	passed.Store(60)
	fmt.Println(limiter.TryAcquire(ctx, 1))
	// Output:
	// true <nil>
	// false <nil>
	// true <nil>
}

func ExampleWithLimiterDefaults() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client(rratelimiter.WithLimiterDefaults(rratelimiter.WithRate(rratelimiter.PerSecond(5))))
	fmt.Println(client.RateLimiter("orders").AvailablePermits(ctx))
	fmt.Println(client.RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerSecond(9))).AvailablePermits(ctx))
	// Output:
	// 5 <nil>
	// 9 <nil>
}

// The Java services use a prefix for all their names.
func ExampleWithNameMapper() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client(rratelimiter.WithNameMapper(func(name string) string { return "shop:" + name }))
	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(5)))
	fmt.Println(limiter.TryAcquire(ctx, 1))
	fmt.Println(limiter.Name(), server.Redis().Exists(ctx, "shop:orders").Val())
	// Output:
	// true <nil>
	// orders 1
}
