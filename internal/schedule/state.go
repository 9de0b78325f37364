package schedule

import (
	"slices"
	"time"
)

// state.go copies a queue, and tells whether two behave alike, for searches through all orders of
// events (package smallscope).

// Clone returns a copy of q, of its batches that are not complete, and of requests. The copies
// share nothing with the originals but Owner and errors.
func (q *Queue) Clone(batches []*Batch, requests []*Request) (*Queue, []*Batch, []*Request) {
	var c copier
	next := *q
	next.verdicts, next.reservations, next.rebuild = nil, slices.Clone(q.reservations), slices.Clone(q.rebuild)
	next.ledger = q.ledger.Clone()
	next.pacer.members = slices.Clone(q.pacer.members)
	for i := range next.pacer.members {
		next.pacer.members[i].share = q.pacer.members[i].share.Clone()
	}
	next.line.first, next.line.rear = nil, nil
	for r := q.line.first; r != nil; r = r.next {
		own := c.request(r)
		own.prev = next.line.rear
		if own.prev == nil {
			next.line.first = own
		} else {
			own.prev.next = own
		}
		next.line.rear = own
	}
	next.line.ready = c.request(q.line.ready)
	next.trying, next.upTo = c.all(q.trying), c.all(q.upTo)
	next.inFlight = c.batch(q.inFlight)
	copied := make([]*Batch, len(batches))
	for i, b := range batches {
		copied[i] = c.batch(b)
	}
	return &next, copied, c.all(requests)
}

// A copier has what was copied so far: each original, and its copy.
type copier struct {
	requests [][2]*Request
	batches  [][2]*Batch
}

// request returns the copy of a request, without its place in a line.
func (c *copier) request(r *Request) *Request {
	if r == nil {
		return nil
	}
	for _, known := range c.requests {
		if known[0] == r {
			return known[1]
		}
	}
	next := new(Request)
	*next = *r
	next.link = link{place: r.place}
	c.requests = append(c.requests, [2]*Request{r, next})
	if next.batch = nil; r.state.InFlight() {
		next.batch = c.batch(r.batch)
	}
	return next
}

func (c *copier) all(requests []*Request) []*Request {
	all := make([]*Request, len(requests))
	for i, r := range requests {
		all[i] = c.request(r)
	}
	return all
}

func (c *copier) batch(b *Batch) *Batch {
	if b == nil {
		return nil
	}
	for _, known := range c.batches {
		if known[0] == b {
			return known[1]
		}
	}
	next := new(Batch)
	*next = *b
	c.batches = append(c.batches, [2]*Batch{b, next})
	next.Ask.Groups, next.Settled = slices.Clone(b.Ask.Groups), c.all(b.Settled)
	next.members = make([][]*Request, len(b.members))
	for i, members := range b.members {
		next.members[i] = c.all(members)
	}
	return next
}

// Known says which parts of the state of a queue have no effect, now and later.
type Known struct {
	NoEnd   bool // no request has an End
	NoShare bool // no other client uses the limiter, or no request waits
}

// AppendState appends numbers that differ if what follows from a time on may differ. They have all
// requests in the order given, and then the queue and its batches that are not complete.
func (q *Queue) AppendState(to []int64, m Moment, batches []*Batch, requests []*Request, known Known) []int64 {
	s := state{numbers: to, batches: batches, changes: q.changes}
	for _, r := range requests {
		s.request(r)
	}
	for r := q.line.first; r != nil; r = r.next {
		s.request(r)
	}
	s.requests(q.trying)
	s.requests(q.upTo)
	s.add(
		int64(slices.Index(batches, q.inFlight)), int64(q.detached), int64(q.beside), number(q.recheck),
		q.rates.first, q.local.first,
	)
	s.add(q.rates.rest...)
	s.add(q.local.rest...)
	for _, k := range q.reservations {
		s.add(k.N, nanos(k.from), k.place)
	}
	for _, b := range batches {
		s.batch(b)
	}
	for _, pending := range q.rebuild {
		s.add(number(pending))
	}
	s.numbers = q.ledger.AppendState(s.numbers)
	p := &q.pacer
	s.add(nanos(p.wake.Clock), nanos(p.wake.Mono), int64(p.linger), int64(p.cause), int64(p.polls), number(p.hurry))
	for i := range p.members {
		s.add(nanos(p.members[i].yieldUntil))
	}
	if !known.NoEnd {
		s.add(int64(p.took))
	}
	if m.Mono.Before(p.walkedAt.Add(walkPause)) {
		s.add(nanos(p.walkedAt))
	}
	if known.NoEnd && known.NoShare { // the fair share is not in question
		return s.numbers
	}
	for i := range p.members {
		s.numbers = p.members[i].share.AppendState(s.numbers)
	}
	return s.numbers
}

// A state is numbers, and the requests and batches that they have by a number.
type state struct {
	numbers []int64
	known   []*Request
	batches []*Batch
	changes int64 // Queue.changes
}

func (s *state) add(numbers ...int64) { s.numbers = append(s.numbers, numbers...) }

// request adds a request, or its number if it was added before.
func (s *state) request(r *Request) {
	if at := slices.Index(s.known, r); at >= 0 {
		s.add(int64(at))
		return
	}
	s.known = append(s.known, r)
	asked := slices.IndexFunc(s.batches, func(b *Batch) bool { return b.number == r.asked })
	s.add(r.Rest...)
	s.add(
		-1, r.N, int64(r.Kind), number(r.Detail), number(r.Next), nanos(r.Until), nanos(r.End), int64(r.state),
		number(r.last), int64(asked), nanos(r.free), int64(r.together),
	)
}

func (s *state) requests(all []*Request) {
	s.add(int64(len(all)))
	for _, r := range all {
		s.request(r)
	}
}

func (s *state) batch(b *Batch) {
	a := &b.Ask
	s.add(
		int64(b.state), nanos(b.started), number(b.changes != s.changes), number(b.full), int64(b.undated),
		int64(len(b.members)),
		int64(a.Strict),
		number(a.UpTo),
		number(a.Detail), number(a.Next), number(a.Rebuild), number(a.Check), number(a.Partial), number(a.Apart),
		a.Lease, int64(b.ticket),
	)
	for _, members := range b.members {
		s.requests(members)
	}
}

// nanos returns a time in ns since 1970; 0 for the zero time.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func number(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
