package replay

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// A Client owns the queues of one client, as package dispatch does, and does what they say. It is a
// value, which package deep can copy and compare. Limiter 0 may have leases.
type Client struct {
	Queues []*Queue // of each limiter, then of each set
	Calls  []*Call

	identity *record.Identity
	encoder  *protocol.Encoder
	recent   protocol.RecentIDs
}

// A Queue is that of one limiter, or of a set of them.
type Queue struct {
	*schedule.Queue
	Limiters []int
	Refills  bool // a request has found that more permits are to be taken ahead
}

// Options are what a Client knows of its limiters.
type Options struct {
	ID string
	protocol.Options
	Redisson bool         // Redisson uses limiters on the server
	FailFast bool         // a request that would wait in vain is refused
	Ahead    func() int64 // chooses how many permits a batch takes ahead that may take some
	Sets     [][]int
	Self     func() *Client // the copy that an event happens to
}

// NewClient returns a client with empty queues.
func (s *Server) NewClient(o Options) *Client {
	c := &Client{identity: record.NewIdentity(o.ID), encoder: new(protocol.Encoder)}
	c.identity.StartAt(0)
	c.encoder.Init(o.Options, c.identity, func() time.Time { return s.clock })
	for l := range s.Limiters {
		settings := c.settings(o, 1)
		if l == 0 {
			settings.Lease, settings.Holding, settings.Ahead = o.Lease, new(atomic.Int64), o.Ahead
		}
		c.open(o, settings, []int{l})
	}
	for _, set := range o.Sets {
		settings := c.settings(o, len(set))
		settings.Set.InFront = func(l int, of []*schedule.Reservation, now time.Time) []schedule.Front {
			return o.Self().Queues[set[l]].InFront(of, now)
		}
		if leased := slices.Index(set, 0); leased >= 0 && o.Lease > 0 {
			settings.Set.Lending = []int{leased}
		}
		c.open(o, settings, set)
	}
	return c
}

// settings returns those that the queue of any limiters has.
func (c *Client) settings(o Options, limiters int) schedule.Settings {
	return schedule.Settings{
		Limiters: limiters, Granularity: o.Granularity > 0, ServerTime: o.ServerTime, Identity: c.identity,
		RecordPerRequest: o.RecordPerRequest, FailFast: o.FailFast,
		Linger: time.Hour, Jitter: func(time.Duration) time.Duration { return 0 },
	}
}

func (c *Client) open(o Options, settings schedule.Settings, limiters []int) {
	q := &Queue{Queue: schedule.New(settings), Limiters: limiters}
	q.SeeRedisson(o.Redisson)
	c.Queues = append(c.Queues, q)
}

// QueueOf returns the index of the queue of some limiters.
func (c *Client) QueueOf(limiters []int) int {
	return slices.IndexFunc(c.Queues, func(q *Queue) bool { return slices.Equal(q.Limiters, limiters) })
}

// Holds reports whether the client has a lease.
func (c *Client) Holds() bool { return c.Queues[0].Ledger().Holds() }

// Changing reports whether the client has begun a change.
func (c *Client) Changing() bool { return slices.ContainsFunc(c.Calls, (*Call).Changes) }

// Join adds a request to a queue. One that waits for several limiters has a reservation at each.
func (c *Client) Join(queue int, r *schedule.Request) {
	q := c.Queues[queue]
	if len(q.Limiters) > 1 && r.Kind == schedule.Wait {
		for part, limiter := range q.Limiters {
			res := &schedule.Reservation{N: *r.Permits.Of(part), Owner: queue}
			c.Queues[limiter].Reserve(res, q.LastReservation(part))
			c.giveBack(c.Queues[limiter].Ledger().Leftovers())
			r.Reservations = append(r.Reservations, res)
		}
	}
	q.Join(r)
}

// Exit does what a queue says after an event.
func (s *Server) Exit(c *Client, m schedule.Moment, queue int) {
	for _, o := range schedule.Merged(s.next(c, m, queue)) {
		set := o.Set.(int)
		c.Queues[set].Outdated(o.Since)
		s.Exit(c, m, set)
	}
}

// next is Exit but for the events of sets, which it returns.
func (s *Server) next(c *Client, m schedule.Moment, queue int) (outdated []schedule.Outdated) {
	q := c.Queues[queue]
	send, fx := q.Next(nil, func() schedule.Moment { return m }, func() *schedule.Batch {
		return &schedule.Batch{Changing: queue == 0 && c.Changing()}
	})
	if !fx.Wake.IsZero() && !fx.Wake.After(m.Mono) {
		deep.Violated("a queue wakes at a time that is over")
	}
	for _, b := range send {
		if b.Requests() == 0 && !c.Holds() {
			deep.Violated("a call for nobody takes permits ahead, though there is no lease that they could follow")
		}
		call := &Call{Queue: queue, Batch: b, encoder: deep.Copy(c.encoder), recent: c.recent}
		s.attempt(c, m, call, c.encoder)
	}
	c.giveBack(fx.Leftovers)
	outdated = fx.Outdated
	for _, n := range fx.Tell {
		limiter := q.Limiters[n.Limiter]
		c.Queues[limiter].Hear(m, n)
		outdated = append(outdated, s.next(c, m, limiter)...)
	}
	return outdated
}

// giveBack lets the client give back permits later.
func (c *Client) giveBack(all []lease.Leftover) {
	for _, leftover := range all {
		c.Calls = append(c.Calls, &Call{leftover: leftover})
	}
}

// Change begins a change of limiter 0. It is sent later.
func (s *Server) Change(c *Client, m schedule.Moment) {
	for _, leftover := range c.Queues[0].Ledger().Change() {
		call := &Call{leftover: leftover}
		s.send(c, m, call)
		c.Calls = append(c.Calls, call)
	}
	c.Calls = append(c.Calls, new(Call))
}

// Forget makes clients equal that decide alike: it drops what has no effect any more. again: a call
// may be repeated.
func (c *Client) Forget(m schedule.Moment, again bool) {
	if !again {
		c.recent = protocol.RecentIDs{}
	}
	for i, q := range c.Queues {
		var batches []*schedule.Batch
		for _, call := range c.Calls {
			if call.Batch != nil && call.Queue == i {
				batches = append(batches, call.Batch)
			}
		}
		q.Forget(m, batches)
	}
}
