package rig

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter"
	"github.com/rratelimiter/rratelimiter/internal/redistest"
)

// EveryWay returns the methods that acquire n permits of a limiter, by name.
func EveryWay(l *rratelimiter.Limiter) map[string]func(ctx context.Context, n int64) error {
	return map[string]func(ctx context.Context, n int64) error{
		"Allow":      func(ctx context.Context, n int64) error { _, err := l.Allow(ctx, n); return err },
		"TryAcquire": func(ctx context.Context, n int64) error { _, err := l.TryAcquire(ctx, n); return err },
		"TryAcquireTimeout": func(ctx context.Context, n int64) error {
			_, err := l.TryAcquireTimeout(ctx, n, time.Minute)
			return err
		},
		"Acquire":    l.Acquire,
		"AcquireAll": func(ctx context.Context, n int64) error { return l.Client().AcquireAll(ctx, n, l) },
	}
}

// EveryMethod returns all methods of a limiter that can fail, by name, and those of its client that
// acquire from it.
func EveryMethod(c *rratelimiter.Client, l *rratelimiter.Limiter) map[string]func(context.Context) error {
	rate := rratelimiter.PerMinute(10)
	return map[string]func(context.Context) error{
		"Allow":             func(ctx context.Context) error { _, err := l.Allow(ctx, 1); return err },
		"Take":              func(ctx context.Context) error { _, _, err := l.Take(ctx, 1); return err },
		"TakeUpTo":          func(ctx context.Context) error { _, err := l.TakeUpTo(ctx, 1); return err },
		"Peek":              func(ctx context.Context) error { _, err := l.Peek(ctx, 1); return err },
		"TryAcquire":        func(ctx context.Context) error { _, err := l.TryAcquire(ctx, 1); return err },
		"TryAcquireTimeout": func(ctx context.Context) error { _, err := l.TryAcquireTimeout(ctx, 1, time.Millisecond); return err },
		"Acquire":           func(ctx context.Context) error { return l.Acquire(ctx, 1) },
		"AcquireUpTo":       func(ctx context.Context) error { _, err := l.AcquireUpTo(ctx, 1); return err },
		"Release":           func(ctx context.Context) error { _, err := l.Release(ctx, 1); return err },
		"AllowAll":          func(ctx context.Context) error { _, err := c.AllowAll(ctx, 1, l); return err },
		"AcquireAll":        func(ctx context.Context) error { return c.AcquireAll(ctx, 1, l) },
		"TryAcquireAllTimeout": func(ctx context.Context) error {
			_, err := c.TryAcquireAllTimeout(ctx, 1, time.Millisecond, l)
			return err
		},
		"TakeAll":            func(ctx context.Context) error { _, _, err := c.TakeAll(ctx, []int64{1}, l); return err },
		"AvailablePermits":   func(ctx context.Context) error { _, err := l.AvailablePermits(ctx); return err },
		"State":              func(ctx context.Context) error { _, err := l.State(ctx); return err },
		"Glance":             func(ctx context.Context) error { _, _, err := l.Glance(ctx); return err },
		"Repair":             func(ctx context.Context) error { _, err := l.Repair(ctx); return err },
		"Reset":              func(ctx context.Context) error { _, err := l.Reset(ctx); return err },
		"Clients":            func(ctx context.Context) error { _, err := l.Clients(ctx); return err },
		"Config":             func(ctx context.Context) error { _, err := l.Config(ctx); return err },
		"TrySetRate":         func(ctx context.Context) error { _, err := l.TrySetRate(ctx, rate); return err },
		"SetRate":            func(ctx context.Context) error { return l.SetRate(ctx, rate) },
		"SetRate, KeepState": func(ctx context.Context) error { return l.SetRate(ctx, rate, rratelimiter.KeepState()) },
		"UpdateRate":         func(ctx context.Context) error { _, err := l.UpdateRate(ctx, rate); return err },
		"Exists":             func(ctx context.Context) error { _, err := l.Exists(ctx); return err },
		"Delete":             func(ctx context.Context) error { _, err := l.Delete(ctx); return err },
		"Expire":             func(ctx context.Context) error { _, err := l.Expire(ctx, time.Hour); return err },
		"ExpireAt":           func(ctx context.Context) error { _, err := l.ExpireAt(ctx, time.Now()); return err },
		"ClearExpire":        func(ctx context.Context) error { _, err := l.ClearExpire(ctx); return err },
		"TTL":                func(ctx context.Context) error { _, err := l.TTL(ctx); return err },
		"Rename":             func(ctx context.Context) error { return l.Rename(ctx, "{other}") },
		"RenameNX":           func(ctx context.Context) error { _, err := l.RenameNX(ctx, "{other}"); return err },
	}
}

// NoCommands returns a hook that fails the test if a command is sent.
func NoCommands(t *testing.T) redis.Hook {
	return redistest.Hook{
		Command: func(_ context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
			t.Errorf("%v was sent", cmd.Args()[:2])
			return io.ErrUnexpectedEOF
		},
		Pipeline: func(_ context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error {
			t.Errorf("%d commands were sent", len(cmds))
			return io.ErrUnexpectedEOF
		},
	}
}

// RefusingClient returns a redis client that fails the test if a command is sent.
func RefusingClient(t *testing.T) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: "192.0.2.1:1"})
	t.Cleanup(func() { rdb.Close() })
	rdb.AddHook(NoCommands(t))
	return rdb
}
