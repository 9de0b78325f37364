package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// The examples run on an embedded server whose clock stands still until they move it. A program
// uses a redis client instead; the rest is the same:
//
//	client := rratelimiter.NewClient(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))

func Example() {
	server := limittest.Start()
	defer server.Close()
	client := server.Client()
	ctx := context.Background()

	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(2)))
	for range 3 {
		result, err := limiter.Allow(ctx, 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(result.Allowed, result.Remaining)
	}
	server.Advance(time.Second)
	result, err := limiter.Allow(ctx, 1)
	fmt.Println(result.Allowed, result.Remaining, err)
	// Output:
	// true 1
	// true 0
	// false 0
	// true 1 <nil>
}

func ExampleNewClient() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer rdb.Close() // unblocks callers that wait
	client := rratelimiter.NewClient(rdb)

	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
	if err := limiter.Acquire(context.Background(), 1); err != nil {
		fmt.Println(err)
	}
}

// A service returns to its callers when to retry.
func ExampleLimiter_Allow() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	show := func(n int64) {
		r, err := limiter.Allow(ctx, n)
		fmt.Printf("allowed %v, %d of %d remain, retry after %v, all free after %v, error %v\n",
			r.Allowed, r.Remaining, r.Limit, r.RetryAfter, r.ResetAfter, err)
	}
	show(6)
	server.Advance(20 * time.Second)
	show(3)
	server.Advance(10 * time.Second)
	show(2)
	// Output:
	// allowed true, 4 of 10 remain, retry after 0s, all free after 1m0s, error <nil>
	// allowed true, 1 of 10 remain, retry after 0s, all free after 1m0s, error <nil>
	// allowed false, 1 of 10 remain, retry after 30s, all free after 50s, error <nil>
}

func ExampleLimiter_Peek() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("api", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	if _, err := limiter.Allow(ctx, 6); err != nil {
		fmt.Println(err)
		return
	}
	server.Advance(20 * time.Second)
	for _, n := range []int64{4, 5} {
		r, err := limiter.Peek(ctx, n)
		fmt.Printf("%d permits: allowed %v, %d of %d are free, %d are after %v, error %v\n",
			n, r.Allowed, r.Remaining, r.Limit, n, r.RetryAfter, err)
	}
	// Output:
	// 4 permits: allowed true, 4 of 10 are free, 4 are after 0s, error <nil>
	// 5 permits: allowed false, 4 of 10 are free, 5 are after 40s, error <nil>
}

func ExampleLimiter_TryAcquire() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("mails")
	_, err := limiter.TryAcquire(ctx, 1)
	fmt.Println(errors.Is(err, rratelimiter.ErrNotInitialized))

	set, err := limiter.TrySetRate(ctx, rratelimiter.PerHour(3))
	fmt.Println(set, err)
	for _, n := range []int64{2, 2, 1, 4} {
		ok, err := limiter.TryAcquire(ctx, n)
		fmt.Println(ok, err)
	}
	// Output:
	// true
	// true <nil>
	// true <nil>
	// false <nil>
	// true <nil>
	// false try to acquire from "mails": rratelimiter: the rate is less than the requested permits (4)
}

// If the permits cannot be free in time, it returns at once.
func ExampleLimiter_TryAcquireTimeout() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerHour(1)))
	fmt.Println(limiter.TryAcquireTimeout(ctx, 1, time.Minute))
	fmt.Println(limiter.TryAcquireTimeout(ctx, 1, time.Minute))
	// Output:
	// true <nil>
	// false <nil>
}

func ExampleLimiter_Acquire() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	if err := limiter.Acquire(ctx, 1); err != nil {
		fmt.Println(err)
		return
	}
	acquired := make(chan error)
	go func() { acquired <- limiter.Acquire(ctx, 1) }()

	server.AwaitWaiting("jobs", 1)
	fmt.Println("the second job waits")
	server.Advance(59 * time.Second)
	fmt.Println("callers who wait after 59 s:", server.Waiting("jobs"))
	server.Advance(time.Second)
	fmt.Println("after 60 s:", server.Waiting("jobs"), <-acquired)
	// Output:
	// the second job waits
	// callers who wait after 59 s: 1
	// after 60 s: 0 <nil>
}

// A worker takes a batch as large as the limit allows now.
func ExampleLimiter_AcquireUpTo() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("rows", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
	for range 3 {
		n, err := limiter.AcquireUpTo(ctx, 60)
		fmt.Println(n, err)
	}
	// Output:
	// 60 <nil>
	// 40 <nil>
	// 0 <nil>
}

func ExampleLimiter_Release() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("calls", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	fmt.Println(limiter.TryAcquire(ctx, 8))
	// Five of the calls were not made.
	fmt.Println(limiter.Release(ctx, 5))
	fmt.Println(limiter.AvailablePermits(ctx))
	// No more permits than are in use are given back.
	fmt.Println(limiter.Release(ctx, 5))
	// Output:
	// true <nil>
	// 5 <nil>
	// 7 <nil>
	// 3 <nil>
}

func ExampleLimiter_SetRate() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("calls", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	fmt.Println(limiter.TryAcquire(ctx, 8))

	// Permits granted in this hour count against the new rate.
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerHour(20), rratelimiter.KeepState()))
	fmt.Println(limiter.AvailablePermits(ctx))

	// Without KeepState they do not.
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerHour(20)))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// true <nil>
	// <nil>
	// 12 <nil>
	// <nil>
	// 20 <nil>
}

// A request must fit both the user's limit and the service's limit. If one refuses, neither counts.
func ExampleClient_AllowAll() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	service := client.RateLimiter("service", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
	user := client.RateLimiter("user:7", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	for range 2 {
		results, err := client.AllowAll(ctx, 1, service, user)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, r := range results {
			fmt.Println(r.Allowed, r.Remaining, r.RetryAfter)
		}
	}
	// Output:
	// true 99 0s
	// true 0 0s
	// false 99 0s
	// false 0 1m0s
}

// A call of a language model takes a request and as many tokens as it can cost, and gives back what
// it did not use.
func ExampleClient_TakeAll() {
	ctx := context.Background()
	s := limittest.Start()
	defer s.Close()
	client := s.Client()

	requests := client.RateLimiter("{model}:requests", rratelimiter.WithRate(rratelimiter.PerMinute(60)))
	tokens := client.RateLimiter("{model}:tokens", rratelimiter.WithRate(rratelimiter.PerMinute(10_000)))
	grants, results, err := client.TakeAll(ctx, []int64{1, 4000}, requests, tokens)
	if err != nil || grants == nil {
		fmt.Println(results, err) // refused: the results say when to retry
		return
	}
	fmt.Println(results[1].Remaining)
	used := int64(700) // known once the model has replied
	fmt.Println(grants[1].Return(ctx, grants[1].Permits()-used))
	fmt.Println(tokens.AvailablePermits(ctx))
	// Output:
	// 6000
	// 3300 <nil>
	// 9300 <nil>
}

// The job was cancelled: the permits of all its limits are given back.
func ExampleGrantAll_Return() {
	ctx := context.Background()
	s := limittest.Start()
	defer s.Close()
	client := s.Client()

	service := client.RateLimiter("{jobs}:service", rratelimiter.WithRate(rratelimiter.PerSecond(50)))
	user := client.RateLimiter("{jobs}:user", rratelimiter.WithRate(rratelimiter.PerHour(100)))
	grants, results, err := client.TakeAll(ctx, []int64{1, 2}, service, user)
	if err != nil || grants == nil {
		fmt.Println(results, err)
		return
	}
	fmt.Println(grants.Return(ctx))
	// Output: 3 <nil>
}

// The work may not happen: then its permits are given back.
func ExampleLimiter_Take() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	grant, result, err := limiter.Take(ctx, 4)
	if err != nil || !result.Allowed {
		fmt.Println(result, err)
		return
	}
	fmt.Println(limiter.AvailablePermits(ctx))
	fmt.Println(grant.Return(ctx, 4))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// 6 <nil>
	// 4 <nil>
	// 10 <nil>
}

// A worker takes what is free, and gives back what it does not need.
func ExampleLimiter_TakeUpTo() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("rows", rratelimiter.WithRate(rratelimiter.PerMinute(100)))
	grant, err := limiter.TakeUpTo(ctx, 250)
	fmt.Println(grant.Permits(), err)
	fmt.Println(grant.Return(ctx, 70))
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// 100 <nil>
	// 70 <nil>
	// 70 <nil>
}

// A Grant gives back no more permits than it holds, and none after an interval.
func ExampleGrant_Return() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	grant, _, err := limiter.Take(ctx, 5)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(grant.Return(ctx, 1))
	fmt.Println("left:", grant.Permits())
	server.Advance(time.Minute)
	fmt.Println(grant.Return(ctx, 4))
	// Output:
	// 1 <nil>
	// left: 4
	// 0 <nil>
}

// A mail waits until the limits of the provider and of its sender allow it. Until then it takes no
// permits.
func ExampleClient_AcquireAll() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	provider := client.RateLimiter("{mails}:provider", rratelimiter.WithRate(rratelimiter.PerMinute(50)))
	sender := client.RateLimiter("{mails}:sender", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	if err := client.AcquireAll(ctx, 1, provider, sender); err != nil {
		fmt.Println(err)
		return
	}
	acquired := make(chan error)
	go func() { acquired <- client.AcquireAll(ctx, 1, provider, sender) }()

	for len(client.Waiting()) == 0 {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(client.Waiting())
	fmt.Println(provider.AvailablePermits(ctx))
	server.Advance(time.Minute)
	fmt.Println(<-acquired)
	fmt.Println(provider.AvailablePermits(ctx))
	// Output:
	// map[{mails}:provider:1 {mails}:sender:1]
	// 49 <nil>
	// <nil>
	// 49 <nil>
}

// A call of a language model waits for one permit of a limit of requests, and for its tokens of
// another limit.
func ExampleClient_AcquireAllN() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	requests := client.RateLimiter("{model}:requests", rratelimiter.WithRate(rratelimiter.PerMinute(60)))
	tokens := client.RateLimiter("{model}:tokens", rratelimiter.WithRate(rratelimiter.PerMinute(10_000)))
	for _, size := range []int64{7000, 12_000} {
		fmt.Println(client.AcquireAllN(ctx, []int64{1, size}, requests, tokens))
	}
	fmt.Println(requests.AvailablePermits(ctx))
	fmt.Println(tokens.AvailablePermits(ctx))
	// Output:
	// <nil>
	// acquire all of "{model}:tokens": rratelimiter: the rate is less than the requested permits (12000)
	// 59 <nil>
	// 3000 <nil>
}

// If the permits of one limiter cannot be free in time, it returns at once, and takes nothing.
func ExampleClient_TryAcquireAllTimeout() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	provider := client.RateLimiter("{mails}:provider", rratelimiter.WithRate(rratelimiter.PerMinute(50)))
	sender := client.RateLimiter("{mails}:sender", rratelimiter.WithRate(rratelimiter.PerHour(1)))
	for range 2 {
		fmt.Println(client.TryAcquireAllTimeout(ctx, 1, time.Minute, provider, sender))
	}
	fmt.Println(provider.AvailablePermits(ctx))
	// Output:
	// true <nil>
	// false <nil>
	// 49 <nil>
}

// A request of a language model takes one permit of one limit, and its tokens of another.
func ExampleClient_AllowAllN() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	requests := client.RateLimiter("{model}:requests", rratelimiter.WithRate(rratelimiter.PerMinute(60)))
	tokens := client.RateLimiter("{model}:tokens", rratelimiter.WithRate(rratelimiter.PerMinute(10_000)))
	for range 2 {
		results, err := client.AllowAllN(ctx, []int64{1, 7000}, requests, tokens)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("request:",
			results[0].Allowed, results[0].Remaining, "tokens:", results[1].Allowed, results[1].Remaining)
	}
	// Output:
	// request: true 59 tokens: true 3000
	// request: false 59 tokens: false 3000
}

// The callers that wait in this process, by the name of the limiter.
func ExampleClient_Waiting() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	limiter := client.RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	fmt.Println(limiter.TryAcquire(ctx, 1))
	acquired := make(chan error)
	go func() { acquired <- limiter.Acquire(ctx, 1) }()
	server.AwaitWaiting("jobs", 1)
	fmt.Println(client.Waiting())
	server.Advance(time.Minute)
	fmt.Println(<-acquired, client.Waiting())
	// Output:
	// true <nil>
	// map[jobs:1]
	// <nil> map[]
}

// A process reports whether it can reach Redis. While it cannot, it decides by itself, because of
// WithFallback.
func ExampleLimiter_Health() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithFallback(1))
	fmt.Println(limiter.Health().Away)
	server.Fail("LOADING Redis is loading the dataset in memory")
	fmt.Println(limiter.TryAcquire(ctx, 1))
	health := limiter.Health()
	fmt.Println(health.Away, health.Decides)
	// Output:
	// false
	// true <nil>
	// true true
}

func ExampleParseRate() {
	for _, text := range []string{"100/s", "5/250ms", "10/1h30m per client keep-alive 2h", "0/s", "-1/s", "many"} {
		rate, err := rratelimiter.ParseRate(text)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(rate, rate.Permits, rate.Interval, rate.Type)
	}
	// Output:
	// 100/s 100 1s OVERALL
	// 5/250ms 5 250ms OVERALL
	// 10/1h30m per client keep-alive 2h 10 1h30m0s PER_CLIENT
	// 0/s 0 1s OVERALL
	// rratelimiter: invalid rate: -1 permits, not 0 to 4294967295
	// rratelimiter: invalid rate: "many" is not of the form permits/interval, such as 100/s
}

func ExamplePackRecord() {
	member, err := rratelimiter.PackRecord(rratelimiter.Redisson317, []byte("GoABCDEF"), 5)
	fmt.Printf("% x %v\n", member, err)
	// Output:
	// 08 47 6f 41 42 43 44 45 46 05 00 00 00 <nil>
}

// UnpackRecord reads records of every Redisson release.
func ExampleUnpackRecord() {
	for _, member := range []string{
		"\x10ABCDEFGHIJKLMNOP\x02\x00\x00\x00",                     // Redisson 3.21.0 and later
		"\x08ABCDEFGH\x02\x00\x00\x00",                             // 3.17.0 to 3.20.1
		"\x08\x00\x00\x00\x00\x00\x00\x00ABCDEFGH\x02\x00\x00\x00", // 3.16.4 to 3.16.8
		"ABCD\x02\x00\x00\x00",                                     // 3.13.3 to 3.16.3
	} {
		record, err := rratelimiter.UnpackRecord([]byte(member))
		fmt.Printf("%s %d %v\n", record.ID, record.Permits, err)
	}
	// Output:
	// ABCDEFGHIJKLMNOP 2 <nil>
	// ABCDEFGH 2 <nil>
	// ABCDEFGH 2 <nil>
	// ABCD 2 <nil>
}

// A limiter sets its own rate if there is none; an existing rate stays.
func ExampleWithRate() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	first := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(5)))
	second := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(9)))
	for _, limiter := range []*rratelimiter.Limiter{first, second} {
		if _, err := limiter.TryAcquire(ctx, 1); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(limiter.Config(ctx))
	}
	// Output:
	// 5/s <nil>
	// 5/s <nil>
}

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

// While Redis cannot be reached, each of two processes grants half of the rate.
func ExampleWithFallback() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)), rratelimiter.WithFallback(0.5))
	server.Fail("LOADING Redis is loading the dataset in memory")
	for range 2 {
		result, err := limiter.Allow(ctx, 4)
		fmt.Println(result.Allowed, result.Remaining, "of", result.Limit, err)
	}
	// Output:
	// true 1 of 5 <nil>
	// false 1 of 5 <nil>
}

// The process decides most requests without a call to Redis.
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

// 5 mails at 2 per interval take three intervals.
func ExampleWithInstalments() {
	server := limittest.Start()
	defer server.Close()

	limiter := server.Client().
		RateLimiter("mails", rratelimiter.WithRate(rratelimiter.Rate{Permits: 2, Interval: 10 * time.Millisecond}),
			rratelimiter.WithInstalments())
	go func() {
		for range 100 {
			time.Sleep(time.Millisecond)
			server.Advance(time.Millisecond)
		}
	}()
	fmt.Println(limiter.Acquire(context.Background(), 5))
	// Output: <nil>
}

// A refusal is remembered until the permits can be free.
func ExampleWithFailFast() {
	server := limittest.Start()
	defer server.Close()

	limiter := server.Client().
		RateLimiter("mails", rratelimiter.WithRate(rratelimiter.PerHour(1)), rratelimiter.WithFailFast())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 2 {
		err := limiter.Acquire(ctx, 1)
		var late *rratelimiter.NotInTimeError
		if errors.As(err, &late) {
			fmt.Println("free in", late.At.Sub(server.Now())) // known at once, not after a minute
		} else {
			fmt.Println("acquired", err)
		}
	}
	// Output:
	// acquired <nil>
	// free in 1h0m0s
}

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

// The format of Redisson 3.13.3 to 3.16.3 has 4 bytes for the id of a record, and 4 bytes for its
// permits.
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

// The clock of this host is 30 s behind, but grants have the time of the server.
func ExampleWithServerTime() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	behind := func() time.Time { return server.Now().Add(-30 * time.Second) }
	limiter := server.Client(rratelimiter.WithClock(behind)).RateLimiter("orders",
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

// Each process has the rate for itself. With a stable id, a restarted process finds the permits
// that it used before.
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
	limiter := server.Client(rratelimiter.WithClock(clock)).
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
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

func ExampleLimiter_State() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	for range 2 {
		if _, err := limiter.TryAcquire(ctx, 3); err != nil {
			fmt.Println(err)
			return
		}
		server.Advance(15 * time.Second)
	}
	state, err := limiter.State(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("rate", state.Rate)
	fmt.Println("permits free", state.Available, "in use", state.Used, "in records", state.Records)
	fmt.Println("oldest", server.Now().Sub(state.Oldest), "ago, newest", server.Now().Sub(state.Newest), "ago")
	fmt.Println("consistent", state.Consistent)
	// Output:
	// rate 10/m
	// permits free 4 in use 6 in records 2
	// oldest 30s ago, newest 15s ago
	// consistent true
}

// Only the first process sets the rate.
func ExampleLimiter_TrySetRate() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders")
	fmt.Println(limiter.TrySetRate(ctx, rratelimiter.PerSecond(5)))
	fmt.Println(limiter.TrySetRate(ctx, rratelimiter.PerSecond(9)))
	fmt.Println(limiter.Config(ctx))
	// Output:
	// true <nil>
	// false <nil>
	// 5/s <nil>
}

// UpdateRate changes a rate, but does not make a limiter.
func ExampleLimiter_UpdateRate() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders")
	fmt.Println(limiter.UpdateRate(ctx, rratelimiter.PerSecond(9)))
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	fmt.Println(limiter.UpdateRate(ctx, rratelimiter.PerSecond(9)))
	fmt.Println(limiter.Config(ctx))
	// Output:
	// false <nil>
	// <nil>
	// true <nil>
	// 9/s <nil>
}

func ExampleLimiter_Config() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders")
	_, err := limiter.Config(ctx)
	fmt.Println(errors.Is(err, rratelimiter.ErrNotInitialized))
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	rate, err := limiter.Config(ctx)
	fmt.Println(rate.Permits, rate.Interval, rate.Type, err)
	// Output:
	// true
	// <nil>
	// 5 1s OVERALL <nil>
}

func ExampleLimiter_AvailablePermits() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	fmt.Println(limiter.TryAcquire(ctx, 4))
	fmt.Println(limiter.AvailablePermits(ctx))
	server.Advance(time.Minute)
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// true <nil>
	// 6 <nil>
	// 10 <nil>
}

// A dashboard looks at many limiters.
func ExampleLimiter_Glance() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	for i, name := range []string{"orders", "mails"} {
		limiter := client.RateLimiter(name, rratelimiter.WithRate(rratelimiter.PerMinute(10)))
		if _, err := limiter.TryAcquire(ctx, int64(i+1)); err != nil {
			fmt.Println(err)
			return
		}
		state, exact, err := limiter.Glance(ctx)
		fmt.Println(name, state.Used, "of", state.Rate, exact, err)
	}
	// Output:
	// orders 1 of 10/m true <nil>
	// mails 2 of 10/m true <nil>
}

// The clients that have used a limiter of the type PER_CLIENT.
func ExampleLimiter_Clients() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	each := rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute}
	var limiter *rratelimiter.Limiter
	for _, id := range []string{"worker-1", "worker-2"} {
		limiter = server.Client(rratelimiter.WithClientID(id)).RateLimiter("orders", rratelimiter.WithRate(each))
		fmt.Println(limiter.TryAcquire(ctx, 1))
	}
	fmt.Println(limiter.Clients(ctx))
	// Output:
	// true <nil>
	// true <nil>
	// [worker-1 worker-2] <nil>
}

func ExampleLimiter_Exists() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders")
	fmt.Println(limiter.Exists(ctx))
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	fmt.Println(limiter.Exists(ctx))
	// Output:
	// false <nil>
	// <nil>
	// true <nil>
}

func ExampleLimiter_Delete() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders")
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	fmt.Println(limiter.Delete(ctx))
	fmt.Println(limiter.Delete(ctx))
	// Output:
	// <nil>
	// true <nil>
	// false <nil>
}

// The grants move with the rate. The old Limiter then has no rate.
func ExampleLimiter_Rename() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	orders := client.RateLimiter("orders")
	fmt.Println(orders.SetRate(ctx, rratelimiter.PerMinute(5)))
	fmt.Println(orders.TryAcquire(ctx, 2))
	fmt.Println(orders.Rename(ctx, "purchases"))
	fmt.Println(orders.Exists(ctx))
	fmt.Println(client.RateLimiter("purchases").AvailablePermits(ctx))
	// Output:
	// <nil>
	// true <nil>
	// <nil>
	// false <nil>
	// 3 <nil>
}

// RenameNX does not replace another limiter.
func ExampleLimiter_RenameNX() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	client := server.Client()
	orders := client.RateLimiter("orders")
	fmt.Println(orders.SetRate(ctx, rratelimiter.PerMinute(5)))
	fmt.Println(client.RateLimiter("mails").SetRate(ctx, rratelimiter.PerMinute(9)))
	fmt.Println(orders.RenameNX(ctx, "mails"))
	fmt.Println(orders.RenameNX(ctx, "purchases"))
	// Output:
	// <nil>
	// <nil>
	// false <nil>
	// true <nil>
}

// The limiter of a visitor is removed after an hour. With IfGreater, Expire does not shorten that
// time.
func ExampleLimiter_Expire() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("visitor:7")
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	fmt.Println(limiter.Expire(ctx, time.Hour))
	fmt.Println(limiter.Expire(ctx, time.Minute, rratelimiter.IfGreater))
	server.Advance(time.Hour)
	fmt.Println(limiter.Exists(ctx))
	// Output:
	// <nil>
	// true <nil>
	// false <nil>
	// false <nil>
}

func ExampleLimiter_ExpireAt() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("campaign")
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	end := server.Now().Add(24 * time.Hour)
	fmt.Println(limiter.ExpireAt(ctx, end))
	fmt.Println(limiter.TTL(ctx))
	// Output:
	// <nil>
	// true <nil>
	// 24h0m0s <nil>
}

func ExampleLimiter_ClearExpire() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("campaign")
	fmt.Println(limiter.SetRate(ctx, rratelimiter.PerSecond(5)))
	fmt.Println(limiter.Expire(ctx, time.Hour))
	fmt.Println(limiter.ClearExpire(ctx))
	fmt.Println(limiter.TTL(ctx))
	// Output:
	// <nil>
	// true <nil>
	// true <nil>
	// 0s <nil>
}

// With a keep-alive, each grant renews the TTL. A limiter that nobody uses is removed.
func ExampleLimiter_TTL() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	rate := rratelimiter.Rate{Permits: 5, Interval: time.Minute, KeepAlive: time.Hour}
	limiter := server.Client().RateLimiter("visitor:7", rratelimiter.WithRate(rate))
	fmt.Println(limiter.TryAcquire(ctx, 1))
	server.Advance(20 * time.Minute)
	fmt.Println(limiter.TTL(ctx))
	fmt.Println(limiter.TryAcquire(ctx, 1))
	fmt.Println(limiter.TTL(ctx))
	// Output:
	// true <nil>
	// 40m0s <nil>
	// true <nil>
	// 1h0m0s <nil>
}

// Another program has changed the stored number of free permits.
func ExampleLimiter_Repair() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	fmt.Println(limiter.TryAcquire(ctx, 4))
	server.Redis().Set(ctx, "{orders}:value", 1, 0)
	for _, opts := range [][]rratelimiter.RepairOption{{rratelimiter.DryRun()}, nil} {
		repaired, err := limiter.Repair(ctx, opts...)
		fmt.Println(repaired.Changed, "from", repaired.Was, "to", repaired.Free, "free permits", err)
	}
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// true <nil>
	// true from 1 to 6 free permits <nil>
	// true from 1 to 6 free permits <nil>
	// 6 <nil>
}

// An operator makes all permits free at once.
func ExampleLimiter_Reset() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	limiter := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerHour(10)))
	fmt.Println(limiter.TryAcquire(ctx, 10))
	reset, err := limiter.Reset(ctx)
	fmt.Println("forgot", reset.Permits, "permits in", reset.Records, "record", err)
	fmt.Println(limiter.AvailablePermits(ctx))
	// Output:
	// true <nil>
	// forgot 10 permits in 1 record <nil>
	// 10 <nil>
}

// A watcher forwards each call. It is called before the callers get their results.
type watcher chan rratelimiter.CallInfo

func (w watcher) Call(info rratelimiter.CallInfo) { w <- info }

func ExampleObserver() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	watcher := make(watcher, 10)
	limiter := server.Client(rratelimiter.WithObserver(watcher)).
		RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(5)))
	for range 2 {
		if _, err := limiter.TryAcquire(ctx, 3); err != nil {
			fmt.Println(err)
			return
		}
		info := <-watcher
		fmt.Println(info.Limiter, "granted", info.Granted, "denied", info.Denied, "permits", info.Permits)
	}
	// Output:
	// orders granted 1 denied 0 permits 3
	// orders granted 0 denied 1 permits 0
}

// slow reports requests that were blocked for long. It is an Observer that also implements
// RequestObserver.
type slow struct{ than time.Duration }

func (slow) Call(rratelimiter.CallInfo) {}

func (s slow) Request(_ context.Context, info rratelimiter.RequestInfo) {
	if info.Latency >= s.than {
		fmt.Println(info.Method, "of", info.Permits, "from", info.Limiter, "took long; granted:", info.Granted)
	}
}

func ExampleObservers() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	calls := make(watcher, 10)
	client := server.Client(rratelimiter.WithObserver(rratelimiter.Observers(calls, slow{than: 0})))
	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(5)))
	if err := limiter.Acquire(ctx, 3); err != nil {
		fmt.Println(err)
		return
	}
	info := <-calls
	fmt.Println("a call of", info.Callers)
	// Output:
	// Acquire of 3 from orders took long; granted: 3
	// a call of 1
}
