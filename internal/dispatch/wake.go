package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// wake.go lets waiting callers ask again when this process knows a reason: a limiter has changed,
// its node can be reached again, or the Redis client was closed.

// WakeAll lets all waiting callers of all limiters ask again, and clears the cached refusals.
func (c *Client) WakeAll() { c.wake("") }

// wake lets all waiting callers of a limiter ask again and clears its cached refusal, because the
// limiter has just changed. The name is that of the configuration key; "" means all limiters.
func (c *Client) wake(name string) {
	c.denyCache.Forget(name)
	c.wakeChosen(func(l *Limiter) bool { return name == "" || l.Key() == name })
}

// changed is called when a call of this process that changes the limiter has ended with err, also
// if its caller is gone. It clears the cached refusal of l. If the call succeeded, it lets the
// waiting callers ask again.
func (l *Limiter) changed(err error) {
	if err == nil {
		l.client.wake(l.Key())
	} else {
		l.client.denyCache.Forget(l.Key())
	}
}

// wakeChosen lets all waiting callers of the chosen limiters ask again at once, without a head
// start for other clients.
func (c *Client) wakeChosen(chosen func(*Limiter) bool) {
	if c.waiting.Load() == 0 {
		return // a caller that waits from now on asks first
	}
	for _, q := range c.queues(chosen) {
		q.event((*schedule.Queue).Changed)
	}
}

// A pool is a Redis client that shows how many connections it has: a closed one has none.
type pool interface{ PoolStats() *redis.PoolStats }

// watch checks every 100 ms, while callers wait, whether the Redis client was closed, and wakes
// them then. Otherwise they would notice it only when their timers fire. A client without
// connections may also have lost them all, so a PING decides.
func (c *Client) watch() {
	const often = 100 * time.Millisecond
	connections, known := c.Topology().Redis().(pool)
	if !known || !c.watching.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(often, func() {
		c.watching.Store(false)
		if c.waiting.Load() == 0 {
			return
		}
		if connections.PoolStats().TotalConns == 0 {
			ctx, cancel := context.WithTimeout(context.Background(), c.exchange.Timeout())
			defer cancel()
			if errors.Is(c.Topology().Redis().Process(ctx, redis.NewStatusCmd(ctx, "ping")), redis.ErrClosed) {
				c.close()
				c.wake("")
			}
		}
		c.watch()
	})
}

// Pause blocks for d. It returns early with the error of ctx if that ends, or with redis.ErrClosed
// if the Redis client is closed and shows that.
func (c *Client) Pause(ctx context.Context, d time.Duration) error {
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	c.watch()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.closed:
		return redis.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
