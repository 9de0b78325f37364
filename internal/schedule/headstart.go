package schedule

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// headstart.go gives Redisson, and other Go processes, a head start for permits that return:
// package fairshare says for how many, and for how long. lastcall.go makes sure that this costs no
// caller its permits.

// A headStart is a time in which this process takes no more of a limiter than its fair share, so
// that other clients have the first call on the rest. It belongs to a waiting request. The zero
// value is over.
type headStart struct {
	until Moment
	lasts time.Duration // from when the permits of the request return
	wait  time.Duration // how long before that the request was refused
}

// headStartEnds returns when the head start of other clients ends. If the request that it belongs
// to is no longer the next one before its permits return, those behind may need no more than was
// free when it was refused. These permits, too, have been left to others for as long as the head
// start lasts.
func (q *Queue) headStartEnds(m Moment, one *member) time.Time {
	h := &one.headStart
	// A clock that is set back does not prolong it.
	until := m.Clock.Add(h.until.Mono.Sub(m.Mono))
	if h.until.Clock.Before(until) {
		until = h.until.Clock
	}
	gone := q.line.ready == nil || q.line.ready.place != q.pacer.yieldsFor
	if gone && h.wait > h.lasts && m.Clock.Before(until.Add(-h.lasts)) {
		return until.Add(-h.wait)
	}
	return until
}

// divide decides what to leave to other clients when n permits return, which are free at a time.
// They were refused to the first waiting request.
func (one *member) divide(m Moment, of *protocol.Member, since, free time.Time, n int64) {
	wait := free.Sub(since)
	until := one.share.Divide(of.Shared(), since, wait, n)
	if !until.IsZero() {
		one.headStart = headStart{momentAt(m, until), until.Sub(free), wait}
	}
}

// yieldNothing ends the head start of other clients.
func (p *pacer) yieldNothing() {
	for i := range p.members {
		p.members[i].headStart = headStart{}
	}
}

// SeeRedisson notes whether Redisson uses limiters on the server.
func (q *Queue) SeeRedisson(here bool) {
	news := here && !q.Redisson()
	for i := range q.pacer.members {
		q.pacer.members[i].share.Redisson = here
	}
	if news && q.line.length > 0 {
		q.change()
	}
}

// Redisson reports what SeeRedisson was last told.
func (q *Queue) Redisson() bool { return q.pacer.members[0].share.Redisson }

// GaveBack notes that n permits of this process returned early: granted at a time (µs), or the
// oldest ones if it is 0.
func (q *Queue) GaveBack(granted, n int64) { q.pacer.members[0].share.GaveBack(granted, n) }

// room returns how many permits the fair share leaves to the waiting requests now. If exempt is not
// nil, the requests up to that one may ask in any case.
func (q *Queue) room(m Moment) (permits protocol.Permits, exempt *Request) {
	permits = protocol.Same[int64](q.settings.Limiters, math.MaxInt64)
	yields := false
	for i := range q.pacer.members {
		if one := &q.pacer.members[i]; m.Clock.Before(q.headStartEnds(m, one)) {
			*permits.Of(i), yields = one.share.Room(m.Clock), true
		}
	}
	if yields {
		exempt = q.exempt(m.Clock)
	}
	return permits, exempt
}

// allowed reports whether a request may ask for its permits if there is so much room.
func (q *Queue) allowed(r *Request, room protocol.Permits) bool {
	for i := range q.pacer.members {
		if !q.pacer.members[i].share.Fits(*r.Permits.Of(i), *room.Of(i)) {
			return false
		}
	}
	return true
}

// turn returns when this process may ask for a request: once its permits are free, and during a
// head start of other clients only as far as the fair share has room.
func (q *Queue) turn(m Moment, r *Request) (time.Time, Cause) {
	free := latest(m.Clock, r.free)
	at, cause := free, PermitsFree
	for i := range q.pacer.members {
		one := &q.pacer.members[i]
		if until := q.headStartEnds(m, one); free.Before(until) {
			at, cause = latest(at, one.share.Ready(free, until, *r.Permits.Of(i))), OurTurn
		}
	}
	return at, cause
}
