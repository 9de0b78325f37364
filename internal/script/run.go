package script

import (
	"context"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
)

// Run runs a script on the server that holds its first key. It retries while Redis surely did not
// execute the script, or if that is idempotent. The reply must consist of integers.
func (t *Topology) Run(
	ctx context.Context, a *Attempts, s *Script, idempotent bool, keys []string, args ...any,
) ([]int64, error) {
	var reply []int64
	err := t.Retry(ctx, a, idempotent, func() (err error) {
		reply, err = t.Try(ctx, a, s, keys, args...)
		return err
	})
	return reply, err
}

// RunMixed is Run for a reply of any kind.
func (t *Topology) RunMixed(
	ctx context.Context, a *Attempts, s *Script, idempotent bool, keys []string, args ...any,
) ([]any, error) {
	var cmd *redis.SliceCmd
	err := t.Retry(ctx, a, idempotent, func() error {
		return t.attempt(ctx, a, s, keys, args, func(all []any) redis.Cmder {
			cmd = redis.NewSliceCmd(ctx, all...)
			return cmd
		})
	})
	if err != nil {
		return nil, err
	}
	return replied(cmd.Val(), nil)
}

// Try makes one attempt of Run.
func (t *Topology) Try(ctx context.Context, a *Attempts, s *Script, keys []string, args ...any) ([]int64, error) {
	var cmd Command
	err := t.attempt(ctx, a, s, keys, args, func(all []any) redis.Cmder {
		cmd = NewCommand(ctx, all)
		return &cmd
	})
	if err != nil {
		return nil, err
	}
	return cmd.Reply()
}

// TryAny is Try for a reply of any kind.
func (t *Topology) TryAny(ctx context.Context, a *Attempts, s *Script, keys []string, args ...any) (*redis.Cmd, error) {
	var cmd AnyCommand
	err := t.attempt(ctx, a, s, keys, args, func(all []any) redis.Cmder {
		cmd = NewAnyCommand(ctx, all)
		return cmd
	})
	return cmd.Cmd, err
}

// attempt makes one attempt to run a script by a kind of command. That takes more commands if the
// server lacks the script.
func (t *Topology) attempt(
	ctx context.Context, a *Attempts, s *Script, keys []string, args []any, command func(all []any) redis.Cmder,
) (err error) {
	a.Begin(len(keys))
	Supply(func() error { return t.Load(ctx, s, keys[0]) }, func(text bool) bool {
		all := append(make([]any, 0, 3+len(keys)+len(args)), s.Head(text)...)
		all = append(all, a)
		for _, key := range keys {
			all = append(all, key)
		}
		err = t.Process(ctx, command(append(all, args...)))
		a.End(err)
		return !text && Lacking(err)
	})
	return err
}

// Load loads a script into the server that holds a key. Where the type of the Redis client does not
// show the servers, it may be another one.
func (t *Topology) Load(ctx context.Context, s *Script, key string) error {
	server, err := t.Server(ctx, key)
	if err != nil {
		return err
	}
	cmd := NewAnyCommand(ctx, []any{"script", "load", s.Text})
	cmd.SetStepCount(1)
	return server.Process(ctx, cmd)
}

// Process runs one command. SetStepCount tells that its keys are adjacent: without it, a cluster
// client first asks any node for the table of commands, and blocks if that node hangs.
func (t *Topology) Process(ctx context.Context, cmd redis.Cmder) error {
	cmd.SetStepCount(1)
	err := ServerError(t.rdb.Process(ctx, cmd))
	if t.Redirected(err) { // the Redis client has followed as many redirections as it may
		err = wrapped{err, disagreed + ": " + err.Error()}
	}
	return err
}

// Retry makes attempts of a call until one is final. If one may have been executed, it goes on only
// if the call is idempotent.
func (t *Topology) Retry(ctx context.Context, a *Attempts, idempotent bool, attempt func() error) error {
	var pauses Backoff
	for {
		err := attempt()
		if !a.Again(err, idempotent) {
			return err
		}
		t.Reload(ctx, err)
		if !pauses.Rest(ctx) {
			return err
		}
	}
}

// reserve is how long before its end a call stops waiting for a connection, so that it can return
// why there is none; at most a twentieth of its time.
const reserve = 20 * time.Millisecond

// Await makes a call in a goroutine. It returns the reply, or an error when ctx ends, when rest is
// over, or when away receives. The timeout is the time that the call had in all. The Redis client
// cannot be made to stop waiting for a reply, so a late call goes on in its goroutine until its
// connection gives up.
func Await[T any](
	ctx context.Context, timeout, rest time.Duration, away <-chan struct{}, call func(context.Context) (T, error),
) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	if rest <= 0 {
		return none, Failure(ctx, timeout, Late(timeout))
	}
	began := time.Now()
	done := make(chan answer, 1)
	bounded, cancel := context.WithTimeout(ctx, rest-min(rest/20, reserve))
	go func() {
		defer cancel()
		value, err := call(bounded)
		done <- answer{value, err}
	}()
	var err error
	nearlyOver, over := bounded.Done(), (<-chan time.Time)(nil) // most calls need no second timer
	for err == nil {
		select {
		case a := <-done:
			return a.value, Failure(ctx, timeout, a.err)
		case <-ctx.Done():
			err = ctx.Err()
		case <-nearlyOver:
			nearlyOver, over = nil, time.After(rest-time.Since(began))
		case <-over:
			Grace(func() bool { return len(done) > 0 })
			err = Late(timeout)
		case <-away:
			err = Late(timeout - rest + time.Since(began).Round(time.Millisecond))
		}
	}
	select {
	case a := <-done: // at the same time
		return a.value, Failure(ctx, timeout, a.err)
	default:
		return none, Failure(ctx, timeout, err)
	}
}

// Grace lets the goroutine that reads a reply run before its call is declared late, and reports
// whether the call is over by then. If many goroutines are ready to run, a timer can fire before
// that goroutine gets a processor. Each yield lets all of them run once. If a yield takes less than
// shortYield, no goroutine was starved, and Grace ends.
func Grace(isOver func() bool) bool {
	for range mostYields {
		if isOver() {
			return true
		}
		began := time.Now()
		if runtime.Gosched(); time.Since(began) < shortYield {
			break
		}
	}
	return isOver()
}

const (
	mostYields = 3
	shortYield = time.Millisecond
)
