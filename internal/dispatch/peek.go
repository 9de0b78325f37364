package dispatch

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// peek.go says what a request that does not wait would get, and takes nothing.

// A peekBody is a call of acquire.lua that changes nothing.
type peekBody struct {
	acquireBody
	own bool // as if the limiter's own rate had been set
}

func (b *peekBody) Script() *script.Script {
	if b.own {
		return protocol.PeekRateScript
	}
	return protocol.PeekScript
}

func (b *peekBody) Findable() bool { return true } // an attempt has no effect

func (b *peekBody) Args(args []any, _ bool) []any { return b.acquireBody.Args(args, false) }

func (b *peekBody) Enforce(context.Context, *script.Attempts) error {
	b.own = true
	return nil
}

// Peek returns what a request for n permits would get now, except that Remaining has these permits,
// too.
func (l *Limiter) Peek(ctx context.Context, n int64) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	q := l.client.enter(l)
	now := l.client.times(l.settings.ServerTime)
	held, left := q.ledger.Offers(n, now)
	ask := protocol.Ask{Detail: true, Next: true, Rebuild: q.rebuild[0]}
	if first := q.schedule.Refused(); first > 0 {
		ask.Groups = append(ask.Groups, protocol.Group{Size: first, Count: 1})
	}
	if kept := q.schedule.Kept(now.Clock); kept > 0 {
		ask.Groups = append(ask.Groups, protocol.Group{Size: kept})
	}
	ask.Strict = len(ask.Groups)
	q.exit()
	if held != nil {
		result := granted(held, left, now, true)
		result.Remaining += n
		return result, nil
	}
	if l.settings.DenyCache > 0 {
		if result, known := l.fromDenyCache(n); known != nil {
			return result, nil
		}
	}
	ask.Groups = append(ask.Groups, protocol.Group{Size: n, Count: 1})
	ask.Check, _ = l.unchecked()
	g, err := l.peek(ctx, ask)
	if err != nil {
		return Result{}, err
	}
	return l.peeked(n, &g, ask)
}

// peeked returns what a reply means for the last group, a request for n permits.
func (l *Limiter) peeked(n int64, g *protocol.Reply, ask protocol.Ask) (Result, error) {
	last := len(ask.Groups) - 1
	switch g.Granted(last, ask.Groups[last]) {
	case 1:
		return Result{
			Allowed: true, Limit: g.Rate, Remaining: g.Free + n, NextAfter: g.NextAfter, ResetAfter: g.ResetAfter,
		}, nil
	case -1:
		return Result{}, schedule.ErrExceedsRate
	}
	result := Result{
		Limit: g.Rate, Remaining: g.Free, RetryAfter: g.Wait(last), NextAfter: g.NextAfter, ResetAfter: g.ResetAfter,
	}
	q := l.client.enter(l)
	defer q.exit()
	return q.schedule.Reserved(q.client.now(), n, result, g.Local()), nil
}

// peek makes a call that takes nothing. With WithFallback, the process replies while the node is
// away.
func (l *Limiter) peek(ctx context.Context, ask protocol.Ask) (protocol.Reply, error) {
	node := l.client.exchange.Breaker(l)
	if l.settings.FallsBack {
		if away, retry := node.Ask(l); away {
			if g, known := l.client.localLimiters.Peek(&l.local, ask, l.client.Clock(), retry); known {
				return g, nil
			}
		}
	}
	sent := &script.Attempts{NoRetryIfUnsent: l.settings.FallsBack}
	g, err := within(ctx, l, func(ctx context.Context) (protocol.Reply, error) {
		body := peekBody{acquireBody: acquireBody{limiter: l, ask: &ask}}
		err := l.client.exchange.Do(ctx, sent, &body, nil, l)
		return body.reply, err
	})
	if err == nil {
		l.learn(g.Rate, g.Interval)
		return g, nil
	}
	if l.settings.FallsBack && errors.Is(err, script.ErrUnavailable) {
		if g, known := l.client.localLimiters.Peek(&l.local, ask, l.client.Clock(), node.Retry()); known {
			return g, nil
		}
	}
	return g, sent.Explain(err)
}
