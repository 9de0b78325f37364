package limiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// observer.go has what the observer of a client is told.

// A CallInfo is what the observer is told of one call for a limiter.
type CallInfo struct {
	Limiter       string
	Callers       Callers
	Permits       Permits
	Latency       time.Duration
	Attempts      int
	Repaired      string
	RateMismatch  bool
	DenyCacheHits int
	Fallback      bool
	Err           error
}

// Callers are the callers of a call by what became of them.
type Callers struct {
	Carried, Granted, Denied int
	Waiting                  int // in the queue, after the call
}

// Permits are those of a call, and those of leases since the call before it.
type Permits struct {
	Granted   int64 // to callers, Unclaimed included
	Unclaimed int64 // to callers that had left
	Leased    int64 // taken ahead
	Returned  int64 // of leases, given back
	Void      int64 // of leases, neither granted nor given back
	Charged   int64
}

// CallInfo returns what is known of any call for l that has ended at a time.
func (l *Limiter) CallInfo(c *exchange.Call, at time.Time, err error) CallInfo {
	return CallInfo{Limiter: l.Name, Latency: at.Sub(c.Started()), Attempts: c.Attempts(), Err: err}
}

// Noted adds the notes of the reply.
func (info *CallInfo) Noted(n protocol.Notes) {
	info.Repaired, info.RateMismatch, info.Fallback = n.Repaired(), n.Has(protocol.RateMismatch), n.Has(protocol.Local)
}

// Observe tells the observer of a call, if there is one.
func (c *Client) Observe(info CallInfo) {
	if c.Config.Observe != nil {
		c.Config.Observe(info)
	}
}
