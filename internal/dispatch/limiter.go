package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// limiter.go has a limiter with its queue, the methods of package limiter that its queue takes part
// in, and what that package tells the queues (limiter.Queues).

// A Limiter is one limiter of a client.
type Limiter struct {
	limiter.Limiter
	client *Client
	queue  atomic.Pointer[queue] // the one used last; it may have been dropped
	set    atomic.Pointer[queue] // that of the last set in which the limiter was the first one
}

// Limiter returns a limiter with a name and the default options.
func (c *Client) Limiter(name string) (*Limiter, error) {
	l := new(Limiter)
	return l, l.Init(c, name, c.Config.Defaults, nil)
}

// Init makes l a limiter of the client. See limiter.Limiter.Init.
func (l *Limiter) Init(c *Client, name string, s limiter.Settings, err error) error {
	l.client = c
	if s.Lease > 0 && !c.leases.Load() {
		c.leases.Store(true)
	}
	return l.Limiter.Init(&c.Client, l, name, s, err)
}

// Release gives n permits back that callers were granted. See limiter.Limiter.Release.
func (l *Limiter) Release(ctx context.Context, n, granted int64) (int64, error) {
	released, err := l.Limiter.Release(ctx, n, granted)
	if q := l.known(); q != nil {
		q.event(func(s *schedule.Queue) { s.GaveBack(granted, released) })
	}
	return released, err
}

// Undo gives back n permits with the score of one grant, so that permits granted at other times
// return when they would have, and returns how many came back. Permits that expired or were
// released already are not given back again.
func (l *Limiter) Undo(ctx context.Context, n int64, from Source) (int64, error) {
	if from.Local {
		return l.client.Local.Untake(&l.Local, n, time.UnixMicro(from.At), l.Clock()), nil
	}
	return l.Release(ctx, n, from.At)
}

// Peek returns what a request for n permits would get now, except that Remaining has these permits,
// too.
func (l *Limiter) Peek(ctx context.Context, n int64) (Result, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	var ask protocol.BatchAsk
	var held *lease.Lease
	left, now := int64(0), l.client.Moment()
	l.event(func(q *queue) {
		held, left = q.ledger.Offers(n, now)
		ask = q.schedule.Peek(now.Clock)
	})
	if held != nil {
		result := granted(held, left, now, true)
		result.Remaining += n
		return result, nil
	}
	if l.Settings.DenyCache > 0 {
		if result, known := l.Refusal(n); known != nil {
			return result, nil
		}
	}
	denials := l.client.DenyCache.Changes()
	result, g, real, err := l.Limiter.Peek(ctx, n, ask)
	if err != nil || result.Allowed {
		return result, err
	}
	m := l.client.Moment()
	l.event(func(q *queue) {
		if refusal, holds := q.schedule.Refusal(m, n, result, &g); holds && real {
			l.Remember(refusal, m.Clock, denials)
		}
		result = q.schedule.Corrected(m, n, result, g.Local())
	})
	return result, nil
}

// Charge counts permits[i] at limiters[i]: from their leases, which it reports, or by a call. See
// limiter.Client.Charge.
func (c *Client) Charge(
	ctx context.Context, permits []int64, limiters []*Limiter,
) (results []Result, counted []int64, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, false, err
	}
	if results, ok := c.allFromLeases(permits, limiters, nil); ok {
		return results, permits, true, nil
	}
	plain := make([]*limiter.Limiter, len(limiters))
	for i, l := range limiters {
		plain[i] = &l.Limiter
	}
	results, counted, err = c.Client.Charge(ctx, permits, plain)
	return results, counted, false, err
}

// A Health is what is known, without a call, about reaching the node of a limiter.
type Health struct {
	Away    bool // the node cannot be reached, or cannot grant permits
	Decides bool // the process decides in its place
	// for how long the last batch sent for it has had no reply; 0 if it has one, or is detached and
	// has no waiting caller
	Silence time.Duration
}

// Health returns the health of the node that serves l. See limiter.Limiter.Reach.
func (l *Limiter) Health() (h Health) {
	h.Away, h.Decides = l.Reach()
	if q := l.known(); q != nil {
		q.look(func(s *schedule.Queue) {
			if since := s.Unanswered(); !since.IsZero() {
				h.Silence = time.Since(since)
			}
		})
	}
	return h
}

// wake lets all waiting callers of the chosen limiters ask again at once, without a head start for
// other clients.
func (c *Client) wake(chosen func(*limiter.Limiter) bool) {
	for _, q := range c.queues(chosen) {
		q.event((*schedule.Queue).Changed)
	}
}

// FoundPending lets the next batch finish a rebuild of the free permits.
func (l *Limiter) FoundPending() { l.event(func(q *queue) { q.schedule.FoundPending() }) }

// Breaker returns the breaker of the limiter's queue.
func (l *Limiter) Breaker() (b *breaker.Breaker) {
	l.event(func(q *queue) { b = q.targets[0].Breaker() })
	return b
}
