package snapshot_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
	"github.com/rratelimiter/rratelimiter/snapshot"
)

// A limiter moves to another server with its live grants.
func Example() {
	old, fresh := limittest.Start(), limittest.Start() // stand for two Redis servers
	defer old.Close()
	defer fresh.Close()
	ctx := context.Background()
	orders := old.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	if _, err := orders.TryAcquire(ctx, 3); err != nil {
		log.Fatal(err)
	}

	taken, err := snapshot.Take(ctx, old.Redis(), "orders")
	if err != nil {
		log.Fatal(err)
	}
	data, err := taken.Encode()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(data) > 0)

	sent, err := snapshot.Decode(data)
	if err != nil {
		log.Fatal(err)
	}
	if err := sent.Restore(ctx, fresh.Redis()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(fresh.Client().RateLimiter("orders").AvailablePermits(ctx))
	// Output:
	// true
	// 7 <nil>
}

// The state of a limiter, with a note on why it was taken.
func ExampleTake() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()
	orders := server.Client().RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10)))
	fmt.Println(orders.TryAcquire(ctx, 3))

	taken, err := snapshot.Take(ctx, server.Redis(), "orders", snapshot.WithNote("before the deploy"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(taken.Name, taken.Note, taken.OneStep)

	_, err = snapshot.Take(ctx, server.Redis(), "mails")
	fmt.Println(errors.Is(err, snapshot.ErrNotFound))
	// Output:
	// true <nil>
	// orders before the deploy true
	// true
}

// A copy of one client's state. The keys of other clients are not read.
func ExampleWithClients() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()
	each := rratelimiter.Rate{Type: rratelimiter.PerClient, Permits: 5, Interval: time.Minute}
	for _, id := range []string{"worker-1", "worker-2"} {
		limiter := server.Client(rratelimiter.WithClientID(id)).RateLimiter("orders", rratelimiter.WithRate(each))
		fmt.Println(limiter.TryAcquire(ctx, 1))
	}

	taken, err := snapshot.Take(ctx, server.Redis(), "orders", snapshot.WithClients("worker-1"))
	if err != nil {
		log.Fatal(err)
	}
	for _, client := range taken.Clients {
		fmt.Println(client.ID)
	}
	// Output:
	// true <nil>
	// true <nil>
	// worker-1
}

// Bytes that are no snapshot are refused.
func ExampleDecode() {
	_, err := snapshot.Decode([]byte("orders"))
	fmt.Println(errors.Is(err, snapshot.ErrInvalid))
	// Output: true
}

// A file with the states of several limiters.
func ExampleDecodeAll() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()

	var file []byte
	for _, name := range []string{"mails", "orders"} {
		limiter := server.Client().RateLimiter(name)
		if err := limiter.SetRate(ctx, rratelimiter.PerMinute(10)); err != nil {
			log.Fatal(err)
		}
		taken, err := snapshot.Take(ctx, server.Redis(), name)
		if err != nil {
			log.Fatal(err)
		}
		data, err := taken.Encode()
		if err != nil {
			log.Fatal(err)
		}
		file = append(file, data...)
	}

	all, err := snapshot.DecodeAll(file)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range all {
		fmt.Println(s.Name)
	}
	// Output:
	// mails
	// orders
}

// A copy under another name, with its grants as they would be if the snapshot had been taken now.
func ExampleSnapshot_Restore() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()
	client := server.Client()
	fmt.Println(client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10))).TryAcquire(ctx, 3))
	taken, err := snapshot.Take(ctx, server.Redis(), "orders")
	if err != nil {
		log.Fatal(err)
	}

	server.Advance(time.Hour)
	fmt.Println(taken.Restore(ctx, server.Redis(), snapshot.As("copy"), snapshot.At(server.Now())))
	fmt.Println(client.RateLimiter("copy").AvailablePermits(ctx))
	// Without As the limiter has the name that it had, and needs Replace.
	fmt.Println(errors.Is(taken.Restore(ctx, server.Redis()), snapshot.ErrExists))
	// Without At its grants have expired.
	fmt.Println(taken.Restore(ctx, server.Redis(), snapshot.Replace()))
	fmt.Println(client.RateLimiter("orders").AvailablePermits(ctx))
	// Output:
	// true <nil>
	// <nil>
	// 7 <nil>
	// true
	// <nil>
	// 10 <nil>
}

// The permits of the copy return an hour later than those of the original.
func ExampleShift() {
	server := limittest.Start()
	defer server.Close()
	ctx := context.Background()
	client := server.Client()
	fmt.Println(client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerMinute(10))).TryAcquire(ctx, 3))
	taken, err := snapshot.Take(ctx, server.Redis(), "orders")
	if err != nil {
		log.Fatal(err)
	}

	fmt.Println(taken.Restore(ctx, server.Redis(), snapshot.As("copy"), snapshot.Shift(time.Hour)))
	server.Advance(time.Hour)
	fmt.Println(client.RateLimiter("orders").AvailablePermits(ctx))
	fmt.Println(client.RateLimiter("copy").AvailablePermits(ctx))
	// Output:
	// true <nil>
	// <nil>
	// 10 <nil>
	// 7 <nil>
}
