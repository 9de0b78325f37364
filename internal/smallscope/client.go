package smallscope

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// A client is the state of one client: its queue and its leases, its callers, what these may still
// do, and what is on its way to the server.
type client struct {
	comes            []int // how often a caller of each kind may still come
	retries, changes int
	life             int // how often it has crashed
	set              bool
	ids              uint64 // ids that its calls have drawn
	recent           int    // index in search.recents
	served           int64  // the server's time in the last reply (µs)
	sent             []message
	calls            []call // that have no outcome, in the order in which they were sent

	// Not of a foreign client:
	queue    *schedule.Queue
	callers  []caller // that have no outcome
	arrivals int      // callers so far
	refills  bool     // a request has found that more permits are to be taken ahead
	backs    []back   // that are to be given back
	changing stage
	due      time.Time // when the permits of the caller dueTo are free, by the last reply
	dueTo    int
	held     int64 // permits that were taken ahead, and neither granted nor given back nor void

	burst, at int // how many calls it has made at one of the Times, and which one that is
}

// A caller is one that waits for an outcome.
type caller struct {
	*schedule.Request
	kind    int // index in Client.Callers
	number  int // in the order of arrival
	expired bool
	asked   bool // there was a reply
	blocked bool // which says that its permits are not free
	left    bool // its request is in flight
}

// A call is one that the client waits for.
type call struct {
	*schedule.Batch        // not of a foreign client
	n               int64  // permits, of a foreign client
	ids             uint64 // drawn before it, which identifies it
	recent          int
	served          int64
	behind          []int // numbers of the waiting callers that it must not pass
	first, last     int   // when its first and its last attempt were sent: indexes in Times
	setFirst, set   bool  // whether the clock was set back then
	attempt         int   // 0: the first
	replied         bool  // the reply to the last attempt is there
	reply           int   // index in search.replies
	void            bool  // what the reply has granted was forgotten by a change since
}

// A stage is how far a client is with a change of the limiter.
type stage int8

const (
	unchanged stage = iota
	waits           // until leases are given back
	ready           // to send the request
	changes         // it is sent
)

// A message is a request on its way.
type message struct {
	command int // index in search.commands
	life    int
	what    content
	ids     uint64     // of a call
	attempt int        // the same
	back    lease.Back // of permits that are given back
}

// A back is permits that are to be given back.
type back struct {
	lease.Back
	changes int // client.changes before
}

type content int8

const (
	asks content = iota
	givesBack
	sets
)

// start gives a client that has no state yet an empty one.
func (s *search) start(c *client, i int) {
	spec := &s.Clients[i]
	if spec.Foreign != nil {
		return
	}
	c.queue = schedule.New(schedule.Settings{
		Lease: spec.Lease, Holding: new(atomic.Int64), Ahead: s.takesAhead,
		Granularity: spec.Granularity > 0, ServerTime: spec.ByServer, Linger: time.Hour,
		Identity: record.NewIdentity(s.id(i, c.life)),
		Jitter:   func(time.Duration) time.Duration { return 0 },
	})
	c.queue.SeeRedisson(spec.Redisson)
}

// ledger returns the leases; nil: it has none, or is foreign.
func (c *client) ledger() *lease.Ledger {
	if c.queue == nil {
		return nil
	}
	return c.queue.Ledger()
}

// active reports whether the client may be granted permits.
func (c *client) active() bool {
	return len(c.calls)+len(c.callers) > 0 || c.ledger().Holds() ||
		slices.ContainsFunc(c.comes, func(n int) bool { return n > 0 })
}

// clone returns a copy that can be changed.
func (c *client) clone() *client {
	next := *c
	next.comes, next.sent, next.backs = slices.Clone(c.comes), slices.Clone(c.sent), slices.Clone(c.backs)
	next.calls, next.callers = slices.Clone(c.calls), slices.Clone(c.callers)
	if c.queue == nil {
		return &next
	}
	batches, requests := c.parts()
	next.queue, batches, requests = c.queue.Clone(batches, requests)
	for i := range batches {
		next.calls[i].Batch = batches[i]
	}
	for i := range requests {
		next.callers[i].Request = requests[i]
	}
	return &next
}

// parts returns the batches of the calls, and the requests of the callers.
func (c *client) parts() (batches []*schedule.Batch, requests []*schedule.Request) {
	for _, call := range c.calls {
		batches = append(batches, call.Batch)
	}
	for _, caller := range c.callers {
		requests = append(requests, caller.Request)
	}
	return batches, requests
}

// key adds all that decides what follows.
func (s *search) key(b *numbers, w *world, i int) {
	c, spec := w.clients[i], &s.Clients[i]
	recent := 0 // no matter without a retry
	if c.retries > 0 {
		recent = c.recent
	}
	for _, n := range c.comes {
		b.add(int64(n))
	}
	b.add(int64(c.retries), int64(c.changes), int64(c.life), flag(c.set), int64(c.ids), int64(recent), c.served)
	for _, m := range c.sent {
		b.add(int64(m.command), int64(m.life), int64(m.what), int64(m.ids), int64(m.attempt), m.back.Permits, m.back.At)
	}
	b.add(-3)
	for _, call := range c.calls {
		if call.attempt == 0 && c.retries == 0 {
			call.recent, call.first, call.setFirst = 0, call.last, call.set
		}
		b.add(
			call.n, int64(call.ids), int64(call.recent), call.served, int64(call.first),
			int64(call.last), flag(call.setFirst), flag(call.set), int64(call.attempt), flag(call.replied),
			int64(call.reply),
			flag(call.void),
		)
		for _, number := range call.behind {
			if at := c.index(number); at >= 0 {
				b.add(int64(at))
			}
		}
		b.add(-4)
	}
	if c.queue == nil {
		return
	}
	for at, caller := range c.callers {
		b.add(int64(caller.kind), flag(caller.expired), flag(caller.left), flag(caller.asked), flag(caller.blocked))
		if at > 0 { // the order of arrival, as far as it is not that of the list
			b.add(flag(caller.number > c.callers[at-1].number))
		}
	}
	b.add(flag(c.refills), int64(c.changing))
	for _, back := range c.backs {
		b.add(back.Permits, back.At, int64(back.changes))
	}
	batches, requests := c.parts()
	*b = c.queue.AppendState(append(*b, -5), s.moment(w, i), batches, requests, s.known(spec))
}

// index returns the index of a caller in callers; -1 if it is not there any more.
func (c *client) index(number int) int {
	return slices.IndexFunc(c.callers, func(other caller) bool { return other.number == number })
}

// known returns what has no effect on a queue.
func (s *search) known(spec *Client) schedule.Known {
	return schedule.Known{
		NoEnd: !slices.ContainsFunc(spec.Callers, func(c Caller) bool { return c.Timeout > 0 }),
		NoShare: len(s.Clients) == 1 && !spec.Redisson ||
			!slices.ContainsFunc(spec.Callers, func(c Caller) bool { return c.Kind == schedule.Wait }),
	}
}

// redisson reports whether a client knows of Redisson.
func (s *search) redisson() bool {
	return slices.ContainsFunc(s.Clients, func(c Client) bool {
		return c.Foreign != nil && c.Foreign.Debt == 0 || c.Redisson
	})
}
