package smallscope

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A client is the state of one client: its queue and its leases, its callers, what these may still
// do, and its calls.
type client struct {
	comes            []int // how often a caller of each kind may still come
	retries, changes int
	life             int           // how often it has crashed
	back             time.Duration // by how much its clock was set back
	calls            []*call
	drawn

	// Not of a foreign client:
	queue    *schedule.Queue
	callers  []*caller    // that have no outcome, by kind
	refills  bool         // a request has found that more permits are to be taken ahead
	backs    []lease.Back // that are to be given back
	changing bool         // it has begun a change
}

// drawn is what the arguments of a call depend on, beside the time.
type drawn struct {
	ids    uint64 // ids that earlier calls have drawn
	recent protocol.RecentIDs
	served int64 // the server's time in the last reply (µs)
}

// A caller is one that waits for an outcome, or has left while its request is in flight.
type caller struct {
	*schedule.Request
	kind          int // index in Client.Callers
	expired, left bool
}

// A call is a command on its way to the server, or its reply on the way back.
type call struct {
	content
	command int        // index in search.commands
	done    bool       // the server has executed it
	reply   int        // index in search.replies
	void    bool       // what the reply has granted was forgotten by a change since
	alone   bool       // nobody waits for the reply: the client has crashed, or sent it again
	again   bool       // it is not the first attempt
	back    lease.Back // permits that are given back

	// Of a call that asks:
	batch       *schedule.Batch
	n           int64           // permits, of a foreign client
	first, last schedule.Moment // when the first attempt and this one were sent
	drawn
}

type content int8

const (
	asks content = iota
	givesBack
	sets
)

// started gives a client without a queue a new one, and returns the client.
func (s *search) started(i int, c *client) *client {
	spec := &s.Clients[i]
	if spec.Foreign != nil {
		return c
	}
	identity := record.NewIdentity(s.id(i, c))
	identity.StartAt(0)
	c.queue = schedule.New(schedule.Settings{
		Lease: spec.Lease, Holding: new(atomic.Int64), Ahead: s.takesAhead,
		Granularity: spec.Granularity > 0, ServerTime: spec.ByServer, Linger: time.Hour, Identity: identity,
		Jitter: func(time.Duration) time.Duration { return 0 },
	})
	c.queue.SeeRedisson(spec.Redisson)
	return c
}

// crashed returns the client that takes the place of one that has crashed: what that has sent may
// still arrive.
func (s *search) crashed(i int, c *client) *client {
	next := &client{comes: c.comes, retries: c.retries, changes: c.changes, life: c.life + 1, back: c.back}
	for _, call := range c.calls {
		if !call.done {
			call.forsake()
			next.calls = append(next.calls, call)
		}
	}
	return s.started(i, next)
}

// forsake notes that nobody waits for the reply to a call.
func (c *call) forsake() {
	*c = call{content: c.content, command: c.command, done: c.done, alone: true}
}

// ledger returns the leases; nil: it has none, or is foreign.
func (c *client) ledger() *lease.Ledger {
	if c.queue == nil {
		return nil
	}
	return c.queue.Ledger()
}

// open returns how many calls of a kind the client waits for.
func (c *client) open(what content) (n int) {
	for _, call := range c.calls {
		if call.content == what && !call.alone {
			n++
		}
	}
	return n
}

// active reports whether the client may be granted permits.
func (c *client) active() bool {
	return c.open(asks)+len(c.callers) > 0 || c.ledger().Holds() ||
		slices.ContainsFunc(c.comes, func(n int) bool { return n > 0 })
}

// id returns the id of a client in its life.
func (s *search) id(i int, c *client) string { return fmt.Sprint(s.Clients[i].Name, " ", c.life) }

// moment returns a client's time at one of the Times.
func (s *search) moment(at int, c *client) schedule.Moment {
	now := Epoch.Add(s.Times[at])
	return schedule.Moment{Clock: now.Add(-c.back), Mono: now}
}

// encoder returns what the arguments of a client's calls have in common, at a time by its clock.
func (s *search) encoder(i int, c *client, d drawn, at *time.Time) *protocol.Encoder {
	identity, spec, e := record.NewIdentity(s.id(i, c)), &s.Clients[i], new(protocol.Encoder)
	identity.StartAt(d.ids)
	o := protocol.Options{Lease: spec.Lease, Granularity: spec.Granularity, ServerTime: spec.ByServer}
	e.Init(o, identity, func() time.Time { return *at })
	if d.served > 0 { // it learns that from a reply
		_, _ = new(protocol.AcquireRequest).Reply(e, new(script.Attempts),
			[]int64{0, s.Rate, s.Interval.Milliseconds(), 0, 0, 6, 0, d.served, 0, record.NoOrigin, 0, 0})
	}
	return e
}

// request returns the request of an attempt of a call, and its arguments.
func (s *search) request(i int, c *client, call *call) (*protocol.AcquireRequest, *protocol.Encoder, []any) {
	at := call.first.Clock
	e, r := s.encoder(i, c, call.drawn, &at), new(protocol.AcquireRequest)
	r.Next(call.recent)
	args := r.Args(nil, e, call.batch.Ask, false)
	if call.again {
		at = call.last.Clock
		args = r.Args(nil, e, call.batch.Ask, true)
	}
	return r, e, args
}

// ask sends an attempt of a call that asks for permits.
func (s *search) ask(w *world, i int, call *call) {
	c := w.clients[i]
	call.last = s.moment(w.at, c)
	if f := s.Clients[i].Foreign; f != nil {
		id := uint64(i+1)<<32 | uint64(c.life)<<16 | call.ids
		c.ids = max(c.ids, call.ids+1)
		s.send(c, call, f.SHA, f.Keys(name), f.Args(call.n, call.last.Clock.UnixMilli(), id))
		return
	}
	r, _, args := s.request(i, c, call)
	c.ids = max(c.ids, call.ids+uint64(r.Records))
	s.send(c, call, s.Acquire.SHA, keysOf(s.id(i, c)), args)
}

// giveBack sends a call that gives back permits.
func (s *search) giveBack(w *world, i int, back lease.Back) {
	c := w.clients[i]
	m := s.moment(w.at, c)
	request := protocol.Release{
		Now: s.encoder(i, c, drawn{}, &m.Clock).Now(), Permits: back.Permits, Granted: back.At,
		Own: record.NewIdentity(s.id(i, c)).Origin(record.Redisson317),
	}
	s.send(c, &call{content: givesBack, back: back}, protocol.ReleaseScript.SHA, keysOf(s.id(i, c)),
		request.Args())
}

// change sends a change of the limiter.
func (s *search) change(w *world, i int) {
	c := w.clients[i]
	m := s.moment(w.at, c)
	request := protocol.SetRate{
		Now:  s.encoder(i, c, drawn{}, &m.Clock).Now(),
		Rate: protocol.Rate{Permits: s.Rate, Interval: s.Interval.Milliseconds()},
	}
	s.send(c, &call{content: sets}, protocol.SetRateScript.SHA, keysOf(s.id(i, c)), request.Args())
}

// send puts a call on its way.
func (s *search) send(c *client, call *call, sha string, keys []string, args []any) {
	call.command = s.command(sha, keys, args)
	c.calls = append(c.calls, call)
}
