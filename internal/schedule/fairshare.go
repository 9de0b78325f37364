package schedule

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// fairshare.go gives Redisson, and other Go processes, a head start for permits that return:
// package fairshare says for how many, and for how long. lastcall.go makes sure that this costs no
// caller its permits.

// headStart returns when the head start of other clients ends. A clock that is set back does not
// prolong it.
func (one *member) headStart(m Moment) time.Time {
	until := m.Clock.Add(one.yieldUntil.Mono.Sub(m.Mono))
	if one.yieldUntil.Clock.Before(until) {
		return one.yieldUntil.Clock
	}
	return until
}

// divide decides what to leave to other clients when n permits return, which are free at a time.
// They were refused to the first waiting request.
func (one *member) divide(m Moment, of *protocol.Member, since, free time.Time, n int64) {
	until := one.share.Divide(of.Shared(), since, free.Sub(since), n)
	if one.yieldUntil = (Moment{}); !until.IsZero() {
		one.yieldUntil = momentAt(m, until)
	}
}

// yieldNothing ends the head start of other clients.
func (p *pacer) yieldNothing() {
	for i := range p.members {
		p.members[i].yieldUntil = Moment{}
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
		if one := &q.pacer.members[i]; m.Clock.Before(one.headStart(m)) {
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
		if until := one.headStart(m); free.Before(until) {
			at, cause = latest(at, one.share.Ready(free, until, *r.Permits.Of(i))), OurTurn
		}
	}
	return at, cause
}
