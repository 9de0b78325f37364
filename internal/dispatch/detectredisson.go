package dispatch

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// checkForRedisson looks for Redisson on the server while callers wait: at most once a second for
// each queue while it was not found, because it may start at any time and gets no permits until it
// is noticed, and every 10 s after that. When it is found, the queue sends again, so that the
// process leaves permits for it. The queue is locked.
func (q *queue) checkForRedisson() {
	again := time.Second
	if q.schedule.Redisson() {
		again = 10 * time.Second
	}
	now := time.Now()
	if q.client.alone || now.Before(q.redissonCheckedAt.Add(again)) {
		return
	}
	q.redissonCheckedAt = now
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), q.client.Exchange.Timeout())
		defer cancel()
		here := q.limiters[0].RedissonHere(ctx)
		q.event(func(s *schedule.Queue) { s.SeeRedisson(here) })
	}()
}
