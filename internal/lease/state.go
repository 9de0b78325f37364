package lease

import "sync/atomic"

// state.go copies a ledger, and tells whether two behave alike, for searches through all orders of
// events (package smallscope). They leave out what is known of the demand, and choose how many
// permits a batch takes ahead.

// Clone returns a copy that shares nothing with l, as of a client of its own.
func (l *Ledger) Clone(giveBack func(Back) bool) *Ledger {
	next := NewLedger(l.lasts, l.server, new(atomic.Int64), giveBack)
	if held := l.current.Load(); held != nil {
		next.holding.Add(1)
		next.current.Store(held.clone())
	}
	if l.next != nil {
		next.next = l.next.clone()
	}
	next.refilling.Store(l.refilling.Load())
	next.interval, next.demand, next.joint, next.jointAt = l.interval, l.demand, l.joint, l.jointAt
	next.barred, next.changes, next.backs = l.barred, l.changes, l.backs
	if next.backs.running > 0 {
		next.backs.done = make(chan struct{})
	}
	return next
}

func (l *Lease) clone() *Lease {
	next := &Lease{
		Rate: l.Rate, Interval: l.Interval, Free: l.Free, At: l.At, Began: l.Began, Lasts: l.Lasts, Server: l.Server,
		Permits: l.Permits, Renews: l.Renews, used: l.used,
	}
	next.left.Store(l.left.Load())
	next.refill.Store(l.refill.Load())
	return next
}

// AppendState appends numbers that differ if what follows may differ, but for the demand and what
// Tell returns.
func (l *Ledger) AppendState(to []int64) []int64 {
	for _, held := range []*Lease{l.current.Load(), l.next} {
		if held != nil {
			to = append(to, -2, held.Permits, held.left.Load(), number(held.refill.Load()), held.At,
				held.Began.UnixMicro(),
				int64(held.Lasts), int64(held.Renews))
		}
	}
	return append(
		to, -3, number(l.refilling.Load()), int64(l.interval), int64(l.barred), int64(l.changes),
		int64(l.backs.waiting),
		int64(l.backs.running),
	)
}

// Unused returns the permits that the leases have left, whether they are over or not.
func (l *Ledger) Unused() (n int64) {
	if held := l.current.Load(); held != nil {
		n = held.Left()
	}
	if l.next != nil {
		n += l.next.Permits
	}
	return n
}

// May reports whether a batch may take permits ahead, whatever the demand.
func (l *Ledger) May(d Draft) bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.refuses(d)
}

// GivenBack reports whether nothing is being given back.
func (l *Ledger) GivenBack() bool { return l.backs.running == 0 }

func number(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
