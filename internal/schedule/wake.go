package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// pacer.go decides when to ask for the first waiting request: when its permits are free, or later,
// so that other clients get their share (package fairshare) and that one call serves several
// requests; or earlier, since the limiter may change (polls) or a caller leave (lastcall.go).

// LingerThreshold is how long a batch takes before the queue lingers after it, for up to a tenth of
// its time. Callers that have just been answered mostly ask again at once; without the linger they
// would miss the next batch and wait for two.
const LingerThreshold = 2 * time.Millisecond

// A long sleep is cut into polls, because changes made by other processes, such as a raised rate or
// released permits, send no signal. Polls double with each one that slept to its end. A batch that
// is sent meanwhile for a request that does not wait asks for the waiting requests, too, and does
// not lengthen the polls.
const (
	shortestPoll = time.Second
	longestPoll  = 15 * time.Second
	mostPolls    = 4 // after so many the polls are of the longest kind

	// While callers wait, a limiter with a keep-alive is kept for an interval and a second after
	// each call. So they poll it about an interval and keepSlack after the last call.
	keepSlack = time.Second / 2

	// A poll shortly before the permits return would be in vain. So a sleep that ends at most so
	// long after a poll is not cut.
	pollSlack = shortestPoll / 8
)

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
	MayBeLast                // it is found out whether a last call is due earlier
)

var causeNames = [...]string{
	"next event", "permits free", "our turn", "last call", "gathered", "poll", "linger over", "node back",
	"lease ends", "may be last",
}

func (c Cause) String() string { return causeNames[c] }

// A pacer knows when the queue is due next if nothing happens until then.
type pacer struct {
	wake  Moment // when that is; zero: never
	cause Cause  // why then
	// the queue lingers: the next batch is sent at wake, or once this many requests queue; 0: it
	// does not
	linger  int
	polls   int           // polls in a row that slept to their end, at most mostPolls
	members []member      // one for each limiter
	took    time.Duration // smoothed time of a call; 0: no reply yet
	// a request came or left, so a last call may be due before wake
	hurry    bool
	walkedAt time.Time // when that was last looked for
}

// A member is what the fair share needs of one limiter.
type member struct {
	share fairshare.Share
	// until then by both clocks, this process takes no more than its fair share
	yieldUntil Moment
	// the longest time between two calls that keeps the limiter alive; 0: it has no keep-alive
	kept time.Duration
}

// headStart returns when the head start of other clients ends. A clock that is set back does not
// prolong it.
func (one *member) headStart(m Moment) time.Time {
	until := m.Clock.Add(one.yieldUntil.Mono.Sub(m.Mono))
	if one.yieldUntil.Clock.Before(until) {
		return one.yieldUntil.Clock
	}
	return until
}

// yieldNothing ends the head start of other clients.
func (p *pacer) yieldNothing() {
	for i := range p.members {
		p.members[i].yieldUntil = Moment{}
	}
}

// set lets the queue be due after a wait.
func (p *pacer) set(m Moment, wait time.Duration, cause Cause) {
	p.wake, p.cause = Moment{Clock: m.Clock.Add(wait), Mono: m.Mono.Add(wait)}, cause
}

// unset lets the queue be due after the next event only.
func (p *pacer) unset() { p.wake, p.cause = Moment{}, NextEvent }

// stop ends the sleep of a queue without waiting requests. A linger goes on.
func (p *pacer) stop() {
	p.polls = 0
	if p.linger == 0 {
		p.unset()
	}
}

// endLinger ends a linger.
func (p *pacer) endLinger() {
	if p.linger > 0 {
		p.linger = 0
		p.unset()
	}
}

// measured notes that a call took so long.
func (p *pacer) measured(took time.Duration) {
	if p.took == 0 {
		p.took = took
	}
	p.took += (took - p.took) / 8
}

// awake notes that the time to wake has come: a call is due, unless that is better made a little
// later.
func (q *Queue) awake(m Moment) {
	p := &q.pacer
	polled := p.cause == Poll
	p.unset()
	if q.line.length == 0 {
		return
	}
	if polled {
		p.polls = min(p.polls+1, mostPolls)
	}
	if r := q.line.ready; r != nil && q.line.length > 1 && !m.Clock.Before(r.free) {
		if at, cause := q.gather(r, m.Clock, PermitsFree); m.Clock.Before(at) {
			p.set(m, at.Sub(m.Clock), cause)
			return
		}
	}
	q.recheck = true
}

// plan decides, when a batch is complete, when the next one is due if nothing happens until then:
// at once (urgent), after a linger, or when the first waiting request can be served. g is the zero
// reply after an error. beaten: another client took permits that were free for a waiting request.
// It reports whether waiting requests sleep now.
func (q *Queue) plan(m Moment, b *Batch, g *protocol.Reply, beaten bool) (sleeps bool) {
	p, next, took := &q.pacer, q.line.ready, m.Mono.Sub(b.started)
	if q.line.first == nil {
		p.stop()
	}
	urgent, answered := q.urgent(), len(b.Settled)
	switch {
	case q.inFlight != nil || p.linger > 0:
	case g.First.Rate > 0 && !g.Local() && took >= q.settings.Linger && answered > 0 &&
		(urgent || next == nil && answered > 1):
		p.linger = answered + len(q.trying) + q.line.length
		p.set(m, took/10, LingerOver)
	case urgent || next == nil:
	case next.asked != b.number:
		q.rest(m)
	case g.Local():
		p.set(m, min(max(next.free.Sub(m.Clock), 0), g.Retry), NodeBack)
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
	for i := range p.members {
		one, of := &p.members[i], g.Of(i)
		one.kept = Kept(of)
		until := one.share.Divide(of.Shared(), since, next.free.Sub(since), *next.Permits.Of(i))
		if one.yieldUntil = (Moment{}); !until.IsZero() {
			one.yieldUntil = Moment{Clock: until, Mono: m.Mono.Add(until.Sub(m.Clock))}
		}
		if next.FreeAt(i).After(since) { // else it is about a request behind next
			together = max(together, of.Together)
		}
	}
	if q.poll(m, next.free.Sub(m.Clock)) {
		p.yieldNothing()
		return
	}
	p.polls = 0
	next.together = since.Add(together).Sub(next.free)
	at, cause := q.turn(m, next)
	if beaten {
		at, cause = q.gather(next, at, cause)
	}
	p.set(m, at.Sub(m.Clock), cause)
}

// Kept returns when a limiter with a keep-alive is to be asked for again after a call that refused
// a waiting request; 0: it has no keep-alive.
func Kept(of *protocol.Member) time.Duration {
	if !of.Notes.Has(protocol.KeepAlive) {
		return 0
	}
	return of.Interval + keepSlack
}

// rest lets the queue be due when it may ask for its first request, which the last batch left out.
func (q *Queue) rest(m Moment) {
	at, cause := q.turn(m, q.line.ready)
	if wait := at.Sub(m.Clock); !q.poll(m, wait) {
		q.pacer.set(m, wait, cause)
	}
}

// poll lets the queue be due at the next poll, less up to a tenth of the time until then at random,
// if so long a wait needs one. It reports whether it does. Polls keep limiters with a keep-alive.
func (q *Queue) poll(m Moment, wait time.Duration) bool {
	longest := min(shortestPoll<<q.pacer.polls, longestPoll)
	for i := range q.pacer.members {
		if kept := q.pacer.members[i].kept; kept > 0 {
			longest = min(longest, kept)
		}
	}
	if wait <= longest+pollSlack {
		return false
	}
	q.pacer.set(m, longest-q.settings.Jitter(longest/10), Poll)
	return true
}

// turn returns when this process may ask for a request: once its permits are free, and before
// yieldUntil only as far as the fair share has room, or for the last call of a caller.
func (q *Queue) turn(m Moment, r *Request) (time.Time, Cause) {
	at := latest(m.Clock, r.free)
	ready, yields := at, false
	for i := range q.pacer.members {
		one := &q.pacer.members[i]
		if until := one.headStart(m); at.Before(until) {
			ready, yields = latest(ready, one.share.Ready(at, until, *r.Permits.Of(i))), true
		}
	}
	if yields {
		return q.soonest(ready, OurTurn)
	}
	return at, PermitsFree
}

// gather returns when to ask for permits of a request and those that return shortly afterwards: at
// the time given, or later. If several callers wait, here or in other processes, one call then
// takes them all.
func (q *Queue) gather(r *Request, at time.Time, cause Cause) (time.Time, Cause) {
	if together := r.free.Add(r.together); at.Before(together) {
		return q.soonest(together, Gathered)
	}
	return at, cause
}
