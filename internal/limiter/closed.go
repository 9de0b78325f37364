package limiter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// closed.go notices that the Redis client was closed, while callers wait.

// closed tells whether the Redis client was closed.
type closed struct {
	watching atomic.Bool // a check is scheduled
	once     sync.Once
	found    chan struct{} // it is closed once a check has found that
}

// A pool is a Redis client that shows how many connections it has: a closed one has none.
type pool interface{ PoolStats() *redis.PoolStats }

// WatchClosed checks every 100 ms, while callers wait, whether the Redis client was closed, and
// wakes them then. Otherwise they would notice it only when their timers fire. A client without
// connections may also have lost them all, so a PING decides.
func (c *Client) WatchClosed() {
	const often = 100 * time.Millisecond
	connections, known := c.Topology().Redis().(pool)
	if !known || !c.closed.watching.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(often, func() {
		c.closed.watching.Store(false)
		if c.Blocked.Load() == 0 {
			return
		}
		if connections.PoolStats().TotalConns == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), c.Exchange.Timeout())
			defer cancel()
			if errors.Is(c.Topology().Redis().Process(ctx, redis.NewStatusCmd(ctx, "ping")), redis.ErrClosed) {
				c.closed.once.Do(func() { close(c.closed.found) })
				c.WakeAll()
			}
		}
		c.WatchClosed()
	})
}

// Pause blocks for d. It returns early with the error of ctx if that ends, or with redis.ErrClosed
// if the Redis client is closed and shows that.
func (c *Client) Pause(ctx context.Context, d time.Duration) error {
	c.Blocked.Add(1)
	defer c.Blocked.Add(-1)
	c.WatchClosed()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.closed.found:
		return redis.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
