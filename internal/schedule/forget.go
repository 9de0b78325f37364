package schedule

import (
	"cmp"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
)

// Known says which parts of the state of a queue have no effect, now and later.
type Known struct {
	NoEnd   bool // no request has an End
	NoShare bool // no other client uses the limiter, or no request waits
}

// Forget makes queues of one limiter equal that decide alike from a time on, for searches through
// all orders of events (package smallscope): it drops what has no effect any more, and numbers
// batches and places anew. batches are those that are not complete. The demand for leases is
// forgotten, and so is what only Unanswered, RetryAfter and later refusals tell.
func (q *Queue) Forget(m Moment, batches []*Batch, known Known) {
	batches = slices.SortedFunc(slices.Values(batches), func(a, b *Batch) int {
		return cmp.Compare(a.number, b.number)
	})
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
	q.batches, q.changes, q.answered, q.verdicts = int64(len(batches)), 1, time.Time{}, nil
	q.line.places = 0
	for r := range q.Line() {
		q.line.places++
		if r.place, r.Outcome = q.line.places, (Outcome{}); !r.state.InFlight() {
			r.asked = 0
		}
	}
	for _, r := range q.trying {
		r.asked = 0
	}
	if p := &q.pacer; !m.Mono.Before(p.walkedAt.Add(walkPause)) {
		p.walkedAt = time.Time{}
	}
	if known.NoEnd {
		q.pacer.took = 0
	}
	for i := range q.pacer.members {
		if share := &q.pacer.members[i].share; known.NoEnd && known.NoShare { // it is not in question
			*share = fairshare.Share{Redisson: share.Redisson}
		}
	}
	q.ledger.Forget()
}
