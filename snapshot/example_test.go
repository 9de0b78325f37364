package snapshot_test

import (
	"context"
	"fmt"
	"log"

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
