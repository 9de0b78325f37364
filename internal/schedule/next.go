package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
)

// next.go says what is to be done now. The batches are made in batch.go, and the time to look again
// is from wake.go.

// Effects are what the owner of a queue does after an event, besides sending batches.
type Effects struct {
	Spare     *Batch           // made for nothing; nil: none
	Leftovers []lease.Leftover // of ended leases: the owner gives these permits back
	Tell      []Notice         // for the limiters of the set
	Outdated  []Outdated       // for sets that wait for the limiter
	Wake      time.Time        // see Queue.Wake
	Cause     Cause
}

// Next returns what is to be done after an event, or at the time to wake. It appends the batches
// that are to be sent, in this order. It calls now at most once. For each batch that is due it
// calls open, which returns an empty one, with Changing. A second call at the same time has no
// effects.
func (q *Queue) Next(send []*Batch, now func() Moment, open func() *Batch) ([]*Batch, Effects) {
	fx := q.effects
	q.effects = Effects{}
	// most callers of a busy limiter join while a batch is in flight: the clock is not read for
	// them
	if blocked := q.inFlight != nil && len(q.upTo) == 0 && !q.ledger.Holds(); !blocked {
		for m := now(); q.due(m); {
			b := open()
			if !q.fill(m, b) {
				fx.Spare = b
				break
			}
			send = append(send, b)
		}
	}
	fx.Leftovers = q.ledger.Leftovers()
	fx.Wake, fx.Cause = q.Wake()
	return send, fx
}

// Idle reports whether no request, no batch and no lease uses the queue.
func (q *Queue) Idle() bool {
	return q.line.first == nil && len(q.trying) == 0 && len(q.upTo) == 0 && len(q.reservations) == 0 &&
		q.inFlight == nil && q.detached == 0 && q.beside == 0 && q.pacer.linger.requests == 0 && q.ledger.Idle()
}

// due reports whether a batch is due, for fill. It ends what is over: leases, a linger, sleeps.
func (q *Queue) due(m Moment) bool {
	if over(q.ledger.SweepAt(), m) {
		q.ledger.Sweep(m)
	}
	if q.unplanned() {
		q.sleepUntilTurn(m)
	}
	switch {
	case len(q.upTo) > 0:
		return true
	case q.inFlight != nil || q.lingering(m):
		return false
	case q.pacer.linger.requests > 0:
		q.pacer.linger = linger{}
		return true
	case q.awake(m) || q.urgent():
		return true
	}
	q.walk(m)
	return false
}

// unplanned reports whether the pacer does not know when to ask for the first request that is not
// in flight: those in front of it have left, or are in a batch that the queue does not wait for.
func (q *Queue) unplanned() bool {
	return q.pacer.asks.Mono.IsZero() && q.line.ready != nil && q.inFlight == nil && q.pacer.linger.requests == 0 &&
		!q.urgent()
}

// urgent reports whether a call is needed at once.
func (q *Queue) urgent() bool {
	r := q.line.ready
	return q.recheck || len(q.trying) > 0 || r != nil && (r.state == Queued || q.stale(r))
}
