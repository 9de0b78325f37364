package lease

// Forget drops the demand, what Tell returns, and what else has no effect on what a ledger decides
// without these, for searches through all orders of events (package smallscope). They choose how
// many permits a batch takes ahead.
func (l *Ledger) Forget() {
	if l == nil {
		return
	}
	l.demand, l.backs.returned, l.backs.void = Demand{}, 0, 0
	for _, held := range []*Lease{l.current.Load(), l.next} {
		if held != nil {
			held.Free, held.used = 0, 0
		}
	}
}

// May reports whether a batch may take permits ahead, whatever the demand.
func (l *Ledger) May(d Draft) bool { return l != nil && !l.refuses(d) }
