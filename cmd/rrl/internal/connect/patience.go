package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/cmd/rrl/internal/render"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// patience.go bounds the time of each call to Redis, and tells the user what a command waits for.

// DefaultTimeout is the time that Redis has for each reply, unless --timeout gives another. Tests
// have more.
var DefaultTimeout = 3 * time.Second

// A patience bounds the calls to a server. It is a hook of its clients.
type patience struct {
	timeout time.Duration
	where   string    // description of the server
	errs    io.Writer // gets a line once a call has waited for a second; nil: no lines
	told    sync.Once // for the line
}

// within calls do with a context that ends after the server's timeout. If that end causes an error,
// the error says that no answer came in this time.
func (p *patience) within(ctx context.Context, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if p.errs != nil {
		defer render.Later(func() {
			p.told.Do(func() {
				fmt.Fprintf(p.errs, "rrl: waiting for %s, at most %s\n", p.where, span.Text(p.timeout))
			})
		})()
	}
	err := do(bounded)
	var late net.Error
	if bounded.Err() != nil && ctx.Err() == nil && errors.As(err, &late) && late.Timeout() {
		return script.Late(p.timeout)
	}
	return err
}

// Quiet ends the lines about waiting: a live view shows by itself that Redis does not answer.
func (p *patience) Quiet() { p.told.Do(func() {}) }

// DialHook does nothing: the call that needs the connection is bounded.
func (p *patience) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook bounds a command, with its retries.
func (p *patience) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := p.within(ctx, func(ctx context.Context) error { return next(ctx, cmd) })
		if err != cmd.Err() {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook bounds a pipeline, with its retries.
func (p *patience) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return p.within(ctx, func(ctx context.Context) error { return next(ctx, cmds) })
	}
}
