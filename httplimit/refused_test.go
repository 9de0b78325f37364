package httplimit

import (
	"context"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// A server that refuses connections is away long before the Redis client gives up dialling: only
// requests that are in flight by then wait for the bound.
func TestServerThatRefusesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(
			&redis.Options{Addr: "192.0.2.1:6379", Dialer: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}},
		)
		defer rdb.Close()
		client := rratelimiter.NewClient(rdb)
		p := &Policy{Logger: quiet}
		claim := Claim{Name: "a", Limiter: client.RateLimiter("a", rratelimiter.WithRate(rratelimiter.PerSecond(10)))}
		for i := range 50 {
			d := p.Decide(t.Context(), claim)
			if bound := 100 * time.Millisecond; d.Outcome != FailedOpen || i == 0 && d.Took != bound ||
				i > 0 && d.Took != 0 {
				t.Errorf("request %d: %v after %v", i, d.Outcome, d.Took)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute) // calls and probes end
	})
}
