package lease

import (
	"sync"
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
// granted from one lease at a time. The ledger may already hold the lease that follows. It holds no
// lease while a caller waits (Bar).
//
// A nil Ledger is that of a limiter without leases. Take, Untake, MustRefill, Brought, Start, Done,
// Change and Sweep panic on it. The other methods of this file report that there is no lease, and
// have no other effect. The methods may be called at the same time.
type Ledger struct {
	lasts    time.Duration // of a lease, by the options
	server   bool          // the server's clock dates leases
	holding  *atomic.Int64 // ledgers of the client that have a lease
	giveBack func(Back) bool

	current atomic.Pointer[Lease] // nil: none; changed with mu held
	// the next batch asks for more permits than those of the lease
	refilling atomic.Bool

	// guards the fields below; methods with a lower-case name are called with it locked
	mu       sync.Mutex
	next     *Lease // follows current; nil: none
	interval time.Duration
	demand   Demand
	// permits that one call of AllowAll was granted; the next lease adds as many to its request
	joint   int64
	jointAt time.Time // when AllowAll last made a call for the limiter
	barred  int       // callers that wait
	changes Ticket    // changes of the limiter by this client that have begun
	backs   backs
}

// A Ticket tells which changes of the limiter had begun when a batch was sent. A lease that the
// batch brings after a later change is not used: its record is gone, or counts until it expires.
type Ticket int64

// NewLedger returns an empty Ledger. A lease lasts for the time lasts. holding counts the ledgers
// of a client that have a lease. The Ledger calls giveBack with permits that are to be given back.
// It holds its lock then, so giveBack must not call the Ledger. If giveBack returns true, Start
// must be called with these permits later.
func NewLedger(lasts time.Duration, server bool, holding *atomic.Int64, giveBack func(Back) bool) *Ledger {
	return &Ledger{lasts: lasts, server: server, holding: holding, giveBack: giveBack}
}

// Holds reports whether there is a lease, perhaps one that is used up or over.
func (l *Ledger) Holds() bool { return l != nil && l.current.Load() != nil }

// Idle reports whether there is no lease, and none to be given back.
func (l *Ledger) Idle() bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current.Load() == nil && l.backs.waiting == 0 && l.backs.running == 0
}

// Held returns how many permits can be granted.
func (l *Ledger) Held(m Moment) (n int64) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.current.Load(); held != nil && held.Valid(m.Clock, m.Mono) {
		n = held.Left()
	}
	if l.next != nil && l.next.Valid(m.Clock, m.Mono) {
		n += l.next.Permits
	}
	return n
}

// Take takes n permits. It returns the lease that had them and what is left in that, or nil. refill
// tells the caller, once, to send a batch that brings more.
func (l *Ledger) Take(n int64, m Moment) (from *Lease, left int64, refill bool) {
	for held := l.current.Load(); held != nil; {
		left, ok := held.Take(n, m.Clock, m.Mono)
		if ok {
			if refill = held.Refill(left, m.Mono); refill {
				l.refilling.Store(true)
			}
			return held, left, refill
		}
		over := held.Ended() || !held.Valid(m.Clock, m.Mono)
		l.mu.Lock()
		next := l.follow(held, n, over, m)
		l.mu.Unlock()
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
	l.mu.Lock()
	defer l.mu.Unlock()
	if held := l.current.Load(); held != nil && held.Valid(m.Clock, m.Mono) && held.Left() >= n {
		return held, held.Left() - n
	}
	if l.next != nil && l.next.Valid(m.Clock, m.Mono) && l.next.Permits >= n {
		return l.next, l.next.Permits - n
	}
	return nil, 0
}

// Untake gives back n permits that were just taken from a lease. If the lease has ended meanwhile,
// the permits stay counted, because its record may have been replaced by another one.
func (l *Ledger) Untake(held *Lease, n int64) {
	if !held.Untake(n) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.backs.void += n
	}
}

// follow returns the lease that follows held, or has followed it; nil if there is none with n
// permits. held ends if it is over.
func (l *Ledger) follow(held *Lease, n int64, over bool, m Moment) *Lease {
	switch {
	case l.current.Load() != held:
		return l.current.Load()
	case l.next != nil && (over || l.next.Permits >= n):
		l.expire(held)
		l.begin(l.next, m)
		l.next = nil
		return l.current.Load()
	case over:
		l.end()
	}
	return nil
}

// Refilling reports whether the next batch asks for more permits than those of the lease.
func (l *Ledger) Refilling() bool { return l != nil && l.refilling.Load() }

// MustRefill is Refilling, unless the lease has ended meanwhile.
func (l *Ledger) MustRefill() bool {
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.demand.Granted(n)
}

// Refused notes that a caller was refused, or that a call for a lease was in vain.
func (l *Ledger) Refused(mono time.Time) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.demand.Refused(mono)
}

// Together notes that a call of AllowAll, which takes no lease, granted n permits of the limiter,
// or refused some. It reports whether a batch is to bring a lease, since another such call was made
// shortly before.
func (l *Ledger) Together(n int64, refused bool, mono time.Time) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
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

// Bar ends the leases because a caller waits: their permits come back, for this caller first. The
// Ledger holds no lease until Unbar was called as often as Bar.
func (l *Ledger) Bar() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.barred++
	l.end()
}

// Unbar is called for each call of Bar.
func (l *Ledger) Unbar() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.barred--
}

// Ticket returns the ticket of a batch. It must be called before the caller checks whether a change
// is under way.
func (l *Ledger) Ticket() Ticket {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// A Draft is a batch before it is sent.
type Draft struct {
	Callers int
	Asked   int64 // permits that the callers ask for
	May     bool  // the batch may take permits ahead
}

// Wish returns how many permits a batch that is about to be sent takes ahead.
func (l *Ledger) Wish(d Draft, m Moment) int64 {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuses(d) {
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

// refuses reports whether a batch must not take permits ahead, whatever the demand. A lease that is
// used up gets more even if no refill was asked for: a call that should bring one may have stalled.
func (l *Ledger) refuses(d Draft) bool {
	refills, held := l.refilling.Swap(false), l.current.Load()
	return !d.May || l.barred > 0 || (held != nil && held.Left() > 0 || d.Callers == 0) && !refills ||
		held == nil && l.holding.Load() >= MaxLeases
}

// Saw notes the interval of the limiter.
func (l *Ledger) Saw(interval time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interval = interval
}

// bucket returns how long the buckets of time last that leases end with, as config.lua has it.
func (l *Ledger) bucket() time.Duration {
	if l.interval == 0 {
		return l.lasts
	}
	return min(l.lasts, max(l.interval/10, time.Millisecond).Truncate(time.Millisecond))
}

// Brought stores the lease that a batch with a Ticket has brought. late: the queue did not wait for
// the batch.
func (l *Ledger) Brought(t Ticket, held *Lease, late bool, m Moment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changes != t {
		l.backs.void += held.Permits
		return
	}
	held.Server = l.server
	held.Renews = Renews(held.Lasts, l.bucket())
	old := l.current.Load()
	switch {
	case late && old != nil || l.next != nil || l.barred > 0 || !held.Valid(m.Clock, m.Mono):
		l.back(held.Permits, held.At)
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
}

// used tells the demand how much of a lease was used.
func (l *Ledger) used(held *Lease) { l.demand.Granted(held.Used()) }

// end ends the leases, and gives back what is unused.
func (l *Ledger) end() {
	held := l.current.Load()
	if held == nil {
		return
	}
	l.expire(held)
	for _, unused := range l.detach() {
		l.back(unused.Permits, unused.At)
	}
}

// expire gives back what is unused of a lease that is over. The lease stays, and with it what is
// known of the demand.
func (l *Ledger) expire(held *Lease) {
	if unused := l.unused(held); WorthACall(unused, held.Rate, held.Interval, l.bucket()) {
		l.back(unused, held.At)
	} else {
		l.backs.void += unused
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
func (l *Ledger) detach() (unused [2]Back) {
	held, next := l.current.Load(), l.next
	unused[0] = Back{l.unused(held), held.At, l.changes}
	if next != nil {
		unused[1] = Back{next.Permits, next.At, l.changes}
	}
	l.next = nil
	l.current.Store(nil)
	l.refilling.Store(false) // a refill that was asked for is of this lease
	l.holding.Add(-1)
	return unused
}

// Change begins a change of the limiter by this client. The leases end. The caller gives back what
// is unused of them, without Start but with Done. The change must wait until givenBack, if it is
// not nil, is closed.
func (l *Ledger) Change() (unused []Back, givenBack <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes++
	if l.current.Load() != nil {
		for _, b := range l.detach() {
			if b.Permits > 0 {
				l.backs.start()
				unused = append(unused, b)
			}
		}
	}
	if l.backs.running > 0 {
		givenBack = l.backs.done
	}
	return unused, givenBack
}

// Sweep ends the leases that are over. It returns the time until it is to be called again; 0 if
// there is no lease. A lease that is over is kept for as long as it lasted: if the limiter is used
// again, its next lease has the right size at once.
func (l *Ledger) Sweep(m Moment) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.current.Load()
	if held == nil {
		return 0
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
			return 0
		}
		l.expire(held)
	}
	return max(ends, time.Millisecond)
}
