package schedule

import (
	"cmp"
	"slices"
	"time"
)

// Forget makes queues of one limiter equal that decide alike from a time on, for searches through
// all orders of events (package smallscope): it drops what has no effect any more, and numbers
// batches and places anew. batches are those that are not complete. The demand for leases is
// forgotten, and so is what only Unanswered, RetryAfter and later refusals tell.
func (q *Queue) Forget(m Moment, batches []*Batch) {
	batches = slices.SortedFunc(slices.Values(batches), func(a, b *Batch) int {
		return cmp.Compare(a.number, b.number)
	})
	q.datesAnew(batches)
	for i, b := range batches {
		b.number, b.changes = int64(i+1), int64(oneIf(b.changes == q.changes))
		for _, members := range b.members {
			for _, r := range members {
				if r.asked = b.number; r.state == Abandoned {
					r.link = link{} // it is in no line
				}
			}
		}
	}
	for r := range q.Line() {
		r.changes = int64(oneIf(r.state == Queued || r.state.InFlight() || !q.stale(r)))
	}
	q.batches, q.changes, q.verdicts = int64(len(batches)), 1, nil
	if q.settings.Limiters == 1 && len(q.reservations) == 0 { // nothing tells it that its calls are outdated
		q.answered = time.Time{}
	}
	q.placesAnew()
	for r := range q.Line() {
		if q.settings.Limiters == 1 { // dates of a set follow from outcomes
			r.Outcome = Outcome{}
		}
		if !r.state.InFlight() {
			r.asked = 0
		}
	}
	for _, r := range q.trying {
		r.asked = 0
	}
	if p := &q.pacer; !m.Mono.Before(p.walkedAt.Add(walkPause)) {
		p.walkedAt = time.Time{}
	}
	q.ledger.Forget()
}

// placesAnew numbers the places of requests and reservations anew.
func (q *Queue) placesAnew() {
	q.line.places = 0
	others, yieldsFor := q.reservations, int64(0)
	next := func() int64 {
		q.line.places++
		return q.line.places
	}
	for r := range q.Line() {
		for ; len(others) > 0 && others[0].place < r.place; others = others[1:] {
			others[0].place = next()
		}
		place := next()
		if q.pacer.yieldsFor == r.place {
			yieldsFor = place
		}
		r.place = place
	}
	q.pacer.yieldsFor = yieldsFor
	for _, res := range others {
		res.place = next()
	}
}

// datesAnew numbers anew the batches whose replies have dated reservations of a set: behind those
// that are not complete and came before. Numbers that it gave stay.
func (q *Queue) datesAnew(batches []*Batch) {
	for r := range q.Line() {
		for _, res := range r.Reservations {
			earlier := slices.IndexFunc(batches, func(b *Batch) bool { return b.number >= res.dated })
			if earlier < 0 {
				earlier = len(batches)
			}
			res.dated = int64(earlier + 1)
		}
	}
}
