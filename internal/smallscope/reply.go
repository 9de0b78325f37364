package smallscope

import (
	"errors"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// executed notes what the server has done. A reply arrives at once if nothing is missed by that:
// after a later one, the grant is certainly in no further window, and the client is free later.
func (s *search) executed(w *world, i, at int, done ran) {
	c, call := w.clients[i], w.clients[i].calls[at]
	w.store = done.store
	call.done, call.reply = true, done.reply
	if call.content == sets { // all grants are forgotten
		w.grants = nil
		for _, c := range w.clients {
			for _, other := range c.calls {
				other.void = other.done
			}
		}
	}
	switch {
	case call.alone:
		s.drop(c, at)
	case call.content != asks || c.retries == 0 && (call.batch == nil || call.batch.Ask.Lease == 0):
		s.receive(w, i, at)
	}
}

// drop lets nobody wait for a call, which the server may still execute.
func (s *search) drop(c *client, at int) {
	if c.calls[at].done {
		c.calls = slices.Delete(c.calls, at, at+1)
		return
	}
	c.calls[at].forsake()
}

var errLost = errors.New("lost")

// lose lets a call fail, and perhaps the requests that had to wait for it.
func (s *search) lose(w *world, i, at int, behind error) {
	c, lost := w.clients[i], *w.clients[i].calls[at]
	c.retries--
	s.drop(c, at)
	if c.queue != nil {
		c.queue.Fail(s.moment(w.at, c), lost.batch, errLost, behind)
		s.settled(w, i, &lost)
	}
}

// receive gives a client the reply to a call.
func (s *search) receive(w *world, i, at int) {
	c := w.clients[i]
	m := s.moment(w.at, c)
	call, reply := c.calls[at], s.replies.all[c.calls[at].reply]
	c.calls = slices.Delete(c.calls, at, at+1)
	switch {
	case call.content == givesBack:
		returned, _, err := protocol.Release{}.Reply(figures(reply))
		if err != nil {
			violated("permits are given back: %v", err)
		}
		c.ledger().Done(call.back, returned)
	case call.content == sets:
		c.changing = false
		c.queue.Changed()
	case c.queue == nil:
		if reply == nil {
			s.granted(w, call, call.n)
		}
	default:
		r, e, _ := s.request(i, c, call)
		g, err := r.Reply(e, new(script.Attempts), figures(reply))
		if err != nil { // the outcome is unknown
			c.queue.Fail(m, call.batch, errLost, nil)
			s.settled(w, i, call)
			return
		}
		if s.Clients[i].ByServer {
			c.served = g.First.Now
		}
		g.Began = call.last.Mono
		if f := c.queue.Settle(m, call.batch, &g); f.First.Own+g.Ahead > 0 && s.Clients[i].Granularity > 0 {
			c.recent.Add(g.ID)
		}
		s.settled(w, i, call)
	}
}

// settled tells the callers of a call that is complete.
func (s *search) settled(w *world, i int, call *call) {
	c := w.clients[i]
	for _, r := range call.batch.Settled {
		at := slices.IndexFunc(c.callers, func(other *caller) bool { return other.Request == r })
		if at < 0 || c.callers[at].left {
			violated("a request for %d is settled that nobody waits for", r.Permits.First)
		}
		c.callers = slices.Delete(c.callers, at, at+1)
		if n := r.Permits.First; r.Outcome.First.Allowed {
			if r.Kind == schedule.UpTo {
				n = r.Outcome.Taken
			}
			s.granted(w, call, n)
		}
	}
	c.callers = slices.DeleteFunc(c.callers, func(r *caller) bool { return r.left && !r.InFlight() })
}

// granted judges the grant of a call, unless a change has forgotten it.
func (s *search) granted(w *world, call *call, n int64) {
	if !call.void {
		s.grant(w, n, call.last.Mono)
	}
}
