package dispatch

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// Local decisions: what this process grants while Redis cannot be reached (WithFallback). The breaker of a node tells
// when that is so. A local reply has the form of a script's reply.

// Away completes b with a local decision, if the process can decide. If all callers have left, it decides nothing: the call is
// not sent.
func (b *batch) Away(retry time.Duration) bool {
	if b.Cancelled() {
		return false
	}
	g, known := b.limiter.decide(b.Ask, retry)
	if known {
		go func() {
			b.complete(&g, exchange.Outcome{})
			b.recycle()
		}()
	}
	return known
}

// decideLocally decides in the place of Redis if that was not reached, where possible.
func (b *batch) decideLocally(o exchange.Outcome) (g protocol.AcquireReply, known bool) {
	if !o.Away || !b.limiter.settings.FallsBack {
		return g, false
	}
	return b.limiter.decide(b.Ask, o.Retry)
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
