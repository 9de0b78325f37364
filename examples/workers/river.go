package workers

import (
	"context"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/rratelimiter/rratelimiter"
)

// Snoozed returns middleware of river in which each job needs a permit. A job without one is put
// back until permits are free, but at least for a second; that counts as no attempt. If Redis
// fails, river tries the job again, as after an error of its worker.
func Snoozed(limiter *rratelimiter.Limiter) rivertype.WorkerMiddleware {
	return river.WorkerMiddlewareFunc(
		func(ctx context.Context, _ *rivertype.JobRow, work func(context.Context) error) error {
			result, err := limiter.Allow(ctx, 1)
			switch {
			case err != nil:
				return err
			case !result.Allowed:
				return river.JobSnooze(max(result.RetryAfter, time.Second))
			}
			return work(ctx)
		},
	)
}
