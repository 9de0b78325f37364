package dispatch

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Local decisions: what this process grants while Redis cannot be reached (WithFallback). The breaker of a node tells
// when that is so. A local reply has the form of a script's reply.

// Away completes b with a local decision, if the process can decide. queue.mu may be held.
func (b *batch) Away(retry time.Duration) bool {
	g, known := b.limiter.decide(b.ask, retry)
	if known {
		go func() {
			b.complete(g, exchange.Outcome{})
			b.recycle()
		}()
	}
	return known
}

// decideLocally returns the final reply of b, whose call has ended: that of Redis or, if Redis was not reached, a local
// decision where possible. queue.mu is held.
func (b *batch) decideLocally(g protocol.AcquireReply, o exchange.Outcome) (protocol.AcquireReply, error) {
	l := b.limiter
	if o.Err == nil && !g.Local() {
		l.learn(g.Rate, g.Interval)
	}
	if o.Away && l.settings.FallsBack {
		if decided, known := l.decide(b.ask, o.Retry); known {
			return decided, nil
		}
	}
	return g, o.Err
}

// learn stores the rate in a reply of Redis, for local decisions and for the deny cache.
func (l *Limiter) learn(rate int64, interval time.Duration) {
	l.client.denyCache.SeeRate(l.Key(), rate, interval)
	if l.settings.FallsBack {
		l.client.localLimiters.Learn(&l.local, rate, interval, l.client.clock())
	}
}

// decide decides on requests in the process. It fails if no rate is known.
func (l *Limiter) decide(ask protocol.Ask, retry time.Duration) (protocol.AcquireReply, bool) {
	return l.client.localLimiters.Decide(&l.local, ask, l.client.clock(), retry)
}
