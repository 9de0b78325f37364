package lease

// back.go gives back what is unused of the leases of a ledger, and counts what came back.

// A Back is permits of a lease that are to be given back.
type Back struct {
	Permits, At int64 // At is the score of their record, µs
	changes     Ticket
}

// backs has what is to be given back, and counts the permits.
type backs struct {
	waiting  []Back // that Returns has not told yet
	told     int    // that Returns has told, without Start yet
	running  int    // calls that give permits back
	returned int64  // permits that were given back since Tell was last called
	void     int64  // permits that were neither granted nor given back since then
}

// back gives back n permits of the record at a time.
func (l *Ledger) back(n, at int64) {
	if n > 0 {
		l.backs.waiting = append(l.backs.waiting, Back{n, at, l.changes})
	}
}

// Returns returns, once, what is to be given back. Start must be called for each.
func (l *Ledger) Returns() (all []Back) {
	if l == nil || l.backs.waiting == nil {
		return nil
	}
	all, l.backs.waiting = l.backs.waiting, nil
	l.backs.told += len(all)
	return all
}

// Start reports whether permits are to be given back now; Done must be called afterwards. They are
// not if the limiter was changed since, so that their record is gone or counts until it expires, or
// if there is too much to do.
func (l *Ledger) Start(b Back, tooMuch bool) bool {
	l.backs.told--
	if tooMuch || l.changes != b.changes {
		l.Void(b.Permits)
		return false
	}
	l.backs.running++
	return true
}

// Done notes how many permits of b were given back. The others count until an interval after the
// end of their lease.
func (l *Ledger) Done(b Back, returned int64) {
	l.backs.returned += returned
	l.Void(b.Permits - returned)
	l.backs.running--
}

// Returning reports whether permits are being given back.
func (l *Ledger) Returning() bool { return l.backs.running > 0 }

// Tell returns how many permits were given back, and how many were neither granted nor given back,
// since it was last called.
func (l *Ledger) Tell() (returned, void int64) {
	if l == nil {
		return 0, 0
	}
	returned, void = l.backs.returned, l.backs.void
	l.backs.returned, l.backs.void = 0, 0
	return returned, void
}
