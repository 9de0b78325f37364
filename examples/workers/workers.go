// Package workers runs jobs at a limiter's pace, which all processes share: tasks of an asynq queue, or whatever comes
// out of a channel.
package workers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/rratelimiter/rratelimiter"
)

// errNoPermit puts a task back into its queue: its turn has not come.
var errNoPermit = errors.New("no permit in time")

// Paced lets each task wait for a permit before it is processed, for some time at most. A task without one is put back
// into the queue, so that the worker can serve tasks that other limiters pace. Config must know of it.
func Paced(limiter *rratelimiter.Limiter, patience time.Duration) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			ok, err := limiter.TryAcquireTimeout(ctx, 1, patience)
			if err != nil {
				return err
			}
			if !ok {
				return errNoPermit
			}
			return next.ProcessTask(ctx, task)
		})
	}
}

// Config makes a task without a permit come back after a pause, without counting it as one that failed.
func Config(c asynq.Config, pause time.Duration) asynq.Config {
	c.IsFailure = func(err error) bool { return !errors.Is(err, errNoPermit) }
	c.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if errors.Is(err, errNoPermit) {
			return pause
		}
		return asynq.DefaultRetryDelayFunc(n, err, task)
	}
	return c
}

// Run lets some workers do the jobs of a channel, each once it has a permit, until the channel is closed or ctx ends. The
// jobs that were taken from the channel and not done come back, with the error that kept them from being done.
func Run[J any](
	ctx context.Context, limiter *rratelimiter.Limiter, workers int, jobs <-chan J, do func(context.Context, J),
) (left []J, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case job, open := <-jobs:
					if !open {
						return
					}
					if failed := limiter.Acquire(ctx, 1); failed != nil {
						mu.Lock()
						left, err = append(left, job), errors.Join(err, failed)
						mu.Unlock()
						return
					}
					do(ctx, job)
				}
			}
		})
	}
	wg.Wait()
	return left, err
}
