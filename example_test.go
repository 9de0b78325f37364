package rratelimiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// The examples run on an embedded server whose clock stands still until they move it. A program uses a redis client
// instead; the rest is the same:
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
	// false try to acquire from "mails": rratelimiter: the rate is less than the requested permits: 4
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

// A call of a language model takes a request and as many tokens as it can cost, and gives back what it did not use.
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

// slow reports requests that were blocked for long. It is an Observer that also implements RequestObserver.
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
