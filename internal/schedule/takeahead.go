package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// takeahead.go has the leases of the limiter of a queue (package lease). A batch may bring one, and
// requests are then granted from it without a call. While a caller waits, here or in a set that
// contains the limiter, there is no lease: Join and Reserve end it, and its permits come back for
// that caller first.

// Ledger returns the leases; nil: the limiter has none. Its methods that change it are events of
// the queue, after which the owner calls Next. Exception: Grant and Holds may be called at any
// time.
func (q *Queue) Ledger() *lease.Ledger { return q.ledger }

// wanted reports whether callers wait for permits of the limiter.
func (q *Queue) wanted() bool { return q.line.length > 0 || len(q.reservations) > 0 }

// FoundPending notes that a rebuild of the free permits is to be finished.
func (q *Queue) FoundPending() { q.rebuild[0] = true }

// Rebuild reports whether the next batch finishes a rebuild of the free permits of a limiter.
func (q *Queue) Rebuild(limiter int) bool { return q.rebuild[limiter] }

// Refill notes that a request has found that more permits are to be taken ahead. No batch is due
// if the lease has ended meanwhile, or if another batch has already asked for more.
func (q *Queue) Refill() {
	if q.ledger.ConfirmRefill() {
		q.recheck = true
	}
}

// jointCall notes what a call for a set came to at the limiter of this queue. If another such call
// was made shortly before, and nobody waits, a batch is due that brings a lease.
func (q *Queue) jointCall(m Moment, t Tally) {
	if q.ledger.JointCall(t.Own, t.Denied > 0, m.Mono) && !q.wanted() {
		q.recheck = true
	}
}

// Renew lets the lease of a batch be used although its own call has changed the limiter.
func (q *Queue) Renew(b *Batch) { b.ticket = q.ledger.Ticket() }

// takeAhead returns how many permits a batch that is about to be sent takes ahead.
func (q *Queue) takeAhead(m Moment, b *Batch) int64 {
	if q.ledger == nil {
		return 0
	}
	switch d := q.draft(b); {
	case q.settings.Ahead == nil:
		return q.ledger.TakeAhead(d, m)
	case q.ledger.AnswerRefill(d):
		return q.settings.Ahead()
	}
	return 0
}

// draft returns what decides how many permits a batch takes ahead.
func (q *Queue) draft(b *Batch) lease.Draft {
	const most = 1 << 31
	asked := int64(0)
	for _, g := range b.Ask.Groups {
		asked = min(asked+min(g.Permits.First, most)*g.Count, most)
	}
	may := !b.Changing && !b.Ask.Partial && !q.Redisson() && q.detached == 0 && !q.wanted()
	return lease.Draft{Callers: b.requests, Asked: asked, May: may}
}

// saw keeps what a reply of Redis says for later batches, and the lease that it brings.
func (q *Queue) saw(m Moment, b *Batch, g *protocol.Reply) {
	for limiter := range q.rebuild {
		q.rebuild[limiter] = g.Of(limiter).Notes.Has(protocol.RebuildPending)
	}
	of := &g.First
	q.ledger.Saw(of.Interval)
	switch {
	case g.Ahead > 0:
		q.ledger.Brought(lease.Delivery{
			Lease: &lease.Lease{
				Rate: of.Rate, Interval: of.Interval, Free: of.Free, At: of.At, Began: g.Began,
				Lasts: time.Duration(of.At-of.Now) * time.Microsecond, Permits: g.Ahead,
			},
			Ticket: b.ticket, Late: b.state == BatchDetached, Unwanted: q.wanted(),
		}, m)
	case b.requests == 0:
		q.ledger.Refused(m.Mono) // a call for a lease alone was in vain
	}
}
