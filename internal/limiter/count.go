package limiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// count.go makes calls of acquire.lua that grant nothing: they count what is free, or keep a
// limiter in Redis.

// Free counts expired permits back, and returns how many are free. With check it adds up the
// records.
func (l *Limiter) Free(ctx context.Context, check bool) (int64, error) {
	g, err := l.count(ctx, protocol.BatchAsk{Check: check})
	return g.First.Free, err
}

// count makes a call that grants nothing: it counts expired permits back and returns what is free.
// It repeats the call while expired records remain. If there are too many live records to add up in
// one call, it then recounts them.
func (l *Limiter) count(ctx context.Context, ask protocol.BatchAsk) (g protocol.Reply, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return g, err
		}
		sent := new(script.Attempts)
		g, err = within(ctx, l, func(ctx context.Context) (protocol.Reply, error) {
			return l.DoWithRetry(ctx, sent, ask)
		})
		if err != nil {
			return g, sent.Explain(err)
		}
		l.Learn(g.First.Rate, g.First.Interval)
		switch {
		case g.First.Notes.Has(protocol.Many):
			if err = l.Recount(ctx); err != nil || !ask.Check && !ask.Rebuild {
				return g, err
			}
			ask = protocol.BatchAsk{}
		case g.First.Notes.Has(protocol.More):
			ask.Rebuild = ask.Rebuild || g.First.Notes.Has(protocol.RebuildPending)
		default:
			return g, nil
		}
	}
}

// DoWithRetry makes a call of acquire.lua that no pipeline carries.
func (l *Limiter) DoWithRetry(ctx context.Context, t *script.Attempts, ask protocol.BatchAsk) (protocol.Reply, error) {
	var g protocol.Reply
	err := l.client.Exchange.Do(ctx, t, &Acquire{Limiter: l, Ask: &ask, Reply: &g}, nil, l)
	return g, err
}

// Stay makes a call as for a caller that waits, which is refused whatever is free, so that Redis
// keeps the limiter. It returns after which time that is to be repeated; 0: it has no keep-alive.
func (l *Limiter) Stay(ctx context.Context) (time.Duration, error) {
	ask := protocol.BatchAsk{
		Groups: []protocol.Group{
			{Permits: protocol.Permits{First: protocol.MostPermits}},
			{Permits: protocol.Permits{First: 1}, Count: 1},
		},
		Strict: 2,
	}
	for {
		g, err := within(ctx, l, func(ctx context.Context) (protocol.Reply, error) {
			return l.DoWithRetry(ctx, new(script.Attempts), ask)
		})
		if err != nil || !g.First.Notes.Has(protocol.More) { // expired records that remain hide the keep-alive
			return schedule.Kept(&g.First), err
		}
	}
}
