// Package workers runs jobs at a limiter's pace, which all processes share: tasks of an asynq queue, or whatever comes
// out of a channel.
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

// errNoPermit puts a task back into its queue: its turn has not come, or Redis could not be asked.
var errNoPermit = errors.New("no permit in time")

// stays tells whether an error of a limiter would come again, however often it is asked.
func stays(err error) bool {
	return slices.ContainsFunc([]error{
		rratelimiter.ErrNotInitialized, rratelimiter.ErrExceedsRate, rratelimiter.ErrInvalidOption, rratelimiter.ErrCrossSlotName,
		redis.ErrClosed,
	}, func(known error) bool { return errors.Is(err, known) })
}

// Paced lets each task wait for a permit before it is processed, for some time at most. A task without one is put back
// into the queue, so that the worker can serve tasks that other limiters pace. Config must know of it.
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

// Config makes a task without a permit come back after a pause, without counting it as one that failed. What c says of other
// errors stays.
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

// Run lets some workers do the jobs of a channel, each once it has a permit, until the channel is closed or ctx ends. Where
// Redis fails they ask again; an error that stays, such as a limiter without a rate, ends them all. The jobs that were taken
// from the channel and not done come back, with the error that kept them from being done: there is none where ctx ends and
// nobody holds a job. Who fills the channel must look out for Run's end, too.
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
						if err == nil { // else it is why the others were stopped
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

// Pauses before a limiter is asked again. They double.
const (
	shortestPause = 100 * time.Millisecond
	longestPause  = 10 * time.Second
)

// permit waits for a permit, however long Redis stumbles.
func permit(ctx context.Context, limiter *rratelimiter.Limiter) error {
	for pause := shortestPause; ; pause = min(2*pause, longestPause) {
		err := limiter.Acquire(ctx, 1)
		if err == nil || ctx.Err() != nil || stays(err) {
			return err
		}
		slog.WarnContext(ctx, "no permit, asking again", "pause", pause, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
