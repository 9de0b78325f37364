package rratelimiter

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// flight.go shares calls: all callers of a limiter in this process who ask while a call is in the air go with the next
// one. It knows how callers become groups and how an answer becomes theirs; who waits, and for how long, is waiter.go's.

const (
	maxGroups   = 256 // sizes a call carries, run-length encoded
	maxRequests = 256 // requests a call carries where each gets a record of its own
)

// An ask is what one caller wants of a limiter.
type ask struct {
	n      int64
	detail bool      // wants Result.ResetAfter, and Result.RetryAfter though it does not wait
	waits  bool      // stays in line until granted
	until  time.Time // when waiting is over, for a caller with a timeout; zero: never
	source *source   // set with a grant; nil: the caller does not care
}

// A source is where permits came from, for who may give them back.
type source struct {
	local bool  // the process granted instead of Redis
	at    int64 // the time of the record, ms
}

// A request is an ask under way. Its fields below done belong to the line's lock until the caller is told by done.
type request struct {
	ask
	done chan struct{} // has room for the one time that something is sent

	result     Result
	err        error
	settled    bool      // result or err is final
	gone       bool      // the caller's context ended
	flying     bool      // in a call that has not landed
	on         *flight   // that call
	flown      int64     // the number of the last call that carried it
	asked      bool      // was refused once, so it knows when it can be served
	free       time.Time // that
	last       bool      // the caller's time is over: the next answer is the last
	prev, next *request
}

// newRequest makes a request. It takes those that were used before from the client, not from all: a channel belongs to the
// synctest bubble of a test, as a client does.
func (c *Client) newRequest(a ask) *request {
	r, ok := c.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.ask = a
	return r
}

// recycle gives a request back whose caller was told.
func (c *Client) recycle(r *request) {
	*r = request{done: r.done}
	c.requests.Put(r)
}

// A group is callers who follow each other in a call and ask for the same number of permits.
type group struct {
	size    int64
	callers []*request
}

// A flight is one call for many callers.
type flight struct {
	line     *line
	number   int64 // among those of the line
	groups   []group
	strict   int // groups of callers in line; they come first
	callers  int
	present  atomic.Int32 // callers who have not gone
	partial  bool         // the line is longer than what the call carries of it
	apart    bool         // there are calls of the line that never landed in time, whose records must be found again
	detail   bool
	rebuild  bool
	started  time.Time
	changes  int64     // of the client's denials, when it departed
	due      time.Time // when its callers are told at the latest
	stall    time.Time // when others need not wait for it any more
	sent     trail
	question question
	args     []any // of the command
	cmd      once
	stalled  bool // others may depart before it lands
	landed   bool
	breaker  *breaker   // of the way that it takes
	answered []*request // their callers are told once the observer was
}

var flights = sync.Pool{New: func() any { return &flight{} }}

// recycle gives a flight back that nobody looks at any more.
func (f *flight) recycle() {
	for i := range f.groups {
		clear(f.groups[i].callers)
		f.groups[i].callers = f.groups[i].callers[:0]
	}
	clear(f.answered)
	*f = flight{groups: f.groups[:0], question: f.question, args: f.args[:0], answered: f.answered[:0]}
	flights.Put(f)
}

// board adds a caller to the group of its size: the last one for callers in line, whose order counts, any one behind the
// strict ones for the others. It answers false when the flight is full: callers in line, who board first, leave half of
// it to the others, who must have their answer however long the line is.
func (f *flight) board(r *request, perRequest bool) bool {
	groups, requests := maxGroups, maxRequests
	if r.waits {
		groups, requests = maxGroups/2, maxRequests/2
	}
	if perRequest && f.callers >= requests {
		return false
	}
	from := len(f.groups) - 1
	if !r.waits {
		from = f.strict
	}
	at := len(f.groups)
	for i := max(from, 0); i < len(f.groups); i++ {
		if f.groups[i].size == r.n {
			at = i
			break
		}
	}
	if at == len(f.groups) {
		if at >= groups {
			return false
		}
		if at < cap(f.groups) {
			f.groups = f.groups[:at+1] // with the callers' memory of an earlier flight
		} else {
			f.groups = append(f.groups, group{})
		}
		f.groups[at].size = r.n
		if r.waits {
			f.strict++
		}
	}
	f.groups[at].callers = append(f.groups[at].callers, r)
	f.callers++
	f.present.Add(1)
	f.detail = f.detail || r.detail
	r.flying, r.on, r.flown = true, f, f.number
	return true
}

// depart sends the next call, if none is in the air or gathers callers, and somebody has something to ask. The line is
// locked.
func (ln *line) depart() {
	if ln.flight != nil || ln.gathers > 0 {
		return
	}
	ln.ask = false
	ln.flights++
	f := flights.Get().(*flight)
	f.line, f.number, f.rebuild = ln, ln.flights, ln.rebuild
	f.started, f.changes, f.sent.text = time.Now(), ln.client.denials.changes.Load(), textOfKeyCount
	f.sent.hasty = ln.limiter.settings.fallsBack
	f.question.next(ln.grants)
	perRequest := ln.limiter.settings.recordPerRequest
	f.apart = ln.astray > 0 && ln.limiter.settings.bucket() > 0
	room := ln.room()
	for r := ln.first; r != nil && !f.partial; r = r.next {
		if !r.flying {
			f.partial = room < 0 || !f.board(r, perRequest)
			room -= r.n
		}
	}
	boarded := 0
	for _, r := range ln.trying {
		if !r.gone && !f.board(r, perRequest) {
			break
		}
		boarded++
	}
	ln.trying = slices.Delete(ln.trying, 0, boarded)
	if f.callers == 0 {
		f.recycle()
		if ln.waiter() != nil {
			ln.rest()
		}
		return
	}
	ln.flight = f
	ln.client.send(f)
}

// mostAstray is how many stalled calls of a limiter let others depart before they land.
const mostAstray = 3

// stall lets the next call depart before this one has landed, which takes too long. One that is late lands at once, and
// whoever waits behind it is told with it.
func (ln *line) stall(f *flight) {
	ln.mu.Lock()
	defer ln.exit()
	late := time.Since(f.started) >= ln.client.callTimeout
	if f.landed || late || ln.flight != f || ln.astray == mostAstray {
		return
	}
	f.stalled, ln.flight = true, nil
	ln.astray++
	if next := ln.waiter(); ln.urgent(next) {
		ln.depart()
	} else if next != nil {
		ln.rest()
	}
}

// ask makes the command of a flight, dated now.
func (f *flight) ask(ctx context.Context, text bool) {
	f.sent.begin()
	args := append(append(f.args[:0], acquireScript.head(text)...), &f.sent)
	args = append(args, f.line.keys...)
	f.args = f.question.ask(args, f.line.limiter, f.groups, f.strict, f.flags(), false)
	f.cmd = newOnce(ctx, f.args)
}

func (f *flight) flags() string {
	flags := ""
	if f.detail {
		flags = "d"
	}
	if f.rebuild {
		flags += "b"
	}
	if f.partial {
		flags += "q"
	}
	if f.apart {
		flags += "j"
	}
	return flags
}

// arrive reads the answer to a flight's command, and lands it; unless that has to be asked again. A regular flight, which
// never stalled, is nobody's any more once it has landed.
func (f *flight) arrive(regular bool) {
	l := f.line.limiter
	err := serverError(f.cmd.Err())
	f.sent.end(err)
	var g grants
	if err == nil {
		g, err = l.readGrants(&f.sent, f.cmd.Val(), f.question.now)
	}
	if errors.Is(err, errOtherRate) || l.client.redirected(err) || f.sent.again(err, l.settings.findable(f.question.records)) {
		go f.alone(err)
		return
	}
	g.attempts = int(f.sent.attempts.Load())
	f.land(g, err)
	if regular {
		f.recycle()
	}
}

// alone asks by itself for a flight that has no answer yet: the call failed, another node has to be asked, or another rate
// to be set first.
func (f *flight) alone(last error) {
	if rest := time.Until(f.stall); rest > 0 {
		stall := time.AfterFunc(rest, func() { f.line.stall(f) })
		defer stall.Stop()
	} else {
		f.line.stall(f)
	}
	l := f.line.limiter
	g, err := withinRest(context.Background(), l.client, time.Until(f.due), func(ctx context.Context) (grants, error) {
		return l.insist(ctx, &f.question, &f.sent, f.groups, f.strict, f.flags(), last)
	})
	g.attempts = int(f.sent.attempts.Load())
	f.land(g, err)
}

// land gives the callers of a flight their answers, and sends the next one.
func (f *flight) land(g grants, err error) {
	ln := f.line
	ln.mu.Lock()
	if f.landed {
		ln.mu.Unlock()
		return
	}
	f.landed = true
	cause := f.sent.explain(err)
	g, err = f.deputize(g, err)
	told := f.sent.outcome(cause)
	if f.stalled {
		ln.astray--
	} else {
		ln.flight = nil
	}
	info := FlightInfo{
		Limiter: ln.limiter.name, Callers: f.callers, Latency: time.Since(f.started),
		Attempts: g.attempts, Healed: healed(g.notes), RateMismatch: g.notes&noteDiffers != 0,
		Fallback: g.local(), Err: told,
	}
	if err != nil {
		for _, group := range f.groups {
			for _, r := range group.callers {
				if !r.gone {
					info.Denied++
				}
				ln.finish(f, r, told)
			}
		}
		if !f.stalled && errors.Is(err, os.ErrDeadlineExceeded) && f.breaker.silent(f.started) {
			ln.tell(f, cause, &info)
		}
	} else {
		if !g.local() {
			ln.rebuild, ln.rate = g.notes&noteUnbuilt != 0, g.rate
		}
		ln.distribute(f, g, &info)
		ln.passes = 0
		if g.local() && ln.first != nil && ln.first.n > g.rate {
			ln.passes = g.rate
		}
	}
	ln.plan(f, g)
	info.Waiting = ln.waiting
	if ln.limiter.settings.denyCache > 0 {
		info.Remembered = ln.client.denials.collect(ln.limiter.keyNames[keyConfig])
	}
	ln.exit()
	if ln.client.observer != nil {
		ln.client.observer.Flight(info)
	}
	for _, r := range f.answered {
		r.done <- struct{}{}
	}
}

// tell gives those whose question had to wait for a flight, which was late, its error, though no call was made for them: else
// they might wait for a server that hangs twice as long.
func (ln *line) tell(f *flight, late error, info *FlightInfo) {
	late = unsent(late)
	count := func(r *request) {
		info.Callers++
		info.Denied++
		ln.finish(f, r, late)
	}
	for _, r := range ln.trying {
		if !r.gone {
			count(r)
		}
	}
	clear(ln.trying)
	ln.trying = ln.trying[:0]
	now := ln.client.clock()
	for r := ln.first; r != nil; {
		next := r.next
		if !r.flying && (!r.asked || !now.Before(r.free)) {
			count(r)
		}
		r = next
	}
}

// finish settles a request whose flight landed, unless its caller has gone.
func (ln *line) finish(f *flight, r *request, err error) {
	r.flying = false
	if r.gone || r.settled {
		return
	}
	if r.waits {
		ln.leave(r)
	}
	r.err, r.settled = err, true
	f.answered = append(f.answered, r)
}

// mayWait tells whether a request that was refused stays for permits that are free at a time.
func (r *request) mayWait(free time.Time) bool {
	return r.waits && !r.last && (r.until.IsZero() || free.Before(r.until))
}

// again keeps a request, which the flight left open, for the next one.
func (ln *line) again(r *request) {
	r.flying, ln.ask = false, true
	if !r.waits {
		ln.trying = append(ln.trying, r)
	}
}

// since is the time from which the waits of an answer count, by this process's clock: when Redis was asked, up to the
// very ms. Where the server's clock decides that is not known exactly, and now is not too early.
func (ln *line) since(g grants) time.Time {
	if ln.limiter.settings.serverTime {
		return ln.client.clock()
	}
	return time.UnixMilli(g.now)
}

// distribute hands out what a flight brought. Permits granted to callers who have gone are offered to those who were
// refused, in order, wherever they fit.
func (ln *line) distribute(f *flight, g grants, info *FlightInfo) {
	more := g.notes&noteMore != 0
	since := ln.since(g)
	var spare, own int64
	free := g.free
	for i := len(f.groups) - 1; i >= 0; i-- { // backwards, so that what remains after each caller is known
		size, granted := f.groups[i].size, g.granted(i, f.groups[i])
		for at := int(granted) - 1; at >= 0; at-- {
			r := f.groups[i].callers[at]
			own += size
			if r.gone {
				spare += size
			} else {
				ln.grant(f, r, g, free, info)
			}
			free += size
		}
	}
	if !g.local() { // else Redis knows nothing of it
		ln.share.granted(g.at, g.interval, own)
	}
	var denied []*request
	for i, group := range f.groups {
		granted := g.granted(i, group)
		for _, r := range group.callers[max(granted, 0):] {
			switch {
			case r.gone:
				r.flying = false
			case granted < 0:
				info.Denied++
				ln.finish(f, r, ErrExceedsRate)
			case spare >= r.n:
				spare -= r.n
				ln.grant(f, r, g, g.free, info)
			case more && (!r.waits || r.mayWait(ln.client.clock())):
				ln.again(r)
			default:
				r.result = Result{
					Limit: g.rate, Remaining: g.free, RetryAfter: g.wait(i), ResetAfter: g.lasts,
				}
				denied = append(denied, r)
			}
		}
	}
	info.Abandoned = spare
	for _, r := range denied {
		switch {
		case r.n <= g.free && !r.last && (ln.first == nil || ln.first.n <= g.free):
			ln.again(r) // it was refused for the sake of somebody in line who has left it meanwhile
		case r.mayWait(since.Add(r.result.RetryAfter)):
			r.flying, r.asked, r.free = false, true, since.Add(r.result.RetryAfter)
		default:
			info.Denied++
			if !g.local() {
				ln.remember(f, r, since)
			}
			ln.finish(f, r, nil)
		}
	}
	info.Permits = own
	if own > 0 && ln.limiter.settings.bucket() > 0 {
		ln.grants.add(f.question.id)
	}
}

// remember keeps the refusal of a caller who tried, as told at a time. Behind others in line a refusal tells little.
func (ln *line) remember(f *flight, r *request, since time.Time) {
	size := ln.limiter.settings.denyCache
	if size == 0 || r.waits || f.strict > 0 {
		return
	}
	ln.client.denials.remember(size, ln.limiter.keyNames[keyConfig], denial{
		n: r.n, limit: r.result.Limit, left: r.result.Remaining,
		free: since.Add(r.result.RetryAfter), reset: since.Add(r.result.ResetAfter),
	}, ln.client.clock(), f.changes)
}

// grant answers a request with its permits.
func (ln *line) grant(f *flight, r *request, g grants, free int64, info *FlightInfo) {
	if r.source != nil && !r.gone {
		*r.source = source{g.local(), g.at}
	}
	r.result = Result{Allowed: true, Limit: g.rate, Remaining: free, ResetAfter: g.lasts}
	info.Granted++
	ln.finish(f, r, nil)
}
