package schedule

import (
	"math"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// set.go schedules requests to several limiters at once, which grant all together or not at all. None of them waits for permits,
// so a set is never due later. Its requests are served in the order of arrival, but those that ask for the same numbers of permits
// as an earlier one of their batch are served together with that.

// A SetRequest is what one caller asks of a set of limiters. Results and an error are there once it is settled.
type SetRequest struct {
	Permits []int64 // of each limiter
	Owner   any     // not used here

	Results []Result
	At      []int64 // scores of the records of a grant, or when the process granted, µs
	Local   bool    // granted by the process
	Failed  int     // index of the limiter that Err is about; -1: of none
	Err     error

	state State
	batch *SetBatch // the last one that carried it
}

// InFlight reports whether the request is in a batch that is not complete.
func (r *SetRequest) InFlight() bool { return r.state.InFlight() }

// Settled reports whether the request has its results or its error.
func (r *SetRequest) Settled() bool { return r.state == Settled }

// A SetBatch is one call for many requests.
type SetBatch struct {
	Groups  []protocol.JointGroup // requests that ask for the same numbers of permits
	Settled []*SetRequest         // those that the reply settled
	Owner   any                   // not used here

	members  [][]*SetRequest // the requests of each group
	requests int             // in all groups
	state    BatchState
}

// Requests returns the number of requests.
func (b *SetBatch) Requests() int { return b.requests }

// Reset makes the batch like a new one, but for its memory.
func (b *SetBatch) Reset() {
	clear(b.Settled)
	*b = SetBatch{Groups: b.Groups[:0], Settled: b.Settled[:0], Owner: b.Owner, members: emptied(b.members)}
}

// add adds a request to the group of its numbers, and reports whether there was room.
func (b *SetBatch) add(r *SetRequest) bool {
	at := slices.IndexFunc(b.Groups, func(g protocol.JointGroup) bool { return slices.Equal(g.Sizes, r.Permits) })
	if at < 0 {
		if at = len(b.Groups); at == MaxGroups {
			return false
		}
		b.Groups = append(b.Groups, protocol.JointGroup{Sizes: r.Permits})
		b.members = oneMore(b.members)
	}
	b.Groups[at].Count++
	b.members[at] = append(b.members[at], r)
	b.requests++
	r.state.To(InFlight)
	r.batch = b
	return true
}

// A Set is the requests to some limiters in this process, and the batches in flight. It is not safe for concurrent use.
type Set struct {
	limiters int
	most     int           // requests in a batch
	queued   []*SetRequest // those that are not in flight
	inFlight *SetBatch     // the next batch is sent once this one is complete or detached
	detached int           // stalled batches in flight, which the next one does not wait for
}

// NewSet returns a set of some limiters without requests. With perRequest each grant gets a record of its own.
func NewSet(limiters int, perRequest bool) *Set {
	s := &Set{limiters: limiters, most: math.MaxInt}
	if perRequest {
		s.most = MaxRequests
	}
	return s
}

// Idle reports whether no request and no batch uses the set.
func (s *Set) Idle() bool { return len(s.queued) == 0 && s.inFlight == nil && s.detached == 0 }

// Queued returns the number of requests that are not in flight.
func (s *Set) Queued() int { return len(s.queued) }

// InFlight returns the number of requests in the batch that the set waits for.
func (s *Set) InFlight() int {
	if s.inFlight == nil {
		return 0
	}
	return s.inFlight.requests
}

// Join adds a request.
func (s *Set) Join(r *SetRequest) { s.queued = append(s.queued, r) }

// Leave takes away a request whose caller leaves. It returns the batch that carries the request; nil if it is not in flight. What
// that batch is granted for it stays taken.
func (s *Set) Leave(r *SetRequest) (carrier *SetBatch) {
	if r.state.InFlight() {
		r.state.To(Abandoned)
		return r.batch
	}
	r.state.To(Gone)
	s.queued = slices.DeleteFunc(s.queued, func(other *SetRequest) bool { return other == r })
	return nil
}

// Due reports whether a batch is due, for Fill.
func (s *Set) Due() bool { return s.inFlight == nil && len(s.queued) > 0 }

// Fill makes an empty batch the next one.
func (s *Set) Fill(b *SetBatch) {
	for b.requests < s.most && len(s.queued) > 0 && b.add(s.queued[0]) {
		s.queued[0] = nil
		s.queued = s.queued[1:]
	}
	b.state.To(BatchSent)
	s.inFlight = b
}

// Stalled notes that the set is not to wait for a batch any longer.
func (s *Set) Stalled(b *SetBatch) {
	if b.state == BatchSent && s.detached < MaxDetached {
		b.state.To(BatchDetached)
		s.inFlight = nil
		s.detached++
	}
}

// complete notes that a batch is complete, and reports whether the set did not wait for it any longer.
func (s *Set) complete(b *SetBatch) (late bool) {
	late = b.state == BatchDetached
	b.state.To(BatchComplete)
	if late {
		s.detached--
	} else {
		s.inFlight = nil
	}
	return late
}

// Settle applies a reply of Redis or of the process to the requests of a batch. It returns the facts of each limiter. A refused
// request whose wait is not known asks again.
func (s *Set) Settle(b *SetBatch, g *protocol.AllowAllReply) []Facts {
	facts := make([]Facts, s.limiters)
	s.complete(b)
	s.settleGranted(b, g, facts)
	var again []*SetRequest
	for at, members := range b.members {
		n, exceeded := g.Granted(at, b.Groups[at])
		for _, r := range members[max(n, 0):] {
			if n < 0 {
				if b.settle(r, exceeded, ErrExceedsRate) {
					facts[exceeded].Denied++
				}
				continue
			}
			results, known := s.refusal(g, at)
			switch {
			case !known && r.state == InFlight:
				r.state.To(Queued)
				again = append(again, r)
			case b.settle(r, -1, nil):
				r.Results = results
				for i, result := range results {
					if result.RetryAfter > 0 {
						facts[i].Denied++
					}
				}
			}
		}
	}
	s.queued = append(again, s.queued...)
	return facts
}

// settleGranted settles the requests that a reply grants: backwards, so that the permits left after each are known.
func (s *Set) settleGranted(b *SetBatch, g *protocol.AllowAllReply, facts []Facts) {
	free, at := make([]int64, s.limiters), make([]int64, s.limiters)
	for i, m := range g.Members {
		free[i], at[i] = m.Free, m.At
	}
	for group := len(b.members) - 1; group >= 0; group-- {
		n, _ := g.Granted(group, b.Groups[group])
		for j := int(n) - 1; j >= 0; j-- {
			r := b.members[group][j]
			claimed := b.settle(r, -1, nil)
			if claimed {
				r.Results, r.At, r.Local = make([]Result, s.limiters), at, g.Local()
			}
			for i, size := range b.Groups[group].Sizes {
				facts[i].Own += size
				if claimed {
					m := &g.Members[i]
					r.Results[i] = Result{true, m.Rate, free[i], 0, m.NextAfter, m.ResetAfter}
					facts[i].Granted++
				} else {
					facts[i].Unclaimed += size
				}
				free[i] += size
			}
		}
	}
}

// refusal returns the results of the refused requests of a group; known is false if the wait for a limiter is not known.
func (s *Set) refusal(g *protocol.AllowAllReply, group int) (results []Result, known bool) {
	results, known = make([]Result, s.limiters), true
	for i, m := range g.Members {
		wait, is := g.Wait(group, i)
		known = known && is
		results[i] = Result{false, m.Rate, m.Free, wait, m.NextAfter, m.ResetAfter}
	}
	return results, known
}

// Fail ends the requests of a batch with an error, which is about the limiter with the index failed; -1: about none. If behind is
// not nil, the requests that had to wait for the batch fail with that, without a call.
func (s *Set) Fail(b *SetBatch, failed int, err, behind error) (f Facts) {
	late := s.complete(b)
	for _, members := range b.members {
		for _, r := range members {
			if b.settle(r, failed, err) {
				f.Denied++
			}
		}
	}
	if behind != nil && !late {
		for _, r := range s.queued {
			b.settle(r, -1, behind)
		}
		f.Behind = len(s.queued)
		f.Denied += f.Behind
		s.queued = nil
	}
	return f
}

// settle ends a request, unless its caller has left. It reports whether it did.
func (b *SetBatch) settle(r *SetRequest, failed int, err error) bool {
	if r.state == Abandoned {
		r.state.To(Gone)
		return false
	}
	r.state.To(Settled)
	r.Failed, r.Err = failed, err
	b.Settled = append(b.Settled, r)
	return true
}
