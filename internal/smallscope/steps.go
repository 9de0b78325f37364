package smallscope

import (
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/replay"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// visit checks a state that was not seen before, and takes each step that is possible.
func (s *search) visit(w *world) {
	s.judge(w)
	if w.at+1 < len(s.Times) {
		s.Step(w, func(next *world) { next.at++ }, "the time is %v", s.Times[w.at+1])
	}
	for i := range s.Foreign {
		s.asksForeign(w, i)
	}
	for at := range w.strays {
		s.arrives(w, at)
	}
	for i, c := range w.clients {
		for at := range c.Calls {
			s.travels(w, i, at)
			s.fails(w, i, at)
		}
		for kind, k := range s.Clients[i].Callers {
			for _, n := range k.Sizes {
				s.comes(w, i, kind, n)
			}
		}
		s.suffers(w, i)
		for at := range c.Queues {
			s.leaves(w, i, at)
			s.background(w, i, at)
		}
	}
}

// asksForeign lets a foreign client ask. It makes one call at a time.
func (s *search) asksForeign(w *world, i int) {
	f := &s.Foreign[i]
	asks := func(s stray) bool { return s.permits > 0 && s.foreign == i }
	if w.foreign[i] == 0 || slices.ContainsFunc(w.strays, asks) {
		return
	}
	for _, n := range f.Sizes {
		s.Step(w, func(next *world) {
			next.foreign[i]--
			now, id := s.now(w), uint64(i+1)<<32|uint64(next.foreign[i])
			command := s.server.Command(f.SHA, f.Keys(replay.Name(0)), f.Args(n, now.UnixMilli(), id))
			next.add(stray{command, n, i, now})
		}, "%s asks for %d", f.Name, n)
	}
}

// arrives lets the server execute a command that is of no client.
func (s *search) arrives(w *world, at int) {
	stray := w.strays[at]
	_, reply := s.run(w, stray.command)
	s.Step(w, func(next *world) {
		next.strays = slices.Delete(next.strays, at, at+1)
		if reply := s.execute(next, stray.command); stray.permits > 0 && reply == nil { // it is granted
			s.grant(next, 0, stray.permits, stray.sent)
		}
	}, "the server executes %q: %v", s.server.Args(stray.command), reply)
}

// A scene is where an event happens: a queue of a client in a world, at the client's time.
type scene struct {
	*world
	*client
	queue *replay.Queue
	now   schedule.Moment
}

// event lets something happen.
func (s *search) event(w *world, i, queue int, happens func(e scene), what string, args ...any) {
	s.Step(w, func(next *world) {
		s.world = next
		c := next.clients[i]
		happens(scene{next, c, c.Queues[queue], s.moment(w.at, c)})
		s.server.Exit(c.Client, s.moment(w.at, c), queue)
	}, s.Clients[i].Name+": "+what, args...)
}

// travels lets a call be sent, executed, or its reply arrive.
func (s *search) travels(w *world, i, at int) {
	c := w.clients[i]
	call := c.Calls[at]
	switch {
	case call.Reply != nil:
		s.event(w, i, call.Queue, func(e scene) { s.receives(e, at) }, "it has the reply %v", call.Reply)
	case call.Command != 0:
		_, reply := s.run(w, call.Command)
		s.event(w, i, call.Queue, func(e scene) { s.executed(e, at) },
			"the server executes %q: %v", s.server.Args(call.Command), reply)
	case c.Sends(at):
		s.event(w, i, call.Queue, func(e scene) { s.server.Send(e.Client, e.now, at) },
			"it gives back permits, or changes the limiter")
	}
}

// executed lets the server execute a call. The reply arrives at once if nothing is missed by that:
// after a later one, the grant is certainly in no further window, and the client is free later.
func (s *search) executed(e scene, at int) {
	call := e.Calls[at]
	for _, figure := range s.execute(e.world, call.Command).([]any) {
		call.Reply = append(call.Reply, figure.(int64))
	}
	if call.Batch == nil || e.retries == 0 && call.Batch.Ask.Lease == 0 {
		s.receives(e, at)
	}
}

// receives gives a client the reply to a call, and judges what its callers are told.
func (s *search) receives(e scene, at int) {
	call := e.Calls[at]
	s.server.Receive(e.Client, e.now, at)
	if call.Batch == nil || call.Void {
		return
	}
	for _, r := range call.Batch.Settled {
		waits := r.Kind == schedule.Wait && e.now.Clock.Before(r.End) && len(e.queue.Limiters) == 1
		if waits && !r.Outcome.First.Allowed && e.queue.Waiting() == 0 && s.free(e.world, e.client, e.queue, r) {
			deep.Violated("a caller that can wait for %v longer is refused", r.End.Sub(e.now.Clock))
		}
		for part, result := range r.Outcome.Results(len(e.queue.Limiters)) {
			n := *r.Permits.Of(part)
			if r.Kind == schedule.UpTo {
				n = r.Outcome.Taken
			}
			if result.Allowed {
				s.grant(e.world, e.queue.Limiters[part], n, call.Sent())
			}
		}
	}
}

// fails lets a client not wait for a call that asks.
func (s *search) fails(w *world, i, at int) {
	c := w.clients[i]
	call := c.Calls[at]
	if call.Batch == nil {
		return
	}
	q := c.Queues[call.Queue]
	if c.retries > 0 {
		s.event(w, i, call.Queue, func(e scene) { e.lose(e.Lose(e.now, at, false)) },
			"it waits no longer for a call, which fails")
		s.event(w, i, call.Queue, func(e scene) { e.lose(s.server.Repeat(e.Client, e.now, at)) },
			"it waits no longer for a call, and repeats it")
	}
	if c.retries > 0 && q.Waiting()+q.Trying() > call.Batch.Requests() {
		s.event(w, i, call.Queue, func(e scene) { e.lose(e.Lose(e.now, at, true)) },
			"it waits no longer for a call, which fails with the requests behind it")
	}
	if s.Clients[i].Stalls && call.Batch == q.InFlight() {
		s.event(w, i, call.Queue, func(e scene) { e.queue.Stalled(e.Calls[at].Batch) }, "a call stalls")
	}
}

// lose notes a command of which the client does not wait for the reply any longer.
func (e scene) lose(command replay.Command) {
	e.retries--
	e.add(stray{command: command})
}

// comes lets a caller come. A lease serves it, or it joins a queue.
func (s *search) comes(w *world, i, kind int, n int64) {
	c, k := w.clients[i], &s.Clients[i].Callers[kind]
	queue := c.QueueOf(k.Of)
	offer, _ := c.Queues[queue].Ledger().Offers(n, s.moment(w.at, c))
	if c.comes[kind] == 0 && (k.Kind == schedule.UpTo || offer == nil) {
		return
	}
	s.event(w, i, queue, func(e scene) {
		if k.Kind != schedule.UpTo && s.lends(e, n) {
			if s.Clients[i].Changes == 0 { // nothing that matters can happen before
				e.refill()
			}
			return
		}
		e.comes[kind]--
		r := &schedule.Request{Permits: protocol.Same(len(e.queue.Limiters), n), Kind: k.Kind, Owner: k}
		if k.Timeout > 0 {
			if r.End = e.now.Clock.Add(k.Timeout); !s.Clients[i].FailFast {
				r.Until = r.End
			}
		}
		e.Join(queue, r)
	}, "a caller comes for %d of %v, and %s", n, k.Of, k)
}

// lends serves a caller from a lease, and reports whether that has enough permits.
func (s *search) lends(e scene, n int64) bool {
	if !e.queue.Ledger().Holds() {
		return false
	}
	from, _, refill := e.queue.Ledger().Take(n, e.now)
	e.queue.Refills = e.queue.Refills || refill
	if from != nil {
		s.result.Leased++
		s.grant(e.world, 0, n, e.now.Mono)
	}
	return from != nil
}

// refill lets the next batch take more permits ahead, if a request has found that it is to.
func (e scene) refill() {
	if e.queue.Refills {
		e.queue.Refills = false
		e.queue.Refill()
	}
}

// suffers lets a client crash, or its clock be set back. What it has sent may still arrive.
func (s *search) suffers(w *world, i int) {
	c, spec := w.clients[i], &s.Clients[i]
	if w.crashes < s.Crashes {
		s.Step(w, func(next *world) {
			next.crashes++
			c := next.clients[i]
			for len(c.Calls) > 0 {
				next.add(stray{command: c.Drop(0)})
			}
			c.life++
			c.Client = s.client(i, c.life)
		}, "%s crashes", spec.Name)
	}
	if c.back < spec.Back {
		s.event(w, i, 0, func(e scene) { e.back = spec.Back }, "its clock is set back by %v", spec.Back)
	}
}

// leaves lets waiting callers leave: their contexts or their timeouts end.
func (s *search) leaves(w *world, i, queue int) {
	c, q := w.clients[i], w.clients[i].Queues[queue]
	for at, r := range slices.Collect(q.Line()) {
		if r.Owner.(*Caller).Leaves {
			s.event(w, i, queue, func(e scene) { e.queue.Leave(slices.Collect(e.queue.Line())[at]) },
				"a caller that waits for %v leaves", r.Permits)
		}
		if !r.Until.IsZero() && !s.moment(w.at, c).Clock.Before(r.Until) {
			s.event(w, i, queue, func(e scene) {
				r := slices.Collect(e.queue.Line())[at]
				e.queue.Expire(r)
				if s.server.Exit(e.Client, e.now, queue); !r.InFlight() {
					e.queue.Leave(r)
					new(schedule.Outcome).Results(len(q.Limiters)) // what the caller is told
				}
			}, "the timeout of a caller that waits for %v is over", r.Permits)
		}
	}
}

// background lets a queue wake and refill its lease, and a client begin a change.
func (s *search) background(w *world, i, queue int) {
	c, q := w.clients[i], w.clients[i].Queues[queue]
	if wake, _ := q.Wake(); !wake.IsZero() && !s.now(w).Before(wake) {
		s.event(w, i, queue, func(scene) {}, "a queue wakes")
	}
	if q.Refills {
		s.event(w, i, queue, scene.refill, "it refills its lease")
	}
	if queue == 0 && c.changes > 0 && !c.Changing() {
		s.event(w, i, queue, func(e scene) {
			e.changes--
			s.server.Change(e.Client, e.now)
		}, "it begins a change")
	}
}
