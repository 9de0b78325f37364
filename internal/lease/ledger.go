package lease

import (
	"sync/atomic"
	"time"
)

// ledger.go has the leases of one limiter: which one requests are granted from, when the next one
// is asked for, and what is given back. It makes no calls to Redis.

// A Moment is a time by two clocks: the one that dates grants, and one with a monotonic reading.
type Moment struct{ Clock, Mono time.Time }

// add returns the moment after some time.
func (m Moment) add(d time.Duration) Moment { return Moment{m.Clock.Add(d), m.Mono.Add(d)} }

// MaxLeases is for how many limiters a client holds leases at a time.
const MaxLeases = 1 << 16

// A Ledger holds the permits that this process has taken ahead for one limiter. Requests are
// granted from one lease at a time. The ledger may already hold the lease that follows.
//
// Its owner calls one method at a time. Only Holds and Grant may be called at any time.
//
// A nil Ledger is that of a limiter without leases. Grant, Take, Void, Brought, Start, Done,
// Change, Returning and Sweep panic on it. Its other methods report that there is no lease, and
// have no other effect.
type Ledger struct {
	lasts   time.Duration                     // of the longest leases, by the options
	server  bool                              // the server's clock dates leases
	jitter  func(time.Duration) time.Duration // returns a random time below the given one
	holding *atomic.Int64                     // ledgers of the client that have a lease

	current atomic.Pointer[Lease] // nil: none; the owner changes it
	// the next batch asks for a further lease
	refilling atomic.Bool

	next     *Lease    // follows current; nil: none
	sweeps   time.Time // when Sweep is due, by the monotonic clock; zero: there is no lease
	interval time.Duration
	demand   Demand
	// permits that a call for a set was granted; the next lease adds as many to its request
	joint   int64
	jointAt time.Time // when the last call for a set was made
	changes Ticket    // changes of the limiter by this client that have begun
	leftovers
}

// A Ticket tells which changes of the limiter had begun when a batch was sent. A lease that the
// batch brings after a later change is not used: its record is gone, or counts until it expires.
type Ticket int64

// NewLedger returns an empty Ledger. A lease lasts for about the time lasts, or for a tenth of the
// interval if that is shorter. holding counts the ledgers of a client that have a lease.
func NewLedger(
	lasts time.Duration, server bool, jitter func(time.Duration) time.Duration, holding *atomic.Int64,
) *Ledger {
	return &Ledger{lasts: lasts, server: server, jitter: jitter, holding: holding}
}

// Holds reports whether there is a lease, perhaps one that is used up or over.
func (l *Ledger) Holds() bool { return l != nil && l.current.Load() != nil }

// Idle reports whether there is no lease, and none to be given back.
func (l *Ledger) Idle() bool {
	if l == nil {
		return true
	}
	return l.current.Load() == nil && len(l.leftovers.waiting)+l.leftovers.told+l.leftovers.running == 0
}

// Held returns how many permits can be granted.
func (l *Ledger) Held(m Moment) (n int64) {
	if l == nil {
		return 0
	}
	if held := l.current.Load(); held != nil && held.Valid(m.Clock, m.Mono) {
		n = held.Left()
	}
	if l.next != nil && l.next.Valid(m.Clock, m.Mono) {
		n += l.next.Permits
	}
	return n
}

// Grant takes n permits of the lease. It returns the lease and what is left in it, or nil: then
// Take finds out whether another lease has them. refill tells the caller, once, to send a batch
// that brings more.
func (l *Ledger) Grant(n int64, m Moment) (from *Lease, left int64, refill bool) {
	held := l.current.Load()
	if held == nil {
		return nil, 0, false
	}
	left, ok := held.Take(n, m.Clock, m.Mono)
	if !ok {
		return nil, 0, false
	}
	if refill = held.Refill(left, m.Mono); refill {
		l.refilling.Store(true)
	}
	return held, left, refill
}

// Take is Grant, but ends a lease that is over, and goes on with the one that follows.
func (l *Ledger) Take(n int64, m Moment) (from *Lease, left int64, refill bool) {
	for held := l.current.Load(); held != nil; {
		if from, left, refill = l.Grant(n, m); from != nil {
			return from, left, refill
		}
		over := held.Ended() || !held.Valid(m.Clock, m.Mono)
		next := l.follow(held, n, over, m)
		if next == nil && !over && held.Refill(0, m.Mono) {
			l.refilling.Store(true) // the call for this request takes more
		}
		held = next
	}
	return nil, 0, false
}

// Offers returns the lease from which Take would take n permits, and what would be left in that;
// nil if there is none.
func (l *Ledger) Offers(n int64, m Moment) (from *Lease, left int64) {
	if l == nil {
		return nil, 0
	}
	if held := l.current.Load(); held != nil && held.Valid(m.Clock, m.Mono) && held.Left() >= n {
		return held, held.Left() - n
	}
	if l.next != nil && l.next.Valid(m.Clock, m.Mono) && l.next.Permits >= n {
		return l.next, l.next.Permits - n
	}
	return nil, 0
}

// Void notes that n permits of a lease were neither granted nor given back.
func (l *Ledger) Void(n int64) { l.leftovers.void += n }

// follow ends held, and returns the lease that follows it, if held is over or that one has n
// permits. It returns nil if there is none, or if held goes on.
func (l *Ledger) follow(held *Lease, n int64, over bool, m Moment) *Lease {
	switch {
	case l.next != nil && (over || l.next.Permits >= n):
		l.expire(held)
		l.begin(l.next, m)
		l.next = nil
		return l.current.Load()
	case over:
		l.expire(held)
		l.End()
	}
	return nil
}

// ConfirmRefill reports whether the next batch asks for a further lease. If the lease has ended
// since it was to be refilled, that is forgotten.
func (l *Ledger) ConfirmRefill() bool {
	if l == nil {
		return false
	}
	if !l.Holds() {
		l.refilling.Store(false)
	}
	return l.refilling.Load()
}

// Granted notes that a call granted n permits.
func (l *Ledger) Granted(n int64) {
	if l == nil {
		return
	}
	l.demand.Granted(n)
}

// Refused notes that a caller was refused, or that a call for a lease was in vain.
func (l *Ledger) Refused(mono time.Time) {
	if l == nil {
		return
	}
	l.demand.Refused(mono)
}

// JointCall notes that a call for a set, which takes no lease, granted n permits of the limiter, or
// refused some. It reports whether a batch is to bring a lease, since another such call was made
// shortly before.
func (l *Ledger) JointCall(n int64, refused bool, mono time.Time) bool {
	if l == nil {
		return false
	}
	again := mono.Sub(l.jointAt) < l.lasts
	l.jointAt = mono
	l.demand.Granted(n)
	if refused {
		l.demand.Refused(mono)
		return false
	}
	if held := l.current.Load(); !again || held != nil && held.Left() > 0 && !l.refilling.Load() {
		return false
	}
	l.joint = n
	l.refilling.Store(true)
	return true
}

// Ticket returns the ticket of a batch that is about to be sent.
func (l *Ledger) Ticket() Ticket {
	if l == nil {
		return 0
	}
	return l.changes
}

// A Draft is a batch before it is sent.
type Draft struct {
	Callers int
	Asked   int64 // permits that the callers ask for
	// the batch may take permits ahead, as far as its queue knows
	May bool
}

// TakeAhead returns how many permits a batch that is about to be sent takes ahead. It begins with
// AnswerRefill.
func (l *Ledger) TakeAhead(d Draft, m Moment) int64 {
	if !l.AnswerRefill(d) {
		return 0
	}
	asked := min(l.joint+d.Asked, most)
	l.joint = 0
	var left int64
	var ends time.Duration
	if held := l.current.Load(); held != nil && !held.Ended() {
		l.used(held)
		left = held.Left()
		l.demand.Measure(m.Mono, left == 0)
		ends = held.Ends(m.Clock, m.Mono)
	}
	bucket := l.bucket()
	return l.demand.Want(m.Mono, bucket, Rest(m.Clock, bucket), asked, left, ends)
}

// AnswerRefill reports whether a batch that is about to be sent may take permits ahead, whatever
// the demand. If a refill was asked for, this batch is the answer, even if it may take none: later
// ones do not refill the lease for the same reason. A lease that is used up gets more even if no
// refill was asked for: a call that should bring one may have stalled.
func (l *Ledger) AnswerRefill(d Draft) (may bool) {
	if l == nil {
		return false
	}
	asked, held := l.refilling.Swap(false), l.current.Load()
	needed := asked || d.Callers > 0 && (held == nil || held.Left() == 0)
	return d.May && needed && (held != nil || l.holding.Load() < MaxLeases)
}

// Saw notes the interval of the limiter.
func (l *Ledger) Saw(interval time.Duration) {
	if l == nil {
		return
	}
	l.interval = interval
}

// bucket returns how long the buckets of time last that leases end with, as config.lua has it.
func (l *Ledger) bucket() time.Duration {
	if l.interval == 0 {
		return l.lasts
	}
	return min(l.lasts, max(l.interval/10, time.Millisecond).Truncate(time.Millisecond))
}

// A Delivery is a lease that a batch has brought.
type Delivery struct {
	*Lease
	Ticket   Ticket // of the batch
	Late     bool   // the queue did not wait for the batch
	Unwanted bool   // callers wait for its permits
}

// Brought holds a lease, unless nothing can be granted from it.
func (l *Ledger) Brought(d Delivery, m Moment) {
	held := d.Lease
	if l.changes != d.Ticket {
		l.Void(held.Permits)
		return
	}
	held.Server = l.server
	held.Renews = Renews(held.Lasts, l.bucket(), l.jitter)
	old := l.current.Load()
	switch {
	case d.Late && old != nil || l.next != nil || d.Unwanted || !held.Valid(m.Clock, m.Mono):
		l.giveBack(held.Permits, held.At)
	case old == nil:
		l.holding.Add(1)
		l.begin(held, m)
	case !old.Valid(m.Clock, m.Mono):
		l.expire(old)
		l.begin(held, m)
	case old.At == held.At:
		l.used(old)
		held.Permits += old.End()
		l.begin(held, m)
	default:
		l.next = held // it follows
	}
}

// begin lets requests take permits of a lease.
func (l *Ledger) begin(held *Lease, m Moment) {
	held.Begin()
	l.demand.Begin(m.Mono)
	l.current.Store(held)
	l.sweeps = m.Mono.Add(held.Ends(m.Clock, m.Mono))
}

// used tells the demand how much of a lease was used.
func (l *Ledger) used(held *Lease) { l.demand.Granted(held.Used()) }

// End ends the leases because a caller waits, and gives back all that is unused: that caller may
// need it.
func (l *Ledger) End() {
	if !l.Holds() {
		return
	}
	for _, unused := range l.detach() {
		l.giveBack(unused.Permits, unused.At)
	}
}

// expire gives back what is unused of a lease that is over, if that is worth a call. The lease
// stays, so that its queue is not dropped, and with it what is known of the demand.
func (l *Ledger) expire(held *Lease) {
	if unused := l.unused(held); WorthACall(unused, held.Rate, held.Interval, l.bucket()) {
		l.giveBack(unused, held.At)
	} else {
		l.Void(unused)
	}
}

// unused ends a lease that has not ended yet, and returns the permits that were not granted.
func (l *Ledger) unused(held *Lease) int64 {
	if held.Ended() {
		return 0
	}
	l.used(held)
	return held.End()
}

// detach removes the leases, and returns what is unused of them.
func (l *Ledger) detach() (unused [2]Leftover) {
	held, next := l.current.Load(), l.next
	unused[0] = Leftover{l.unused(held), held.At, l.changes}
	if next != nil {
		unused[1] = Leftover{next.Permits, next.At, l.changes}
	}
	l.next, l.sweeps = nil, time.Time{}
	l.current.Store(nil)
	l.refilling.Store(false) // a refill that was asked for is of this lease
	l.holding.Add(-1)
	return unused
}

// Change begins a change of the limiter by this client. The leases end. The caller gives back what
// is unused of them, without Start but with Done. The change must wait while Returning.
func (l *Ledger) Change() (unused []Leftover) {
	l.changes++
	if l.current.Load() != nil {
		for _, b := range l.detach() {
			if b.Permits > 0 {
				l.leftovers.running++
				unused = append(unused, b)
			}
		}
	}
	return unused
}

// SweepAt returns when Sweep is due, by the monotonic clock. The zero time: there is no lease.
func (l *Ledger) SweepAt() time.Time {
	if l == nil {
		return time.Time{}
	}
	return l.sweeps
}

// Sweep gives back what is unused of a lease that is over, and removes it a lease's time later: if
// the limiter is used again until then, its next lease has the right size at once.
func (l *Ledger) Sweep(m Moment) {
	held := l.current.Load()
	if held == nil {
		return
	}
	ends := held.Ends(m.Clock, m.Mono)
	if ends == 0 {
		if next := l.follow(held, 0, false, m); next != nil {
			held, ends = next, next.Ends(m.Clock, m.Mono)
		}
	}
	if ends == 0 {
		kept := m.add(-l.lasts)
		if ends = held.Ends(kept.Clock, kept.Mono); ends == 0 {
			l.follow(held, 0, true, m)
			return
		}
		l.expire(held)
	}
	l.sweeps = m.Mono.Add(max(ends, time.Millisecond))
}
