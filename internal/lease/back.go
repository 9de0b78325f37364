package lease

// back.go gives back what is unused of the leases of a ledger, and counts what came back.

// A Back is permits of a lease that are to be given back.
type Back struct {
	Permits, At int64 // At is the score of their record, µs
	changes     Ticket
}

// backs counts the calls that give permits back, and their permits.
type backs struct {
	waiting  int           // calls of giveBack that no call of Start has followed yet
	running  int           // calls that give permits back
	done     chan struct{} // closed when none runs
	returned int64         // permits that were given back since Tell was last called
	void     int64         // permits that were neither granted nor given back since then
}

// start notes a call that gives permits back.
func (b *backs) start() {
	if b.running++; b.running == 1 {
		b.done = make(chan struct{})
	}
}

// end notes the end of such a call.
func (b *backs) end() {
	if b.running--; b.running == 0 {
		close(b.done)
	}
}

// back calls giveBack. If giveBack returns false, the permits count until their record expires.
func (l *Ledger) back(n, at int64) {
	switch {
	case n == 0:
	case l.giveBack(Back{n, at, l.changes}):
		l.backs.waiting++
	default:
		l.backs.void += n
	}
}

// Start reports whether permits are to be given back now; Done must be called afterwards. They are
// not if the limiter was changed since: their record is gone, or counts until it expires.
func (l *Ledger) Start(b Back) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backs.waiting--
	if l.changes != b.changes {
		l.backs.void += b.Permits
		return false
	}
	l.backs.start()
	return true
}

// Done notes how many permits of b were given back. The others count until an interval after the
// end of their lease.
func (l *Ledger) Done(b Back, returned int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.backs.returned += returned
	l.backs.void += b.Permits - returned
	l.backs.end()
}

// Tell returns how many permits were given back, and how many were neither granted nor given back,
// since it was last called.
func (l *Ledger) Tell() (returned, void int64) {
	if l == nil {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	returned, void = l.backs.returned, l.backs.void
	l.backs.returned, l.backs.void = 0, 0
	return returned, void
}
