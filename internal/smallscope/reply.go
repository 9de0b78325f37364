package smallscope

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// server executes the messages of a client.
func (s *search) server(w *world, i int) error {
	for at, m := range w.clients[i].sent {
		done, err := s.run(w, m.command)
		if err != nil {
			return err
		}
		err = s.event(w, i, func(next *world, c *client) error {
			if s.commands.all[m.command].sha == s.Acquire.SHA {
				if err := s.notInDebt(&s.stores.all[w.store], &s.stores.all[done.store]); err != nil {
					return err
				}
			}
			next.store = done.store
			c.sent = slices.Delete(c.sent, at, at+1)
			if m.what == sets {
				s.forgetAll(next, i)
			}
			if m.life != c.life {
				return nil
			}
			return s.executed(next, i, m, done.reply)
		}, "the server executes %q of %s: %v", s.commands.all[m.command].args, s.Clients[i].Name,
			s.replies.all[done.reply])
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetAll forgets all grants, as a change does.
func (s *search) forgetAll(w *world, by int) {
	w.grants = nil
	for i, c := range w.clients {
		if i != by {
			c = c.clone()
		}
		for at := range c.calls {
			c.calls[at].void = c.calls[at].replied
		}
		w.clients[i] = c
	}
}

// executed tells a client of the reply to a message. That to a call comes later, or never.
func (s *search) executed(w *world, i int, m message, reply int) error {
	c := w.clients[i]
	switch m.what {
	case givesBack:
		returned, _, err := protocol.Release{}.Reply(figures(s.replies.all[reply]))
		c.ledger().Done(m.back, returned)
		return err
	case sets:
		c.changing = unchanged
		c.queue.Changed()
		return nil
	}
	for at := range c.calls {
		call := &c.calls[at]
		if call.ids != m.ids || call.attempt != m.attempt {
			continue
		}
		call.replied, call.reply = true, reply
		if c.retries == 0 && (call.Batch == nil || call.Ask.Lease == 0) {
			// After a later reply, the grant is certainly in no further window, and the client is
			// free later. So nothing is missed if the reply comes at once.
			return s.receive(w, i, at)
		}
		return nil
	}
	return nil
}

// replied lets a client have replies, or wait for them no longer.
func (s *search) replied(w *world, i int) error {
	spec := &s.Clients[i]
	for at := range w.clients[i].calls {
		call := &w.clients[i].calls[at]
		var err error
		if call.replied {
			err = s.event(
				w, i, func(next *world, _ *client) error {
					return s.receive(next, i, at)
				}, "%s has the reply %v", spec.Name,
				s.replies.all[call.reply],
			)
		}
		if err == nil && w.clients[i].retries > 0 {
			err = s.lose(w, i, at)
		}
		if err == nil && spec.Stalls && call.Batch != nil && call.State() == schedule.BatchSent {
			err = s.event(w, i, func(next *world, c *client) error {
				if !c.queue.Stalled(s.moment(next, i), c.calls[at].Batch) {
					return errNoStep
				}
				return nil
			}, "a call of %s stalls", spec.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errLost = errors.New("lost")

// lose lets a client wait no longer for a reply: the call fails, or there is another attempt.
func (s *search) lose(w *world, i, at int) error {
	for way, text := range []string{"it fails", "it is repeated", "it fails with the requests behind it"} {
		if way > 0 && s.Clients[i].Foreign != nil ||
			way == 2 && len(w.clients[i].callers) == w.clients[i].calls[at].Requests() {
			break
		}
		err := s.event(w, i, func(next *world, c *client) error {
			c.retries--
			call := c.calls[at]
			c.calls = slices.Delete(c.calls, at, at+1)
			switch {
			case way == 1:
				call.attempt++
				s.send(next, i, call)
			case way == 2:
				return s.fail(next, i, &call, errLost)
			case c.queue != nil:
				return s.fail(next, i, &call, nil)
			}
			return nil
		}, "%s waits no longer for a call: %s", s.Clients[i].Name, text)
		if err != nil {
			return err
		}
	}
	return nil
}

// fail ends a call with an error, and perhaps the requests that had to wait for it.
func (s *search) fail(w *world, i int, call *call, behind error) error {
	w.clients[i].queue.Fail(s.moment(w, i), call.Batch, errLost, behind)
	return s.settled(w, i, call)
}

// receive gives a client the reply to a call.
func (s *search) receive(w *world, i, at int) error {
	c := w.clients[i]
	call := c.calls[at]
	c.calls = slices.Delete(c.calls, at, at+1)
	reply := s.replies.all[call.reply]
	if s.Clients[i].Foreign != nil {
		if reply != nil {
			return nil
		}
		return s.granted(w, &call, call.n)
	}
	r, e, _ := s.request(w, i, &call)
	g, err := r.Reply(e, new(script.Attempts), figures(reply))
	if err != nil { // the outcome is unknown
		return s.fail(w, i, &call, nil)
	}
	if s.Clients[i].ByServer {
		c.served = g.Now
	}
	m := s.moment(w, i)
	c.held += g.Ahead
	g.Began = Epoch.Add(s.Times[call.last])
	f := c.queue.Settle(m, call.Batch, &g)
	if f.Own+g.Ahead > 0 {
		if s.Clients[i].Granularity > 0 {
			ids := s.recents.all[c.recent]
			ids.Add(g.ID)
			c.recent = s.recents.of(fmt.Sprint(ids), ids)
		}
		if call.attempt > 0 {
			s.result.Restored++
		}
	}
	if err := s.judge(w, i, &call, &g, &f); err != nil {
		return err
	}
	return s.settled(w, i, &call)
}

// settled tells the callers of a call that is complete.
func (s *search) settled(w *world, i int, call *call) error {
	c := w.clients[i]
	for _, r := range call.Settled {
		at := slices.IndexFunc(c.callers, func(other caller) bool { return other.Request == r })
		if at < 0 || c.callers[at].left {
			return s.violated("a request for %d is settled that nobody waits for", r.N)
		}
		c.callers = slices.Delete(c.callers, at, at+1)
		if n := r.N; r.Outcome.Allowed {
			if r.Kind == schedule.UpTo {
				n = r.Outcome.Taken
			}
			if err := s.granted(w, call, n); err != nil {
				return err
			}
		}
	}
	c.callers = slices.DeleteFunc(c.callers, func(r caller) bool { return r.left && !r.InFlight() })
	return nil
}

// granted judges the grant of a call, unless a change has forgotten it.
func (s *search) granted(w *world, call *call, n int64) error {
	if call.void {
		return nil
	}
	return s.grant(w, n, Epoch.Add(s.Times[call.last]), s.now(w))
}
