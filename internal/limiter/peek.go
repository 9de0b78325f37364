package limiter

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// peek.go asks what a request would get, and takes nothing.

// A peek is a call of acquire.lua that changes nothing.
type peek struct {
	Acquire
	own bool // as if the limiter's own rate had been set
}

func (b *peek) Script() *script.Script {
	if b.own {
		return protocol.PeekRateScript
	}
	return protocol.PeekScript
}

func (b *peek) Findable() bool { return true } // an attempt has no effect

func (b *peek) Args(args []any, _ bool) []any { return b.Acquire.Args(args, false) }

func (b *peek) Enforce(context.Context, *script.Attempts) error {
	b.own = true
	return nil
}

// Peek returns what a request for n permits would get from Redis after those of ask, and the reply.
// real reports whether that is about the rate in Redis.
func (l *Limiter) Peek(
	ctx context.Context, n int64, ask protocol.BatchAsk,
) (result schedule.Result, g protocol.Reply, real bool, err error) {
	ask.Groups = append(ask.Groups, protocol.Group{Permits: protocol.Permits{First: n}, Count: 1})
	ask.Check, _ = l.Unchecked()
	if g, real, err = l.peek(ctx, ask); err != nil {
		return result, g, real, err
	}
	last, of := len(ask.Groups)-1, &g.First
	result = schedule.Result{Limit: of.Rate, Remaining: of.Free, NextAfter: of.NextAfter, ResetAfter: of.ResetAfter}
	switch g.Granted(last, ask.Groups[last]) {
	case 1:
		result.Allowed = true
		result.Remaining += n
	case 0:
		result.RetryAfter = g.Wait(last)
	default:
		return schedule.Result{}, g, real, schedule.ErrExceedsRate
	}
	return result, g, real, nil
}

// peek makes a call that takes nothing. With WithFallback, the process replies while the node is
// away. real reports whether the reply is about the rate in Redis.
func (l *Limiter) peek(ctx context.Context, ask protocol.BatchAsk) (g protocol.Reply, real bool, err error) {
	node := l.client.Exchange.Breaker(l)
	if l.Settings.FallsBack {
		if away, retry := node.Ask(l); away {
			if g, known := l.client.Local.Peek(&l.Local, ask, l.Clock(), retry); known {
				return g, false, nil
			}
		}
	}
	sent := &script.Attempts{NoRetryIfUnsent: l.Settings.FallsBack}
	body, err := within(ctx, l, func(ctx context.Context) (*peek, error) {
		body := &peek{Acquire: Acquire{Limiter: l, Ask: &ask, Reply: new(protocol.Reply)}}
		return body, l.client.Exchange.Do(ctx, sent, body, nil, l)
	})
	if err == nil {
		g = *body.Reply
		l.Learn(g.First.Rate, g.First.Interval)
		return g, !body.own, nil
	}
	if l.Settings.FallsBack && errors.Is(err, script.ErrUnavailable) {
		if g, known := l.client.Local.Peek(&l.Local, ask, l.Clock(), node.Retry()); known {
			return g, false, nil
		}
	}
	return g, false, sent.Explain(err)
}
