// Package workers runs jobs at the rate of a limiter that all processes share: tasks of an asynq
// queue, jobs of river, or jobs from a channel.
package workers

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
)

// errNoPermit puts a task back into its queue: there was no permit in time, or Redis failed.
var errNoPermit = errors.New("no permit in time")

// stays reports whether an error of a limiter is permanent, so that a retry is useless.
func stays(err error) bool {
	return slices.ContainsFunc([]error{
		rratelimiter.ErrNotInitialized, rratelimiter.ErrExceedsRate, rratelimiter.ErrInvalidOption,
		rratelimiter.ErrCrossSlotName,
		redis.ErrClosed,
	}, func(known error) bool { return errors.Is(err, known) })
}

// Paced returns middleware in which each task waits for a permit before it is processed, at most
// for patience. A task without a permit is put back into the queue, so that the worker can process
// tasks of other limiters. The server needs the configuration of Config.
func Paced(limiter *rratelimiter.Limiter, patience time.Duration) asynq.MiddlewareFunc {
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			ok, err := limiter.TryAcquireTimeout(ctx, 1, patience)
			if err != nil && stays(err) {
				return err
			}
			if !ok {
				return errors.Join(errNoPermit, err)
			}
			return next.ProcessTask(ctx, task)
		})
	}
}

// Config returns c with a change for tasks without a permit: they are retried after a pause, and do
// not count as failed. Other errors are handled as in c.
func Config(c asynq.Config, pause time.Duration) asynq.Config {
	failure, delay := c.IsFailure, c.RetryDelayFunc
	c.IsFailure = func(err error) bool {
		return !errors.Is(err, errNoPermit) && (failure == nil || failure(err))
	}
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	c.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if errors.Is(err, errNoPermit) {
			return pause
		}
		return delay(n, err, task)
	}
	return c
}

// Run starts a number of workers, which process the jobs of a channel, each with a permit, until
// the channel is closed or ctx ends. If Redis fails, a worker retries. A permanent error, such as a
// limiter without a rate, stops all workers. Run returns the jobs that were received but not
// processed, and the first error of a worker that held one. The error is nil if ctx ends while no
// worker holds a job. The sender must also stop when Run returns, or it blocks on the channel.
func Run[J any](
	ctx context.Context, limiter *rratelimiter.Limiter, workers int, jobs <-chan J, do func(context.Context, J),
) (left []J, err error) {
	pool, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-pool.Done():
					return
				case job, open := <-jobs:
					if !open {
						return
					}
					if failed := permit(pool, limiter); failed != nil {
						mu.Lock()
						left = append(left, job)
						if err == nil { // keep the first error, which stopped the others
							err = failed
						}
						mu.Unlock()
						stop()
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

// Bounds of the pause before a retry. The pause doubles with each retry.
const (
	shortestPause = 100 * time.Millisecond
	longestPause  = 10 * time.Second
)

// permit waits for a permit and retries while Redis fails. It returns permanent errors, and any
// error once ctx has ended.
func permit(ctx context.Context, limiter *rratelimiter.Limiter) error {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		err := limiter.Acquire(ctx, 1)
		if err == nil || ctx.Err() != nil || stays(err) {
			return err
		}
		slog.WarnContext(ctx, "no permit, trying again", "pause", pause, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
