package smallscope

import (
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// steps takes each possible step of a client, and of the server for it.
func (s *search) steps(w *world, i int) error {
	steps := []func(*world, int) error{s.trouble, s.server, s.replied}
	if s.Clients[i].Foreign != nil {
		steps = append(steps, s.ask)
	} else {
		steps = append(steps, s.come, s.goes, s.timer, s.background)
	}
	for _, take := range steps {
		if err := take(w, i); err != nil {
			return err
		}
	}
	return nil
}

// errNoStep means that an event is none.
var errNoStep = errors.New("no step")

// event lets something happen to a client, and then sends the batches that are due, in a world of
// its own for each number of permits that a batch may take ahead.
func (s *search) event(w *world, i int, do func(next *world, c *client) error, what string, args ...any) error {
	s.enter(what, args...)
	defer s.leave()
	for _, ahead := range append([]int64{0}, s.Clients[i].Ahead...) {
		next, c := w.copy(), w.clients[i].clone()
		next.clients[i], s.ahead, s.mayTake = c, ahead, false
		if c.at != w.at {
			c.at, c.burst = w.at, 0
		}
		if err := s.happens(&next, i, do); err == errNoStep {
			return nil
		} else if err != nil {
			return err
		}
		might := s.mayTake // visit changes it
		if err := s.visit(next); err != nil {
			return err
		}
		if !might {
			return nil
		}
	}
	return nil
}

// happens lets something happen to a client. A panic is a violation.
func (s *search) happens(next *world, i int, do func(next *world, c *client) error) (err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = s.violated("%v", failure)
		}
	}()
	c := next.clients[i]
	if err := do(next, c); err != nil || c.queue == nil {
		return err
	}
	return s.exit(next, i)
}

// mostCalls is how many calls a client makes at one moment.
const mostCalls = 12

// exit does what the queue says.
func (s *search) exit(w *world, i int) error {
	c, before := w.clients[i], w.clients[i].queue.InFlight()
	var behind [][]int // of each batch: numbers of the waiting callers that it must not pass
	now := func() schedule.Moment { return s.moment(w, i) }
	send, fx := c.queue.Next(nil, now, func(schedule.Moment) *schedule.Batch {
		behind = append(behind, c.inLine(s.Rate))
		return &schedule.Batch{Changing: c.changing != unchanged}
	})
	for at, b := range send {
		switch {
		case !b.Ask.UpTo && before != nil:
			return s.violated("a batch is sent while the queue waits for another one")
		case b.Requests() == 0 && !c.ledger().Holds():
			return s.violated("a call without callers takes a lease, though there is none to follow")
		case b.Ask.Lease > 0 && (c.queue.Waiting() > 0 || len(c.calls) > 0):
			return s.violated("a call takes %d permits ahead, though %d callers wait and %d calls have stalled",
				b.Ask.Lease, c.queue.Waiting(), len(c.calls))
		}
		if c.burst++; c.burst > mostCalls {
			return s.violated("a storm: %d calls without a pause", c.burst)
		}
		s.send(w, i, call{
			Batch: b, behind: behind[at], ids: c.ids, recent: c.recent, served: c.served, first: w.at, setFirst: c.set,
		})
	}
	for _, unused := range fx.Back {
		c.backs = append(c.backs, back{unused, c.changes})
	}
	if err := s.quiet(w, i, fx.Wake); err != nil {
		return err
	}
	for s.Clients[i].Changes == 0 && len(c.backs) > 0 { // else it is a step of its own
		s.startBack(w, i)
	}
	if s.Clients[i].Changes == 0 && c.refills {
		c.refill()
		return s.exit(w, i)
	}
	return s.sound(w, i)
}

// inLine returns the numbers of the callers that wait to be asked for, in order.
func (c *client) inLine(rate int64) (numbers []int) {
	for _, r := range c.callers {
		if r.Kind == schedule.Wait && !r.InFlight() && r.N <= rate {
			numbers = append(numbers, r.number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// quiet checks that Next has no effects if it is called again, now or before the time to wake,
// which is to come.
func (s *search) quiet(w *world, i int, wake time.Time) error {
	c, mayTake := w.clients[i], s.mayTake
	if !wake.IsZero() && !wake.After(s.now(w)) {
		return s.violated("the queue of %s wakes at a time that is over", s.Clients[i].Name)
	}
	for at := w.at; at < len(s.Times); at++ {
		m := schedule.Moment{Clock: s.clock(i, at, c.set), Mono: Epoch.Add(s.Times[at])}
		if !wake.IsZero() && !m.Mono.Before(wake) {
			break
		}
		again, _, _ := c.queue.Clone(nil, nil)
		now := func() schedule.Moment { return m }
		send, fx := again.Next(nil, now, func(schedule.Moment) *schedule.Batch { return new(schedule.Batch) })
		if len(send)+len(fx.Back) > 0 || fx.Spare != nil {
			return s.violated("the queue of %s has something to do at %v, but wakes only at %v (zero: never)",
				s.Clients[i].Name, s.Times[at], wake.Sub(Epoch))
		}
	}
	s.mayTake = mayTake
	return nil
}

// takesAhead returns how many permits a batch takes ahead that may take some.
func (s *search) takesAhead() int64 {
	s.mayTake = true
	return s.ahead
}

// trouble lets a client crash, or sets back its clock.
func (s *search) trouble(w *world, i int) error {
	spec, c := &s.Clients[i], w.clients[i]
	if s.Crashes > w.crashes && (c.ledger().Holds() || len(c.calls) > 0) {
		next := w.copy()
		next.crashes++
		own := &client{
			comes:   c.comes,
			retries: c.retries,
			changes: c.changes,
			life:    c.life + 1,
			set:     c.set,
			sent:    c.sent,
		}
		s.start(own, i)
		next.clients[i] = own
		if err := s.step(next, "%s crashes", spec.Name); err != nil {
			return err
		}
	}
	if spec.Back > 0 && !c.set {
		return s.event(w, i, func(_ *world, c *client) error {
			c.set = true
			return nil
		}, "the clock of %s is set back by %v", spec.Name, spec.Back)
	}
	return nil
}

// come lets callers come. A lease serves them, or they join the queue.
func (s *search) come(w *world, i int) error {
	spec, c := &s.Clients[i], w.clients[i]
	for kind, k := range spec.Callers {
		for _, n := range k.Sizes {
			held := k.Kind != schedule.UpTo && c.ledger().Holds()
			if c.comes[kind] == 0 && !held {
				continue
			}
			err := s.event(w, i, func(next *world, c *client) error {
				if held {
					from, _, refill := c.ledger().Take(n, s.moment(next, i))
					if from != nil {
						c.refills = c.refills || refill
						c.held -= n
						s.result.Leased++
						return s.grant(next, n, s.now(next), s.now(next))
					}
				}
				if c.comes[kind] == 0 || k.Kind == schedule.UpTo && c.queue.Waiting() > 0 {
					return errNoStep
				}
				c.comes[kind]--
				s.join(next, i, kind, n)
				return nil
			}, "a caller of %s comes for %d: %s", spec.Name, n, k)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// join adds a caller to the queue.
func (s *search) join(w *world, i, kind int, n int64) {
	c, k := w.clients[i], &s.Clients[i].Callers[kind]
	r := &schedule.Request{N: n, Kind: k.Kind}
	if k.Timeout > 0 {
		r.Until = s.moment(w, i).Clock.Add(k.Timeout)
		r.End = r.Until
	}
	c.arrivals++
	at := len(c.callers)
	for at > 0 && c.callers[at-1].kind > kind {
		at--
	}
	c.callers = slices.Insert(c.callers, at, caller{Request: r, kind: kind, number: c.arrivals})
	c.queue.Join(r)
}

// goes lets callers leave: their contexts or their timeouts end.
func (s *search) goes(w *world, i int) error {
	spec, m := &s.Clients[i], s.moment(w, i)
	for at, r := range w.clients[i].callers {
		var err error
		if spec.Callers[r.kind].Leaves && !r.left {
			err = s.event(w, i, func(_ *world, c *client) error {
				c.leave(at)
				return nil
			}, "a caller of %s for %d leaves", spec.Name, r.N)
		}
		if err == nil && !r.Until.IsZero() && !r.expired && !r.left && !m.Clock.Before(r.Until) {
			err = s.event(w, i, func(next *world, c *client) error {
				c.callers[at].expired = true
				c.queue.Expire(c.callers[at].Request)
				if err := s.exit(next, i); err != nil {
					return err
				}
				if !c.callers[at].InFlight() {
					c.leave(at)
				}
				return nil
			}, "the timeout of a caller of %s for %d is over", spec.Name, r.N)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// leave takes away the request of a caller.
func (c *client) leave(at int) {
	r := &c.callers[at]
	if r.left = c.queue.Leave(r.Request) != nil; !r.left {
		c.callers = slices.Delete(c.callers, at, at+1)
	}
}

// timer lets the queue wake.
func (s *search) timer(w *world, i int) error {
	if at, _ := w.clients[i].queue.Wake(); !at.IsZero() && !s.now(w).Before(at) {
		return s.event(w, i, func(*world, *client) error { return nil }, "the queue of %s wakes", s.Clients[i].Name)
	}
	return nil
}

// background lets a client do what it does in the background: it refills and ends leases, gives
// them back, and changes the limiter.
func (s *search) background(w *world, i int) (err error) {
	spec, c := &s.Clients[i], w.clients[i]
	if c.ledger() == nil && spec.Changes == 0 {
		return nil
	}
	if c.refills {
		err = s.event(w, i, func(_ *world, c *client) error {
			c.refill()
			return nil
		}, "%s refills its lease", spec.Name)
	}
	if err == nil && len(c.backs) > 0 {
		err = s.event(w, i, func(next *world, c *client) error {
			s.startBack(next, i)
			return nil
		}, "%s begins to give back %d permits", spec.Name, c.backs[0].Permits)
	}
	if err == nil && c.changes > 0 && c.changing == unchanged {
		err = s.event(w, i, func(next *world, c *client) error {
			c.changes--
			if c.changing = ready; c.ledger() == nil {
				return nil
			}
			for _, back := range c.ledger().Change() {
				s.sendBack(next, i, back)
			}
			if c.ledger().Returning() {
				c.changing = waits
			}
			return nil
		}, "%s begins a change", spec.Name)
	}
	if err == nil && (c.changing == ready || c.changing == waits && !c.ledger().Returning()) {
		err = s.event(w, i, func(next *world, c *client) error {
			c.changing = changes
			request := protocol.SetRate{
				Now: s.argument(next, i), Rate: protocol.Rate{Permits: s.Rate, Interval: s.Interval.Milliseconds()},
			}
			s.post(
				next, i,
				message{
					command: s.command(protocol.SetRateScript.SHA, keysOf(s.id(i, c.life)), request.Args()),
					what:    sets,
				},
			)
			return nil
		}, "%s sends a change", spec.Name)
	}
	return err
}

// refill lets the next batch ask for more permits than those of the lease.
func (c *client) refill() {
	c.refills = false
	c.queue.Refill()
}

// startBack lets a client give back the first permits that are to be given back.
func (s *search) startBack(w *world, i int) {
	c := w.clients[i]
	first := c.backs[0].Back
	c.backs = c.backs[1:]
	if c.ledger().Start(first, false) {
		s.sendBack(w, i, first)
	}
}

// ask lets a foreign client make a call.
func (s *search) ask(w *world, i int) error {
	for kind, k := range s.Clients[i].Callers {
		if w.clients[i].comes[kind] == 0 || len(w.clients[i].calls) > 0 {
			continue
		}
		for _, n := range k.Sizes {
			err := s.event(w, i, func(next *world, c *client) error {
				c.comes[kind]--
				s.send(next, i, call{n: n, ids: c.ids, first: next.at, setFirst: c.set})
				return nil
			}, "%s asks for %d", s.Clients[i].Name, n)
			if err != nil {
				return err
			}
		}
	}
	return nil
}
