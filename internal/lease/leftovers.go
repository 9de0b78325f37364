package lease

// leftovers.go has what is unused of the leases of a ledger that have ended, and counts what was
// given back of that.

// A Leftover is permits of a lease that are to be given back.
type Leftover struct {
	Permits, At int64 // At is the score of their record, µs
	changes     Ticket
}

// leftovers has what is to be given back, and counts the permits.
type leftovers struct {
	waiting  []Leftover // that Leftovers has not told yet
	told     int        // that Leftovers has told, without Start yet
	running  int        // calls that give permits back
	returned int64      // permits that were given back since Tell was last called
	void     int64      // permits that were neither granted nor given back since then
}

// giveBack lets n permits of the record with a score be given back.
func (l *Ledger) giveBack(n, at int64) {
	if n > 0 {
		l.leftovers.waiting = append(l.leftovers.waiting, Leftover{n, at, l.changes})
	}
}

// Leftovers returns, once, what is to be given back. Start must be called for each.
func (l *Ledger) Leftovers() (all []Leftover) {
	if l == nil || l.leftovers.waiting == nil {
		return nil
	}
	all, l.leftovers.waiting = l.leftovers.waiting, nil
	l.leftovers.told += len(all)
	return all
}

// Start reports whether permits are to be given back now; Done must be called afterwards. They are
// not if the limiter was changed since, so that their record is gone or counts until it expires, or
// if there is too much to do.
func (l *Ledger) Start(leftover Leftover, tooMuch bool) bool {
	l.leftovers.told--
	if tooMuch || l.changes != leftover.changes {
		l.Void(leftover.Permits)
		return false
	}
	l.leftovers.running++
	return true
}

// Done notes how many permits of a leftover were given back. The others count until an interval
// after the end of their lease.
func (l *Ledger) Done(leftover Leftover, returned int64) {
	l.leftovers.returned += returned
	l.Void(leftover.Permits - returned)
	l.leftovers.running--
}

// Returning reports whether permits are being given back.
func (l *Ledger) Returning() bool { return l.leftovers.running > 0 }

// Tell returns how many permits were given back, and how many were neither granted nor given back,
// since it was last called.
func (l *Ledger) Tell() (returned, void int64) {
	if l == nil {
		return 0, 0
	}
	returned, void = l.leftovers.returned, l.leftovers.void
	l.leftovers.returned, l.leftovers.void = 0, 0
	return returned, void
}
