package lease

import (
	"slices"
	"sync/atomic"
)

// state.go copies a ledger, and tells whether two behave alike, for searches through all orders of
// events (package smallscope). They leave out what is known of the demand, and choose how many
// permits a batch takes ahead.

// Clone returns a copy that shares nothing with l, as of a client of its own.
func (l *Ledger) Clone() *Ledger {
	if l == nil {
		return nil
	}
	next := NewLedger(l.lasts, l.server, l.jitter, new(atomic.Int64))
	if held := l.current.Load(); held != nil {
		next.holding.Add(1)
		next.current.Store(held.clone())
	}
	if l.next != nil {
		next.next = l.next.clone()
	}
	next.refilling.Store(l.refilling.Load())
	next.sweeps, next.interval, next.demand = l.sweeps, l.interval, l.demand
	next.joint, next.jointAt = l.joint, l.jointAt
	next.changes, next.backs = l.changes, l.backs
	next.backs.waiting = slices.Clone(l.backs.waiting)
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
	if l == nil {
		return to
	}
	for _, held := range []*Lease{l.current.Load(), l.next} {
		if held != nil {
			to = append(to, -2, held.Permits, held.left.Load(), number(held.refill.Load()), held.At,
				held.Began.UnixMicro(),
				int64(held.Lasts), int64(held.Renews))
		}
	}
	for _, b := range l.backs.waiting {
		to = append(to, -4, b.Permits, b.At, int64(b.changes))
	}
	return append(
		to, -3, number(l.refilling.Load()), int64(l.interval), int64(l.changes), int64(l.backs.told),
		int64(l.backs.running), l.sweeps.UnixMicro(),
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
func (l *Ledger) May(d Draft) bool { return l != nil && !l.refuses(d) }

func number(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
