package schedule

import (
	"math"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// batch.go decides which requests a batch carries.

const (
	MaxGroups   = 256 // groups in one batch
	MaxRequests = 256 // requests in one batch if each grant gets a record of its own
)

// A Batch is one call for many requests.
type Batch struct {
	// a group is requests that ask for the same number of permits and stand next to each other
	Ask     protocol.BatchAsk
	Settled []*Request // those that the reply settled
	// refusals of requests that do not wait, which hold until the times that they name
	Refusals []denycache.Refusal
	Owner    any // not used here

	number   int64 // sequence number in its queue, from 1
	changes  int64 // Queue.changes when it was sent
	started  time.Time
	members  [][]*Request // the requests of each group
	requests int          // in all groups
	// the groups from this one on are behind a reservation whose date is not known; 0: none is
	undated int
	// Ask.Partial is set because the batch is full. If it is set without full, the fair share
	// leaves the rest to other clients, or a request in front will ask for more
	full  bool
	state BatchState

	stalled bool // the queue is not to wait for it

	// The owner of the queue fills it in: the client changes the limiter, so the batch takes
	// no lease.
	Changing bool
	ticket   lease.Ticket // for the lease that it brings
}

// Requests returns the number of requests.
func (b *Batch) Requests() int { return b.requests }

// State returns the state.
func (b *Batch) State() BatchState { return b.state }

// Reset makes the batch like a new one, but for its memory.
func (b *Batch) Reset() {
	clear(b.Settled)
	*b = Batch{
		Ask:      protocol.BatchAsk{Groups: b.Ask.Groups[:0]},
		Settled:  b.Settled[:0],
		Refusals: b.Refusals[:0],
		Owner:    b.Owner,
		members:  emptied(b.members),
	}
}

// emptied returns the members of a batch without requests and without groups. It keeps their memory
// for oneMore.
func emptied[R any](members [][]*R) [][]*R {
	for i := range members {
		clear(members[i])
		members[i] = members[i][:0]
	}
	return members[:0]
}

// oneMore returns members with one more group, which has no requests.
func oneMore[R any](members [][]*R) [][]*R {
	if n := len(members); n < cap(members) {
		return members[:n+1]
	}
	return append(members, nil)
}

// add adds a request to the group of its size, and reports whether there was room. A waiting
// request joins only the last group, which keeps the order; another one joins any group behind the
// strict ones. Waiting requests, which are added first, get at most half of the room, so that the
// others get a reply however long the line is.
func (b *Batch) add(r *Request, perRequest bool) bool {
	groups, requests, from := MaxGroups, MaxRequests, b.Ask.Strict
	if r.Kind == Wait {
		groups, requests, from = MaxGroups/2, MaxRequests/2, max(len(b.members)-1, 0)
	}
	if perRequest && b.requests >= requests {
		return false
	}
	at := from
	for at < len(b.members) && !b.carries(at, r) {
		at++
	}
	if at == len(b.members) {
		if at >= groups {
			return false
		}
		b.members = oneMore(b.members)
		b.Ask.Groups = append(b.Ask.Groups, protocol.Group{Permits: r.Permits})
		if r.Kind == Wait {
			b.Ask.Strict++
		}
	}
	b.Ask.Groups[at].Count++
	b.members[at] = append(b.members[at], r)
	b.requests++
	b.Ask.Detail = b.Ask.Detail || r.Detail
	b.Ask.Next = b.Ask.Next || r.Next
	r.state.To(InFlight)
	r.batch, r.asked = b, b.number
	return true
}

// carries reports whether a group is of requests for as many permits as r wants.
func (b *Batch) carries(group int, r *Request) bool {
	g := &b.Ask.Groups[group]
	return g.Count > 0 && protocol.Equal(g.Permits, r.Permits)
}

// keepFree adds a group that keeps permits from the requests behind it, and reports whether there
// was room.
func (b *Batch) keepFree(front inFront) bool {
	n := front.permits
	if !n.Any(func(n int64) bool { return n > 0 }) {
		return true
	}
	if len(b.members) >= MaxGroups-1 {
		return false
	}
	b.members = oneMore(b.members)
	b.Ask.Groups = append(b.Ask.Groups, protocol.Group{Permits: n})
	b.Ask.Strict++
	if front.undated && b.undated == 0 {
		b.undated = len(b.members)
	}
	return true
}

// fill makes an empty batch the next one, and reports whether there is something to ask. due was
// called before, and returned true.
func (q *Queue) fill(m Moment, b *Batch) bool {
	b.number, b.changes, b.started, b.ticket = q.batches+1, q.changes, m.Mono, q.ledger.Ticket()
	b.Ask.Rebuild = q.settings.Limiters == 1 && q.rebuild[0]
	if len(q.upTo) > 0 {
		b.Ask.UpTo = true
		b.add(q.upTo[0], false)
		q.upTo = slices.Delete(q.upTo, 0, 1)
		q.beside++
	} else {
		q.recheck = false
		q.carryTrying(m, b, q.carryWaiting(m, b))
		b.Ask.Apart = q.detached > 0 && q.settings.Granularity
		if b.Ask.Lease = q.takeAhead(m, b); b.requests == 0 && b.Ask.Lease == 0 {
			q.leftOut(m)
			return false
		}
		q.inFlight = b
		q.pacer.unset() // the reply says when the next call is due
	}
	q.batches++
	b.state.To(BatchSent)
	return true
}

// leftOut notes that a batch has no requests: the fair share leaves out the first one that is not
// in flight, or there is none.
func (q *Queue) leftOut(m Moment) {
	q.pacer.unset()
	if r := q.line.ready; r != nil {
		if r.state == Queued || q.stale(r) { // its permits may be free earlier than its reply says
			r.free = time.Time{}
		}
		if r.changes = q.changes; r.state == Queued {
			r.state.To(Resting)
		}
		q.sleepUntilTurn(m)
	}
}

// carryWaiting adds waiting requests, as far as there is room and the fair share allows it. It
// returns the place of the last one.
func (q *Queue) carryWaiting(m Moment, b *Batch) (place int64) {
	q.lookInFront(m.Clock)
	room, exempt := q.room(m)
	// what other callers wait for in front of r and behind the last request of the batch
	var front inFront
	for r := q.line.first; r != q.line.ready; r = r.next {
		front.add(r.front)
	}
	for r := q.line.ready; r != nil && !b.Ask.Partial; r = r.next {
		front.add(r.front)
		switch {
		case r.state.InFlight():
		case q.leaves(r):
			q.line.remove(r)
		default:
			q.looksAgain(r, m.Clock)
			if q.settings.Limiters == 1 {
				front.permits.First, front.undated = q.reserved(m.Clock, place, r.place)
			}
			may := q.allowed(r, room) || exempt != nil
			b.full = may && !(b.keepFree(front) && b.add(r, q.settings.RecordPerRequest))
			b.Ask.Partial = !may || b.full || q.wantsMore(r)
			add(&room, r.Permits, -1)
			front, place = inFront{}, r.place
		}
		if r == exempt {
			exempt = nil
		}
	}
	if q.line.ready != nil && q.line.ready.state.InFlight() {
		q.line.left(q.line.ready)
	}
	if q.line.length == 0 {
		q.pacer.stop()
	}
	return place
}

// carryTrying adds requests that do not wait, as far as there is room. place is that of the last
// waiting request which the batch carries.
func (q *Queue) carryTrying(m Moment, b *Batch, place int64) {
	if len(q.trying) > 0 && !b.Ask.Partial {
		kept, undated := q.reserved(m.Clock, place, math.MaxInt64)
		b.Ask.Partial = !b.keepFree(inFront{protocol.Permits{First: kept}, undated})
	}
	added := 0
	for _, r := range q.trying {
		if r.state == Queued && !q.leaves(r) && !b.add(r, q.settings.RecordPerRequest) {
			break
		}
		added++
	}
	rest := copy(q.trying, q.trying[added:])
	clear(q.trying[rest:])
	q.trying = q.trying[:rest]
}

// leaves reports whether the caller of a request is about to leave, and notes then that it has: a
// call would take permits that nobody gets. When the context of many callers ends, the first one
// that leaves makes a batch due, which drops them all.
func (q *Queue) leaves(r *Request) bool {
	if q.settings.Leaving == nil || !q.settings.Leaving(r) {
		return false
	}
	r.state.To(Gone)
	return true
}
