// Package schedule decides which callers of one limiter, or of one set of limiters that grant
// together, share a call to Redis, in which order they are served, and when the next call is due.
// It is deterministic: its methods take the time as an argument, and the state of a Queue depends
// on nothing but the calls of its methods, and on what the functions in its Settings return. It
// knows no clock, timer, goroutine, lock or context, and nothing of Redis.
//
// Each event is a method of Queue:
//   - of callers: Join, Leave, Expire
//   - of batches: Settle, Fail, Stalled, Renew
//   - of the limiter and the server: Changed, SeeRedisson, GaveBack, FoundPending
//   - of leases: Refill, and the methods of its Ledger
//   - of sets: Reserve, and what other queues tell, Hear and Outdated
//
// What a queue decides on changes only by its own events, and with time. After an event, and at the
// time to wake, the owner of the queue calls Next, and does what that returns. Exceptions: Renew
// makes nothing due, and after Reserve, only the Leftovers of the ledger cannot wait. A superfluous
// call of Next has no effects, so the owner need not know which events make a batch due.
package schedule

import (
	"errors"
	"iter"
	"math"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// ErrExceedsRate means that one request asked for more permits than the rate has.
var ErrExceedsRate = errors.New("rratelimiter: the rate is less than the requested permits")

// A Moment is a time by two clocks: the settable one of the client, which decides how long callers
// wait, and a monotonic one, which measures how long calls take and when the queue is due again.
type Moment = lease.Moment

// Settings are what a Queue knows of its limiter and its client.
type Settings struct {
	Limiters         int  // how many the queue asks together; 0 means 1
	RecordPerRequest bool // each grant gets a record of its own
	Granularity      bool // records of several batches are joined
	ServerTime       bool // the server's clock dates grants
	// a request that would wait in vain, until its End, is refused
	FailFast bool
	// a batch that takes less does not make the queue linger
	Linger   time.Duration
	Identity *record.Identity                  // tells whose record a reply shows
	Jitter   func(time.Duration) time.Duration // returns a random time below the given one
	// reports whether the caller is about to leave; nil: none is
	Leaving func(*Request) bool
	Set     SetSettings // of a set only
	// refusals of requests that do not wait are kept
	DenyCache bool
	Enforced  bool // the limiter enforces its rate: a refusal under another one is not kept
	// how long a lease lasts; 0: the limiter has none, and neither has a set
	Lease   time.Duration
	Holding *atomic.Int64 // number of limiters of the client that have a lease
	// chooses how many permits a batch that may take some takes ahead; nil: as the demand says
	Ahead func() int64
}

// A Queue holds the requests of one limiter in this process and the batches in flight. It is not
// safe for concurrent use.
type Queue struct {
	settings Settings
	line     line // waiting requests, those in flight included
	// requests that do not wait and are not in flight. Invariant: if Next leaves any, a batch is in
	// flight, or the queue lingers
	trying []*Request
	upTo   []*Request // requests for a part of their permits; Next sends them at once
	pacer  pacer

	flights
	// nil: the limiter has no leases. Invariant: it holds none while a request or a reservation
	// waits
	ledger  *lease.Ledger
	rebuild []bool // the next batch finishes a rebuild of the free permits of these limiters

	// of requests of sets. Invariant: they are in the order of arrival, by their places
	reservations []*Reservation
	// A call is due: since the last batch was made, a request came that needs an answer, or one is
	// to be asked for again, or a lease is to be refilled. This is not computed from the requests,
	// since a full batch leaves some of them out, and these would make one call after the other
	// due.
	recheck bool
	// number of calls of change. Invariant: the first request that is not in flight knows of all
	// of them (Request.changes), or a batch is due
	changes int64
	rates   protocol.Permits // in the last reply of Redis; math.MaxInt64: no reply yet
	// the rates by which the process decides, if it made the last reply; else 0
	local protocol.Permits

	effects  Effects     // on other queues. Invariant: none after Next
	verdicts []allotment // memory for allot. Invariant: empty unless a reply is being applied
}

// flights has the batches of a queue.
type flights struct {
	// the batch that the queue waits for; nil: none. Invariant: all other batches in flight are
	// detached, or for a request of kind UpTo
	inFlight *Batch
	batches  int64 // number of batches so far
	// Invariant: at most MaxDetached. These are stalled batches in flight; the next batch does not
	// wait for them.
	detached int
	beside   int       // batches in flight for one request of kind UpTo each
	answered time.Time // when the last reply came, by the monotonic clock
}

// New returns a queue without requests.
func New(s Settings) *Queue {
	s.Limiters = max(s.Limiters, 1)
	q := &Queue{
		settings: s,
		rates:    protocol.Same[int64](s.Limiters, math.MaxInt64),
		pacer:    pacer{members: make([]member, s.Limiters)},
		rebuild:  make([]bool, s.Limiters),
	}
	if s.Lease > 0 {
		q.ledger = lease.NewLedger(s.Lease, s.ServerTime, s.Jitter, s.Holding)
	}
	return q
}

// MaxDetached is how many batches of one queue may be detached at once.
const MaxDetached = 3

// Waiting returns the number of waiting requests, those in flight included.
func (q *Queue) Waiting() int { return q.line.length }

// Line returns the waiting requests in their order, those in flight included.
func (q *Queue) Line() iter.Seq[*Request] {
	return func(yield func(*Request) bool) {
		for r := q.line.first; r != nil && yield(r); {
			r = r.next
		}
	}
}

// LastReservation returns the reservation of the last waiting request of a set at one of its
// limiters; nil: no request waits.
func (q *Queue) LastReservation(limiter int) *Reservation {
	if q.line.rear == nil {
		return nil
	}
	return q.line.rear.Reservations[limiter]
}

// Trying returns the number of requests that do not wait and are not in flight, those included
// whose callers have left.
func (q *Queue) Trying() int { return len(q.trying) }

// Active reports whether a batch of the line is in flight, or about to be sent.
func (q *Queue) Active() bool {
	return q.inFlight != nil || q.detached > 0 || q.pacer.linger.requests > 0
}

// InFlight returns the batch that the queue waits for; nil if there is none.
func (q *Queue) InFlight() *Batch { return q.inFlight }

// RetryAfter returns how long the first waiting request had to wait by the last reply, if that is
// known.
func (q *Queue) RetryAfter() (wait time.Duration, known bool) {
	if first := q.line.first; first != nil && !first.free.IsZero() {
		return first.Outcome.First.RetryAfter, true
	}
	return 0, false
}

// Peek returns a look at the limiter, without a request. It has groups for what a request that does
// not wait stands behind: the permits of the first waiting request, if a reply has refused it, and
// those that are reserved for requests of sets.
func (q *Queue) Peek(now time.Time) protocol.BatchAsk {
	ask := protocol.BatchAsk{Detail: true, Next: true, Rebuild: q.rebuild[0]}
	if first := q.line.first; first != nil && first.state == Refused {
		ask.Groups = append(ask.Groups, protocol.Group{Permits: first.Permits, Count: 1})
	}
	if kept, _ := q.reserved(now, 0, math.MaxInt64); kept > 0 {
		ask.Groups = append(ask.Groups, protocol.Group{Permits: protocol.Permits{First: kept}})
	}
	ask.Strict = len(ask.Groups)
	return ask
}

// Unanswered returns when the last batch was sent, if it has no reply yet; the zero time if it has
// one, or if it is detached and has no waiting request.
func (q *Queue) Unanswered() time.Time {
	if q.inFlight != nil {
		return q.inFlight.started
	}
	for r := range q.Line() {
		if r.state.InFlight() && r.batch.number == q.batches { // no batch was sent since it was detached
			return r.batch.started
		}
	}
	return time.Time{}
}

// Join adds a request. It asks for a call, unless it waits behind others. Behind them it asks only
// if
//   - all of these are in stalled batches,
//   - it has a timeout or must not wait in vain: the reply tells whether its permits are free in
//     time,
//   - it wants more than the rate, which is an error at once, or
//   - it passes the first one.
//
// While callers wait, a request of kind UpTo is settled at once: no permits are free for it.
func (q *Queue) Join(r *Request) {
	switch r.Kind {
	case UpTo:
		if q.wanted() {
			r.state.To(Settled)
			return
		}
		q.upTo = append(q.upTo, r)
		return
	case Try:
		q.trying = append(q.trying, r)
	case Wait:
		if !q.judges(r) {
			r.split(q.rates.First)
		}
		q.ledger.End()
		q.line.add(r)
		first := q.inFlight == nil && q.line.ready == r
		if first || !r.Until.IsZero() || q.settings.FailFast && !r.End.IsZero() || !fits(r.Permits, q.rates) ||
			q.passes(r) {
			q.recheck = true
		} else if !r.End.IsZero() && lastCallAt(q.line.first.free, r.End, q.pacer.took).Before(q.pacer.asks.Clock) {
			q.pacer.changedLine()
		}
	}
}

// passes reports whether a request may be served though the first one waits: the process decides,
// by whose rate the first one can be served only by Redis.
func (q *Queue) passes(r *Request) bool {
	return fits(r.Permits, q.local) && !fits(q.line.first.Permits, q.local)
}

// Leave takes away a request whose caller leaves. It returns the batch that carries the request;
// nil if it is not in flight. What that batch is granted for it goes to the requests behind it.
func (q *Queue) Leave(r *Request) (carrier *Batch) {
	if r.Kind == Wait {
		q.release(r, time.Time{})
		q.outdate(r.place, nil, time.Time{})
	}
	if r.state == Gone { // fill has taken it away
		return nil
	}
	ready := q.line.ready == r
	if r.state.InFlight() {
		carrier = r.batch
		r.state.To(Abandoned)
	} else {
		r.state.To(Gone)
	}
	if r.Kind != Wait {
		return carrier
	}
	q.line.remove(r)
	switch next := q.line.ready; {
	case q.line.length == 0:
		q.pacer.stop()
	case !ready:
		q.pacer.changedLine()
	case next == nil:
		q.pacer.unset()
	case q.local.First > 0: // the process may now grant it at once
		q.change()
	default:
		q.pacer.asks = Moment{} // Next finds when the next one is to be asked for
	}
	return carrier
}

// Expire notes that the timeout of a request is over, so that the next reply settles it. If its
// last call is due, a call is due now: the timer of the queue may be late, or the queue lingers.
func (q *Queue) Expire(r *Request) {
	r.last = true
	if r.state.Final() || r.state.InFlight() || q.inFlight != nil {
		return
	}
	for due := range q.lastCalls(r.End) {
		if due == r {
			q.pacer.linger = linger{}
			q.recheck = true
			return
		}
	}
}

// Stalled notes that the queue is not to wait for a batch any longer, and reports whether it goes
// on without it. If too many are detached, it goes on once Redis has answered one of these. If all
// fail, that one does soon, too, and with it those who wait behind it.
func (q *Queue) Stalled(b *Batch) bool {
	b.stalled = true
	return q.detach(b)
}

// detach lets the queue go on without a batch, if that has stalled, the queue waits for it, and not
// too many are detached. It reports whether it does.
func (q *Queue) detach(b *Batch) bool {
	if b == nil || !b.stalled || q.inFlight != b || q.detached >= MaxDetached {
		return false
	}
	b.state.To(BatchDetached)
	q.inFlight = nil
	q.detached++
	return true
}

// Changed notes that the limiter has changed, or that its node can be reached again: waiting
// requests are asked for at once, without a head start for other clients.
func (q *Queue) Changed() {
	if q.line.length > 0 {
		q.pacer.yieldNothing()
		q.change()
	}
}

// change notes that something may let requests be served earlier than their replies say. Each is
// asked for again, once those in front of it are served, and its batch, if it is in one, is
// complete.
func (q *Queue) change() { q.changes++ }

// stale reports whether something has changed since the reply to a request that is not in
// flight.
func (q *Queue) stale(r *Request) bool { return r.changes != q.changes }
