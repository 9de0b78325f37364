package dispatch

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/fallback"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// fallback.go has local decisions: what this process grants while Redis cannot be reached
// (WithFallback). The breaker of a node tells when that is so. A local reply has the form of a
// script's reply.

// Away completes b with a local decision, if the process can decide. If all callers have left, it
// decides nothing: the call is not sent.
func (b *batch) Away(retry time.Duration) bool {
	if b.Cancelled() {
		return false
	}
	g, known := b.decide(retry)
	if known {
		go func() {
			b.complete(&g, exchange.Outcome{})
			b.recycle()
		}()
	}
	return known
}

// decide makes a local decision on b. It fails unless each limiter has WithFallback and a rate that
// is known.
func (b *batch) decide(retry time.Duration) (g protocol.Reply, known bool) {
	q := b.queue
	locals := make([]*fallback.Limiter, len(q.limiters))
	for i, l := range q.limiters {
		if locals[i] = &l.Local; !l.Settings.FallsBack {
			return g, false
		}
	}
	return q.client.Local.Decide(locals, b.Ask, q.client.Clock(), retry)
}
