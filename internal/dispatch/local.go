package dispatch

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// Local decisions: what this process grants while Redis cannot be reached (WithFallback). The breaker of a node tells
// when that is so. A local reply has the form of a script's reply.

// decideAway completes b with a local decision if its breaker is broken and the process can decide. It reports whether it
// did. queue.mu may be held.
func (b *batch) decideAway() bool {
	l := b.limiter()
	if !l.settings.FallsBack {
		return false
	}
	broken, retry := b.breaker.Ask(l)
	if !broken {
		return false
	}
	g, known := l.decide(b.ask, retry)
	if !known {
		return false
	}
	go func() {
		b.complete(g, nil)
		b.recycle()
	}()
	return true
}

// decideLocally returns the final reply of b, whose call has ended: that of Redis or, if Redis was not reached, a local
// decision where possible. It updates the breaker. queue.mu is held.
func (b *batch) decideLocally(g protocol.AcquireReply, err error) (protocol.AcquireReply, error) {
	l := b.limiter()
	if g.Local() || err == script.ErrUnsent {
		return g, err
	}
	if b.reached(err) {
		if err == nil {
			l.learn(g.Rate, g.Interval)
		}
		return g, err
	}
	if !l.settings.FallsBack {
		return g, err
	}
	if g, known := l.decide(b.ask, b.breaker.Retry()); known {
		return g, nil
	}
	return g, err
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

// canDecide reports whether the process can decide on all limiters: they have WithFallback, their rates are known, and
// there is room to count their grants.
func canDecide(limiters ...*Limiter) bool {
	for _, l := range limiters {
		if !l.settings.FallsBack || !l.client.localLimiters.CanDecide(&l.local, l.client.clock()) {
			return false
		}
	}
	return true
}
