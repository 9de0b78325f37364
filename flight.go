package rratelimiter

import (
	"context"
	"time"
)

// flight.go shares calls: all callers of a limiter in this process who ask while a call is in the air go with the next
// one. It knows how callers become groups and how an answer becomes theirs; who waits, and for how long, is waiter.go's.

const (
	maxGroups   = 256 // sizes a call carries, run-length encoded
	maxRequests = 256 // requests a call carries where each gets a record of its own
)

// A request is what one caller asks of a limiter. Its fields below done belong to the line's lock until done is closed.
type request struct {
	n      int64
	detail bool      // wants Result.ResetAfter
	waits  bool      // stays in line until granted
	until  time.Time // when waiting is over, for a caller with a timeout; zero: never
	done   chan struct{}

	result     Result
	err        error
	settled    bool    // result or err is final
	gone       bool    // the caller's context ended
	flying     bool    // in a call that has not landed
	flown      *flight // the last call that carried it
	asked      bool    // was refused once, so it knows its wait
	last       bool    // the caller's time is over: the next answer is the last
	prev, next *request
}

func newRequest(n int64) *request { return &request{n: n, done: make(chan struct{})} }

// A group is callers who follow each other in a call and ask for the same number of permits.
type group struct {
	size    int64
	callers []*request
}

// A flight is one call for many callers.
type flight struct {
	groups   []group
	strict   int // groups of callers in line; they come first
	callers  int
	partial  bool // the line is longer than what the call carries of it
	detail   bool
	rebuild  bool
	started  time.Time
	late     *time.Timer
	landed   bool
	answered []*request // their callers are told once the observer was
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
		f.groups = append(f.groups, group{size: r.n})
		if r.waits {
			f.strict++
		}
	}
	f.groups[at].callers = append(f.groups[at].callers, r)
	f.callers++
	f.detail = f.detail || r.detail
	r.flying, r.flown = true, f
	return true
}

// depart sends the next call, if none is in the air and somebody has something to ask. The line is locked.
func (ln *line) depart() {
	if ln.flight != nil {
		return
	}
	ln.ask = false
	f := &flight{rebuild: ln.rebuild, started: time.Now()}
	perRequest := ln.limiter.settings.recordPerRequest
	room := ln.room()
	for r := ln.first; r != nil && !f.partial; r = r.next {
		f.partial = room < 0 || !f.board(r, perRequest)
		room -= r.n
	}
	boarded := 0
	for _, r := range ln.trying {
		if !r.gone && !f.board(r, perRequest) {
			break
		}
		boarded++
	}
	ln.trying = append(ln.trying[:0:0], ln.trying[boarded:]...)
	if f.callers == 0 {
		if ln.first != nil {
			ln.rest()
		}
		return
	}
	ln.flight = f
	f.late = time.AfterFunc(ln.client.callTimeout, func() {
		ln.land(f, grants{attempts: 1}, outcome(errLate(ln.client.callTimeout)))
	})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), ln.client.callTimeout)
		defer cancel()
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
		g, err := ln.limiter.acquire(ctx, f.groups, f.strict, flags)
		ln.land(f, g, outcome(err))
	}()
}

// land gives the callers of a flight their answers, and sends the next one.
func (ln *line) land(f *flight, g grants, err error) {
	ln.mu.Lock()
	if f.landed {
		ln.mu.Unlock()
		return
	}
	f.landed = true
	f.late.Stop()
	ln.flight = nil
	info := FlightInfo{
		Limiter: ln.limiter.name, Callers: f.callers, Latency: time.Since(f.started),
		Attempts: g.attempts, Healed: healed(g.notes), RateMismatch: g.notes&noteDiffers != 0, Err: err,
	}
	if err != nil {
		for _, group := range f.groups {
			for _, r := range group.callers {
				if !r.gone {
					info.Denied++
				}
				ln.finish(f, r, err)
			}
		}
	} else {
		ln.rebuild, ln.rate = g.notes&noteUnbuilt != 0, g.rate
		ln.distribute(f, g, &info)
	}
	ln.plan(f, g)
	info.Waiting = ln.waiting
	ln.mu.Unlock()
	if ln.client.observer != nil {
		ln.client.observer.Flight(info)
	}
	for _, r := range f.answered {
		close(r.done)
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
		size, granted := f.groups[i].size, g.groups[i].granted
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
	ln.share.granted(g.at, g.interval, own)
	var denied []*request
	for i, group := range f.groups {
		granted := g.groups[i].granted
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
					Limit: g.rate, Remaining: g.free, RetryAfter: g.groups[i].wait, ResetAfter: g.lasts,
				}
				denied = append(denied, r)
			}
		}
	}
	for _, r := range denied {
		switch {
		case r.n <= g.free && !r.last && (ln.first == nil || ln.first.n <= g.free):
			ln.again(r) // it was refused for the sake of somebody in line who has left it meanwhile
		case r.mayWait(since.Add(r.result.RetryAfter)):
			r.flying, r.asked = false, true
		default:
			info.Denied++
			ln.finish(f, r, nil)
		}
	}
	info.Permits = own
}

// grant answers a request with its permits.
func (ln *line) grant(f *flight, r *request, g grants, free int64, info *FlightInfo) {
	r.result = Result{Allowed: true, Limit: g.rate, Remaining: free, ResetAfter: g.lasts}
	info.Granted++
	ln.finish(f, r, nil)
}
