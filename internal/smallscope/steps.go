package smallscope

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// steps takes each possible step of a client, and of the server for it.
func (s *search) steps(w *world, i int) {
	spec, c := &s.Clients[i], w.clients[i]
	if w.crashes < s.Crashes && (c.ledger().Holds() || c.open(asks) > 0) {
		s.event(w, i, func(next *world, c *client) {
			next.crashes++
			next.clients[i] = s.crashed(i, c)
		}, "%s crashes", spec.Name)
	}
	if c.back < spec.Back {
		s.event(w, i, func(_ *world, c *client) { c.back = spec.Back },
			"the clock of %s is set back by %v", spec.Name, spec.Back)
	}
	for at := range c.calls {
		s.travels(w, i, at)
	}
	if spec.Foreign == nil {
		s.goes(w, i)
		s.background(w, i)
	}
	for kind, k := range spec.Callers {
		for _, n := range k.Sizes {
			s.comes(w, i, kind, n)
		}
	}
}

// travels lets a call be executed, its reply arrive, or its client not wait for that.
func (s *search) travels(w *world, i, at int) {
	spec, call := &s.Clients[i], w.clients[i].calls[at]
	switch {
	case !call.done:
		done := s.run(w, call.command)
		s.event(w, i, func(next *world, _ *client) { s.executed(next, i, at, done) },
			"the server executes %q of %s: %v", s.commands.all[call.command].args, spec.Name, s.replies.all[done.reply])
	case !call.alone:
		s.event(w, i, func(next *world, _ *client) { s.receive(next, i, at) },
			"%s has the reply %v", spec.Name, s.replies.all[call.reply])
	}
	if call.content != asks || call.alone {
		return
	}
	if w.clients[i].retries > 0 {
		s.event(w, i, func(next *world, _ *client) { s.lose(next, i, at, nil) },
			"%s waits no longer for a call: it fails", spec.Name)
		s.event(w, i, func(next *world, c *client) {
			again := *c.calls[at]
			again.again, again.done, again.void = true, false, false
			s.drop(c, at)
			c.retries--
			s.ask(next, i, &again)
		}, "%s waits no longer for a call: it is repeated", spec.Name)
	}
	if w.clients[i].retries > 0 && spec.Foreign == nil && len(w.clients[i].callers) > call.batch.Requests() {
		s.event(w, i, func(next *world, _ *client) { s.lose(next, i, at, errLost) },
			"%s waits no longer for a call: it fails with the requests behind it", spec.Name)
	}
	if spec.Stalls && call.batch == w.clients[i].queue.InFlight() {
		s.event(w, i, func(next *world, c *client) { c.queue.Stalled(s.moment(next.at, c), c.calls[at].batch) },
			"a call of %s stalls", spec.Name)
	}
}

// comes lets a caller come. A lease serves it, or it joins the queue. A foreign client makes one
// call at a time.
func (s *search) comes(w *world, i, kind int, n int64) {
	spec, c := &s.Clients[i], w.clients[i]
	k := &spec.Callers[kind]
	if spec.Foreign != nil {
		if c.comes[kind] > 0 && c.open(asks) == 0 {
			s.event(w, i, func(next *world, c *client) {
				c.comes[kind]--
				s.ask(next, i, &call{n: n, drawn: c.drawn, first: s.moment(next.at, c)})
			}, "%s asks for %d", spec.Name, n)
		}
		return
	}
	offer, _ := c.ledger().Offers(n, s.moment(w.at, c))
	if k.Kind == schedule.UpTo && c.queue.Waiting() > 0 ||
		c.comes[kind] == 0 && (k.Kind == schedule.UpTo || offer == nil) {
		return
	}
	s.event(w, i, func(next *world, c *client) {
		if k.Kind != schedule.UpTo && c.ledger().Holds() {
			if from, _, refill := c.ledger().Take(n, s.moment(next.at, c)); from != nil {
				c.refills = c.refills || refill
				s.result.Leased++
				s.grant(next, n, s.now(next))
				return
			}
		}
		c.comes[kind]--
		r := &schedule.Request{Permits: protocol.Permits{First: n}, Kind: k.Kind}
		if k.Timeout > 0 {
			r.Until = s.moment(next.at, c).Clock.Add(k.Timeout)
			r.End = r.Until
		}
		at := len(c.callers)
		for at > 0 && c.callers[at-1].kind > kind {
			at--
		}
		c.callers = slices.Insert(c.callers, at, &caller{Request: r, kind: kind})
		c.queue.Join(r)
	}, "a caller of %s comes for %d: %s", spec.Name, n, k)
}

// goes lets callers leave: their contexts or their timeouts end.
func (s *search) goes(w *world, i int) {
	spec, c := &s.Clients[i], w.clients[i]
	for at, r := range c.callers {
		if spec.Callers[r.kind].Leaves && !r.left {
			s.event(w, i, func(_ *world, c *client) {
				c.leave(at)
			}, "a caller of %s for %d leaves", spec.Name, r.Permits.First)
		}
		if !r.Until.IsZero() && !r.expired && !s.moment(w.at, c).Clock.Before(r.Until) {
			s.event(w, i, func(next *world, c *client) {
				c.callers[at].expired = true
				c.queue.Expire(c.callers[at].Request)
				if s.exit(next, i); !c.callers[at].InFlight() {
					c.leave(at)
				}
			}, "the timeout of a caller of %s for %d is over", spec.Name, r.Permits.First)
		}
	}
}

// leave takes away the request of a caller.
func (c *client) leave(at int) {
	r := c.callers[at]
	if r.left = c.queue.Leave(r.Request) != nil; !r.left {
		c.callers = slices.Delete(c.callers, at, at+1)
	}
}

// background lets the queue wake, and a client refill leases, give them back, and change the
// limiter.
func (s *search) background(w *world, i int) {
	spec, c := &s.Clients[i], w.clients[i]
	if at, _ := c.queue.Wake(); !at.IsZero() && !s.now(w).Before(at) {
		s.event(w, i, func(*world, *client) {}, "the queue of %s wakes", spec.Name)
	}
	if c.refills {
		s.event(w, i, func(_ *world, c *client) { c.refill() }, "%s refills its lease", spec.Name)
	}
	if len(c.backs) > 0 {
		s.event(w, i, func(next *world, _ *client) { s.startBack(next, i) },
			"%s begins to give back %d permits", spec.Name, c.backs[0].Permits)
	}
	if c.changes > 0 && !c.changing {
		s.event(w, i, func(next *world, c *client) {
			c.changes--
			c.changing = true
			for _, back := range c.ledger().Change() {
				s.giveBack(next, i, back)
			}
		}, "%s begins a change", spec.Name)
	}
	if c.changing && c.open(sets) == 0 && !c.ledger().Returning() {
		s.event(w, i, func(next *world, _ *client) { s.change(next, i) }, "%s sends a change", spec.Name)
	}
}

// refill lets the next batch ask for more permits than those of the lease.
func (c *client) refill() {
	c.refills = false
	c.queue.Refill()
}

// startBack lets a client give back the first permits that are to be given back.
func (s *search) startBack(w *world, i int) {
	c := w.clients[i]
	first := c.backs[0]
	c.backs = c.backs[1:]
	if c.ledger().Start(first, false) {
		s.giveBack(w, i, first)
	}
}

// exit does what the queue says. Refills and what is given back are steps of their own only if the
// limiter may change meanwhile.
func (s *search) exit(w *world, i int) {
	c := w.clients[i]
	now := func() schedule.Moment { return s.moment(w.at, c) }
	for again := c.queue != nil; again; {
		send, fx := c.queue.Next(nil, now, func() *schedule.Batch {
			return &schedule.Batch{Changing: c.changing}
		})
		for _, b := range send {
			s.mayAsk(i, c, b)
			s.ask(w, i, &call{batch: b, drawn: c.drawn, first: now()})
		}
		c.backs = append(c.backs, fx.Back...)
		atOnce := s.Clients[i].Changes == 0
		for atOnce && len(c.backs) > 0 {
			s.startBack(w, i)
		}
		if again = atOnce && c.refills; again {
			c.refill()
		}
	}
}
