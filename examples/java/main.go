// Command java is the Go side of a limit that Java shares. src/main/java/example/Orders.java is the
// Java side. The arguments are the address of Redis and the number of seconds to run.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

func main() {
	address, length := "redis://localhost:6379", 2*time.Minute
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if len(os.Args) > 2 {
		seconds, err := time.ParseDuration(os.Args[2] + "s")
		if err != nil {
			log.Fatal(err)
		}
		length = seconds
	}
	if err := run(context.Background(), address, length); err != nil {
		log.Fatal(err)
	}
}

// run ships orders, and mails invoices while there are permits.
func run(ctx context.Context, address string, length time.Duration) error {
	options, err := redis.ParseURL(address)
	if err != nil {
		return err
	}
	client := rratelimiter.NewClient(redis.NewClient(options))
	// 10 permits in any second, for all programs together. If the limiter has a rate, it stays.
	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(10)))

	for end := time.Now().Add(length); time.Now().Before(end); {
		if err := limiter.Acquire(ctx, 1); err != nil { // waits until a permit is free
			return err // Redis failed: docs/guide/pace-workers.md has a loop that goes on
		}
		say("order shipped")
		time.Sleep(50 * time.Millisecond)                                  // other work
		ok, err := limiter.TryAcquireTimeout(ctx, 1, 100*time.Millisecond) // waits for at most 100 ms
		switch {
		case err != nil:
			return err
		case ok:
			say("invoice mailed")
		default:
			say("no permit in 100 ms: the invoice is mailed later")
		}
	}
	return nil
}

func say(what string) { fmt.Println(time.Now().Format("15:04:05.000"), "  Go:", what) }
