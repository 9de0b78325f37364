package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// A Kind says what a request does if too few permits are free.
type Kind uint8

const (
	Try  Kind = iota // it is refused
	Wait             // it waits
	UpTo             // it takes those that are free, and is in a batch of its own
)

// A Request is what one caller asks for. The caller sets the first fields, and reads Outcome once
// the request is settled.
type Request struct {
	Permits protocol.Permits
	Kind    Kind
	// the outcome of a refusal has the times when permits are free, though the request does not
	// wait
	Detail bool
	Next   bool // that of a grant has NextAfter
	// end of the timeout: a request whose permits are free only then or later is refused; zero:
	// none
	Until time.Time
	// when the caller leaves: at the end of its timeout or of its context; zero: not known
	End   time.Time
	Owner any // not used here
	// one for each limiter, while a request of a set waits
	Reservations []*Reservation

	// nil: Permits are at most the rate; otherwise the request may want more
	Instalments *Instalments
	// of the request or, while it waits, what the last reply said
	Outcome Outcome

	standing
	front inFront
	link
}

// A standing is how far a request has come.
type standing struct {
	state State
	last  bool   // the timeout is over: the next reply settles the request
	batch *Batch // the last one that carried it, while it is in flight
	asked int64  // number of that batch
	// how many changes (Queue.changes) the time counts that the request waits for: those before its
	// batch was sent, or before the fair share left it out
	changes int64
	// when its permits are free; zero: not known, or it waits only for the requests in front
	free time.Time
	// how long after free the permits are free, too, that return shortly after its own; 0 or less:
	// there are none
	togetherAfter time.Duration
}

// An inFront is what other callers wait for in front of a request of a set, and behind the request
// before it in the line.
type inFront struct {
	permits protocol.Permits
	undated bool // it is not known from when on some of these count
}

// add adds what a request further behind has in front of it.
func (f *inFront) add(other inFront) {
	add(&f.permits, other.permits, 1)
	f.undated = f.undated || other.undated
}

// InFlight reports whether the request is in a batch that is not complete.
func (r *Request) InFlight() bool { return r.state.InFlight() }

// FreeAt returns when the permits of one limiter of a set are free, by the last reply; zero: this
// is not known.
func (r *Request) FreeAt(limiter int) time.Time {
	if r.free.IsZero() {
		return r.free
	}
	longest := time.Duration(0)
	for other := range r.Outcome.Len() {
		longest = max(longest, r.Outcome.Of(other).RetryAfter)
	}
	return r.free.Add(r.Outcome.Of(limiter).RetryAfter - longest)
}

// Settled reports whether the outcome is final.
func (r *Request) Settled() bool { return r.state == Settled }

// mayWait reports whether a refused request goes on waiting for permits that are free at a time.
func (r *Request) mayWait(free time.Time) bool {
	return r.Kind == Wait && !r.last && (r.Until.IsZero() || free.Before(r.Until))
}

// A line holds the waiting requests in the order of arrival, those in flight included.
type line struct {
	first, rear *Request
	// Invariant: the first one that is not in flight; nil: all are
	ready  *Request
	length int
	// number of requests and reservations so far. Invariant: those in the line have rising places
	places int64
}

// A link is the place of a request in a line.
type link struct {
	prev, next *Request
	place      int64
}

// add adds a request at the end.
func (l *line) add(r *Request) {
	l.places++
	r.link = link{prev: l.rear, place: l.places}
	if l.rear == nil {
		l.first = r
	} else {
		l.rear.next = r
	}
	l.rear = r
	l.length++
	l.returned(r)
}

// remove takes a request out of the line.
func (l *line) remove(r *Request) {
	if r.prev == nil {
		l.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.rear = r.prev
	} else {
		r.next.prev = r.prev
	}
	l.length--
	l.left(r)
}

// left notes that a request is not ready any more: it is in flight, or was removed.
func (l *line) left(r *Request) {
	if l.ready != r {
		return
	}
	for r = r.next; r != nil && r.state.InFlight(); {
		r = r.next
	}
	l.ready = r
}

// returned notes that a request is not in flight.
func (l *line) returned(r *Request) {
	if l.ready == nil || r.place < l.ready.place {
		l.ready = r
	}
}
