package replay

import (
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Call is a command of a client that waits to be sent, is on its way to the server, or of which
// the reply is on its way back. It asks for permits, gives some back, or changes limiter 0.
type Call struct {
	Command Command         // 0: it is not sent yet
	Reply   []int64         // nil: the server has not executed it
	Void    bool            // what the reply grants was forgotten since the server has executed it
	Queue   int             // index in Client.Queues
	Batch   *schedule.Batch // nil: it does not ask

	leftover lease.Leftover // permits that are given back

	// Of a call that asks: the times of its attempts, and what the client had before the first one.
	attempts []schedule.Moment
	encoder  *protocol.Encoder
	recent   protocol.RecentIDs
}

// Changes reports whether the call is a change.
func (c *Call) Changes() bool { return c.Batch == nil && c.leftover.Permits == 0 }

// Sent returns when the last attempt of a call that asks was sent.
func (c *Call) Sent() time.Time { return c.attempts[len(c.attempts)-1].Mono }

// attempt sends an attempt of a call that asks.
func (s *Server) attempt(c *Client, m schedule.Moment, call *Call, e *protocol.Encoder) {
	call.attempts = append(call.attempts, m)
	limiters, of := c.Queues[call.Queue].Limiters, s.Acquire
	if len(limiters) > 1 {
		of = protocol.AllowAllScript
	}
	args, _ := s.encode(c, call, e)
	call.Command = s.Command(of.SHA, Keys(limiters...), args)
	c.Calls = append(c.Calls, call)
}

// A reader decodes the reply to the last attempt of a call.
type reader func(reply []int64) (protocol.Reply, error)

// encode makes all attempts of a call that asks again. It returns the arguments of the last one.
func (s *Server) encode(c *Client, call *Call, e *protocol.Encoder) (args []any, read reader) {
	var attempt func(find bool) []any
	ask := call.Batch.Ask
	if limiters := len(c.Queues[call.Queue].Limiters); limiters == 1 {
		r := new(protocol.AcquireRequest)
		r.Next(call.recent)
		attempt = func(find bool) []any { return r.Args(nil, e, ask, find) }
		read = func(reply []int64) (protocol.Reply, error) {
			return r.Reply(c.encoder, new(script.Attempts), reply)
		}
	} else {
		r := new(protocol.AllowAll)
		r.Next(limiters, &ask)
		for part := range r.Parts {
			r.Parts[part].Encoder = e
		}
		attempt = func(find bool) []any { return r.Args(nil, find) }
		read = func(reply []int64) (protocol.Reply, error) {
			g, _, err := r.Reply(new(script.Attempts), reply)
			return g, err
		}
	}
	for n, m := range call.attempts {
		s.clock = m.Clock
		args = attempt(n > 0)
	}
	return args, read
}

// Repeat sends a call that asks again. It returns the first attempt, if that may still arrive.
func (s *Server) Repeat(c *Client, m schedule.Moment, at int) (stray Command) {
	again := *c.Calls[at]
	again.Reply, again.Void = nil, false
	stray = c.Drop(at)
	s.attempt(c, m, &again, deep.Copy(again.encoder))
	return stray
}

// Drop lets the client not wait for a call. It returns the command, if that may still arrive.
func (c *Client) Drop(at int) (stray Command) {
	call := c.Calls[at]
	c.Calls = slices.Delete(c.Calls, at, at+1)
	if call.Reply != nil {
		return 0
	}
	return call.Command
}

// Sends reports whether a call that waits to be sent can be sent now. A change waits until no
// permits are being given back.
func (c *Client) Sends(at int) bool {
	return !c.Calls[at].Changes() || !c.Queues[0].Ledger().Returning()
}

// Send sends a call that waited, unless permits are not to be given back any more.
func (s *Server) Send(c *Client, m schedule.Moment, at int) {
	if call := c.Calls[at]; call.Changes() || c.Queues[0].Ledger().Start(call.leftover, false) {
		s.send(c, m, call)
	} else {
		c.Drop(at)
	}
}

func (s *Server) send(c *Client, m schedule.Moment, call *Call) {
	s.clock = m.Clock
	if call.Changes() {
		set := protocol.SetRate{Now: c.encoder.Now(), Rate: s.Limiters[0]}
		call.Command = s.Command(protocol.SetRateScript.SHA, Keys(0), set.Args())
		return
	}
	release := protocol.Release{
		Now: c.encoder.Now(), Permits: call.leftover.Permits, Granted: call.leftover.At,
		Own: c.identity.Origin(record.Redisson317),
	}
	call.Command = s.Command(protocol.ReleaseScript.SHA, Keys(0), release.Args())
}

// Receive gives the client the reply to a call.
func (s *Server) Receive(c *Client, m schedule.Moment, at int) {
	call := c.Calls[at]
	c.Drop(at)
	q := c.Queues[call.Queue]
	switch {
	case call.Changes():
		q.Changed()
	case call.Batch == nil:
		returned, _, err := protocol.Release{}.Reply(call.Reply)
		if err != nil {
			deep.Violated("permits are given back: %v", err)
		}
		q.Ledger().Done(call.leftover, returned)
	default:
		_, read := s.encode(c, call, deep.Copy(call.encoder))
		g, err := read(call.Reply)
		if err != nil { // the outcome is unknown
			q.Fail(m, call.Batch, err, nil)
			return
		}
		g.Began = call.Sent()
		if f := q.Settle(m, call.Batch, &g); f.First.Own+g.Ahead > 0 && c.encoder.Granularity > 0 {
			c.recent.Add(g.ID)
		}
	}
}

// Lose lets a call that asks fail, and the requests that had to wait for it, if all is set. It
// returns the command, if that may still arrive.
func (c *Client) Lose(m schedule.Moment, at int, all bool) (stray Command) {
	call := c.Calls[at]
	stray = c.Drop(at)
	var behind error
	if all {
		behind = errLost
	}
	c.Queues[call.Queue].Fail(m, call.Batch, errLost, behind)
	return stray
}

var errLost = errors.New("lost")
