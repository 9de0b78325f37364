package dispatch

import (
	"context"
	"errors"

	"github.com/rratelimiter/rratelimiter/internal/lease"
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
	var ask protocol.BatchAsk
	var held *lease.Lease
	left, now := int64(0), l.client.now()
	l.event(func(q *queue) {
		held, left = q.ledger.Offers(n, now)
		ask = q.schedule.Peek(now.Clock)
	})
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
	ask.Groups = append(ask.Groups, protocol.Group{Permits: protocol.Permits{First: n}, Count: 1})
	ask.Check, _ = l.unchecked()
	denials := l.client.denyCache.Changes()
	g, real, err := l.peek(ctx, ask)
	if err != nil {
		return Result{}, err
	}
	return l.peeked(n, &g, ask, real, denials)
}

// peeked returns what a reply means for the last group, a request for n permits. It stores a
// refusal in the deny cache if it is real: Redis has the rate that refused.
func (l *Limiter) peeked(n int64, g *protocol.Reply, ask protocol.BatchAsk, real bool, denials int64) (Result, error) {
	last, of := len(ask.Groups)-1, &g.First
	switch g.Granted(last, ask.Groups[last]) {
	case 1:
		return Result{
			Allowed: true, Limit: of.Rate, Remaining: of.Free + n, NextAfter: of.NextAfter, ResetAfter: of.ResetAfter,
		}, nil
	case -1:
		return Result{}, schedule.ErrExceedsRate
	}
	result := Result{
		Limit: of.Rate, Remaining: of.Free, RetryAfter: g.Wait(last), NextAfter: of.NextAfter,
		ResetAfter: of.ResetAfter,
	}
	m := l.client.now()
	l.event(func(q *queue) {
		if refusal, holds := q.schedule.Refusal(m, n, result, g); holds && real {
			q.remember(m, refusal, denials)
		}
		result = q.schedule.Corrected(m, n, result, g.Local())
	})
	return result, nil
}

// peek makes a call that takes nothing. With WithFallback, the process replies while the node is
// away. real reports whether the reply is about the rate in Redis.
func (l *Limiter) peek(ctx context.Context, ask protocol.BatchAsk) (g protocol.Reply, real bool, err error) {
	node := l.client.exchange.Breaker(l)
	if l.settings.FallsBack {
		if away, retry := node.Ask(l); away {
			if g, known := l.client.localLimiters.Peek(&l.local, ask, l.client.Clock(), retry); known {
				return g, false, nil
			}
		}
	}
	sent := &script.Attempts{NoRetryIfUnsent: l.settings.FallsBack}
	body, err := within(ctx, l, func(ctx context.Context) (*peekBody, error) {
		body := &peekBody{acquireBody: acquireBody{limiter: l, ask: &ask, reply: new(protocol.Reply)}}
		return body, l.client.exchange.Do(ctx, sent, body, nil, l)
	})
	if err == nil {
		g = *body.reply
		l.learn(g.First.Rate, g.First.Interval)
		return g, !body.own, nil
	}
	if l.settings.FallsBack && errors.Is(err, script.ErrUnavailable) {
		if g, known := l.client.localLimiters.Peek(&l.local, ask, l.client.Clock(), node.Retry()); known {
			return g, false, nil
		}
	}
	return g, false, sent.Explain(err)
}
