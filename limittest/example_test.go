package limittest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/limittest"
)

// Outside tests, Start starts a server. Blocked callers are served as its clock moves.
func Example() {
	server := limittest.Start()
	defer server.Close()
	limiter := server.Client().RateLimiter("jobs", rratelimiter.WithRate(rratelimiter.PerMinute(1)))
	ctx := context.Background()
	fmt.Println(limiter.Acquire(ctx, 1))

	served := make(chan error)
	go func() { served <- limiter.Acquire(ctx, 1) }()
	server.AwaitWaiting("jobs", 1)
	server.Advance(time.Minute)
	fmt.Println(<-served, server.Now().Sub(limittest.Epoch))
	// Output:
	// <nil>
	// <nil> 1m0s
}
