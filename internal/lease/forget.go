package lease

// Forget makes ledgers equal that decide alike, for searches through all orders of events (package
// smallscope). These choose themselves how many permits a batch takes ahead. So it drops the
// demand, which decides that, and what is only told to callers.
func (l *Ledger) Forget() {
	if l == nil {
		return
	}
	l.demand, l.leftovers.returned, l.leftovers.void = Demand{}, 0, 0
	for _, held := range []*Lease{l.current.Load(), l.next} {
		if held != nil {
			held.Free, held.used = 0, 0
		}
	}
}
