package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// wake.go says when a queue with waiting requests is due again, and why. The first waiting request
// is asked for when its permits are free, or later, so that other clients get their share
// (headstart.go), and that one call serves several requests; or earlier, because the limiter may
// have changed (poll.go), or because a caller leaves (lastcall.go).

// A Cause says what a queue waits for.
type Cause uint8

const (
	NextEvent   Cause = iota // nothing but the next event
	PermitsFree              // the permits of the first waiting request are free
	OurTurn                  // the fair share leaves free permits to other clients until then
	LastCall                 // a caller leaves soon
	Gathered                 // permits that return shortly after those of the first request are free, too
	Poll                     // a limiter may change without a signal
	LingerOver               // callers that were just answered have had the time to ask again
	NodeBack                 // the node of the limiter may be reached again
	LeaseEnds                // a lease is over, or what is known of it is not kept any longer
	MayBeLast                // the line is walked, to find out whether a last call is due earlier
)

var causeNames = [...]string{
	"next event", "permits free", "our turn", "last call", "gathered", "poll", "linger over", "node back",
	"lease ends", "may be last",
}

func (c Cause) String() string { return causeNames[c] }

// A wakeUp is a row of the table of what a queue waits for.
type wakeUp struct {
	at    time.Time // by the monotonic clock; zero: never
	cause Cause
}

// wakeUps is the table of what a queue waits for beside events: each row is a time and its cause:
// the time from which on Next has something to do for it. It is computed from the state, and
// changes nothing.
//
// Invariant: after Next, each time is to come. An event changes only the state, Next looks at all
// of it and does what is due, and whatever becomes due by time alone has its row here. So nothing
// is missed if Next is called again at the earliest of these times.
func (q *Queue) wakeUps() [6]wakeUp {
	p := &q.pacer
	return [...]wakeUp{
		{p.linger.until, LingerOver},
		{p.asks.Mono, p.cause}, // permits free, our turn, gathered, or node back
		{p.lastCall, LastCall},
		{p.poll, Poll},
		{p.walkAt(), MayBeLast},
		{q.ledger.SweepAt(), LeaseEnds},
	}
}

// Wake returns when Next is to be called again if nothing happens until then, by the monotonic
// clock, and why: the first row of the table. The zero time: after the next event.
func (q *Queue) Wake() (time.Time, Cause) {
	first := wakeUp{cause: NextEvent}
	for _, row := range q.wakeUps() {
		if !row.at.IsZero() && (first.at.IsZero() || row.at.Before(first.at)) {
			first = row
		}
	}
	return first.at, first.cause
}

// over reports whether a time by the monotonic clock has come. The zero time never comes.
func over(at time.Time, m Moment) bool { return !at.IsZero() && !m.Mono.Before(at) }

// A pacer knows when the queue is due next if nothing happens until then.
type pacer struct {
	// Invariant: asks, lastCall and poll are about line.ready. They are zero while the queue waits
	// for a batch, whose reply sets them, during a linger, and if no request waits.

	asks     Moment    // when to ask for it, unless one of the times below is earlier
	cause    Cause     // why then: PermitsFree, OurTurn, Gathered or NodeBack
	lastCall time.Time // the next last call before asks, by the monotonic clock; zero: none
	poll     time.Time // the next poll, by the monotonic clock; zero: asks is soon enough

	linger  linger
	polls   int      // polls in a row that slept to their end, at most mostPolls
	members []member // one for each limiter
	// the place of the request that the head starts of members belong to
	yieldsFor int64
	took      time.Duration // smoothed time of a call; 0: no reply yet

	// A request came or left since lastCall was computed, so there may be an earlier one.
	// Invariant: only if asks is set. It is a latch, since Join and Leave have no time, and many of
	// them share a walk through the line.
	unwalked bool
	walkedAt time.Time // when that was last walked for that reason
}

// A member is what the pacer knows of one limiter.
type member struct {
	share     fairshare.Share
	headStart headStart // of other clients
	// the longest time between two calls that keeps the limiter alive; 0: it has no keep-alive
	kept time.Duration
}

// unset lets the queue wait for the next event, or for the end of a linger.
func (p *pacer) unset() {
	p.asks, p.cause, p.lastCall, p.poll, p.unwalked = Moment{}, NextEvent, time.Time{}, time.Time{}, false
}

// stop ends the sleep of a queue without waiting requests. A linger goes on.
func (p *pacer) stop() {
	p.polls = 0
	p.unset()
}

// measured notes that a call took so long.
func (p *pacer) measured(took time.Duration) {
	if p.took == 0 {
		p.took = took
	}
	p.took += (took - p.took) / 8
}

// wakeAt lets the queue ask for its first request at a time, for a cause. It asks earlier at a
// poll, or for the last call of a caller whose permits are free before that time.
func (q *Queue) wakeAt(m Moment, at time.Time, cause Cause, poll time.Time) {
	p := &q.pacer
	p.unset()
	p.asks, p.cause, p.poll = momentAt(m, at), cause, poll
	if cause == OurTurn || cause == Gathered {
		p.lastCall = q.nextLastCall(m, at)
	}
}

// momentAt returns the moment at a time by the client's clock.
func momentAt(now Moment, at time.Time) Moment {
	return Moment{Clock: at, Mono: now.Mono.Add(at.Sub(now.Clock))}
}

// awake reports whether a call is due for a waiting request because a time of the table has come.
// It is not if more permits return shortly: the queue is then due once these are free.
func (q *Queue) awake(m Moment) bool {
	p := &q.pacer
	polled := over(p.poll, m)
	if !polled && !over(p.asks.Mono, m) && !over(p.lastCall, m) {
		return false
	}
	p.unset()
	if polled {
		p.polls = min(p.polls+1, mostPolls)
	}
	if r := q.line.ready; r != nil && q.line.length > 1 && !m.Clock.Before(r.free) {
		if at, cause := gather(r, m.Clock, PermitsFree); m.Clock.Before(at) {
			if q.wakeAt(m, at, cause, time.Time{}); !over(p.lastCall, m) {
				return false
			}
			p.unset()
		}
	}
	return q.line.length > 0
}

// plan decides, when a batch is complete, when the next one is due if nothing happens until then:
// at once (urgent), after a linger, or when the first waiting request can be served. g is the zero
// reply after an error. beaten: another client took permits that were free for a waiting request.
// late: the queue did not wait for the batch any longer, so no linger follows. It reports whether
// waiting requests sleep now.
func (q *Queue) plan(m Moment, b *Batch, g *protocol.Reply, beaten, late bool) (sleeps bool) {
	p, next := &q.pacer, q.line.ready
	if q.line.first == nil {
		p.stop()
	}
	switch {
	case q.inFlight != nil || p.linger.requests > 0: // their ends are events, or times to wake
	case !late && q.lingers(m, b, g):
	case q.urgent() || next == nil: // a batch is due, or all are in flight
	case next.asked != b.number: // the reply does not tell its turn, but Next finds it (unplanned)
	case g.Local():
		wait := min(max(next.free.Sub(m.Clock), 0), g.Retry)
		q.wakeAt(m, m.Clock.Add(wait), NodeBack, time.Time{})
	default:
		for i := range p.members {
			p.members[i].share.Saw(q.settings.Identity, g.Of(i).Shared())
		}
		q.sleep(m, next, g, beaten)
		return true
	}
	return false
}

// sleep lets the queue be due when next can be served according to g, or when the fair share of
// this process allows it.
func (q *Queue) sleep(m Moment, next *Request, g *protocol.Reply, beaten bool) {
	p, since, together := &q.pacer, q.Since(m, g), time.Duration(0)
	p.yieldsFor = next.place
	for i := range p.members {
		one, of := &p.members[i], g.Of(i)
		one.kept = Kept(of)
		one.headStart = headStart{}
		if next.FreeAt(i).After(since) {
			one.divide(m, of, since, next.free, *next.Permits.Of(i))
			together = max(together, of.Together)
		} else { // next does not wait for this limiter
			one.share.Dated(of.Interval, since.Sub(time.UnixMicro(of.Now)))
		}
	}
	poll := q.nextPoll(m, next.free.Sub(m.Clock))
	if poll.IsZero() {
		p.polls = 0
	} else {
		p.yieldNothing()
	}
	next.togetherAfter = since.Add(together).Sub(next.free)
	at, cause := q.turn(m, next)
	if beaten {
		at, cause = gather(next, at, cause)
	}
	q.wakeAt(m, at, cause, poll)
}

// sleepUntilTurn lets the queue be due at the turn of its first request that is not in flight,
// which the last reply does not tell: that was to another batch, or those in front of the request
// have left.
func (q *Queue) sleepUntilTurn(m Moment) {
	at, cause := q.turn(m, q.line.ready)
	poll, planned := q.nextPoll(m, at.Sub(m.Clock)), q.pacer.poll
	if !planned.IsZero() && (poll.IsZero() || planned.Before(poll)) { // callers that leave do not put it off
		poll = planned
	}
	q.wakeAt(m, at, cause, poll)
}

// gather returns when to ask for permits of a request and those that return shortly afterwards: at
// the time given, or later. If several callers wait, here or in other processes, one call then
// takes them all.
func gather(r *Request, at time.Time, cause Cause) (time.Time, Cause) {
	if together := r.free.Add(r.togetherAfter); at.Before(together) {
		return together, Gathered
	}
	return at, cause
}
