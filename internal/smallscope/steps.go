package smallscope

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
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

// event lets something happen to a client, and then sends the batches that are due, in a world of its own for each number of
// permits that a batch may take ahead.
func (s *search) event(w *world, i int, do func(next *world, c *client) error, what string, args ...any) error {
	s.enter(what, args...)
	defer s.leave()
	for _, ahead := range append([]int64{0}, s.Clients[i].Ahead...) {
		next, c := w.copy(), w.clients[i].clone()
		next.clients[i], c.ahead = c, ahead
		if c.at != w.at {
			c.at, c.burst = w.at, 0
		}
		if err := s.happens(&next, i, do); err == errNoStep {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.visit(next); err != nil {
			return err
		}
		if !c.wished {
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

// exit sends the batches that are due.
func (s *search) exit(w *world, i int) error {
	c, m := w.clients[i], s.moment(w, i)
	for c.queue.Due(m) {
		call := call{
			Batch: new(schedule.Batch), ids: c.ids, recent: c.recent, served: c.served, ticket: c.ledger.Ticket(), first: w.at, setFirst: c.set,
		}
		for _, other := range c.callers {
			if other.Kind == schedule.Wait && !other.InFlight() && other.N <= s.Rate {
				call.behind = append(call.behind, other.number)
			}
		}
		slices.Sort(call.behind)
		before := c.queue.InFlight()
		if !c.queue.Fill(m, call.Batch, c.wish) {
			if c.queue.Due(m) {
				return s.violated("a batch is due, though there is nothing to ask")
			}
			break
		}
		if !call.Ask.UpTo && before != nil {
			return s.violated("a batch is sent while the queue waits for another one")
		}
		if call.Requests() == 0 && !c.ledger.Holds() {
			return s.violated("a call without callers takes a lease, though there is none to follow")
		}
		if call.Ask.Lease > 0 && (c.queue.Waiting() > 0 || len(c.calls) > 0) {
			return s.violated("a call takes %d permits ahead, though %d callers wait and %d calls have stalled", call.Ask.Lease, c.queue.Waiting(), len(c.calls))
		}
		if c.burst++; c.burst > mostCalls {
			return s.violated("a storm: %d calls without a pause", c.burst)
		}
		s.send(w, i, call)
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

// wish returns how many permits a batch takes ahead.
func (c *client) wish(d lease.Draft) int64 {
	d.May = d.May && c.changing == unchanged
	if !c.ledger.May(d) {
		return 0
	}
	c.wished = true
	return c.ahead
}

// trouble lets a client crash, or sets back its clock.
func (s *search) trouble(w *world, i int) error {
	spec, c := &s.Clients[i], w.clients[i]
	if s.Crashes > w.crashes && (c.ledger.Holds() || len(c.calls) > 0) {
		next := w.copy()
		next.crashes++
		own := &client{comes: c.comes, retries: c.retries, changes: c.changes, life: c.life + 1, set: c.set, sent: c.sent}
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
			held := k.Kind != schedule.UpTo && c.ledger.Holds()
			if c.comes[kind] == 0 && !held {
				continue
			}
			err := s.event(w, i, func(next *world, c *client) error {
				if held {
					from, _, refill := c.ledger.Take(n, s.leaseMoment(next, i))
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
	if k.Kind == schedule.Wait {
		c.ledger.Bar()
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
	if r.Kind == schedule.Wait {
		c.ledger.Unbar()
	}
	if r.left = c.queue.Leave(r.Request) != nil; !r.left {
		c.callers = slices.Delete(c.callers, at, at+1)
	}
}

// timer lets the queue wake.
func (s *search) timer(w *world, i int) error {
	if at := w.clients[i].queue.Wake(); !at.IsZero() && !s.now(w).Before(at) {
		return s.event(w, i, func(*world, *client) error { return nil }, "the queue of %s wakes", s.Clients[i].Name)
	}
	return nil
}

// background lets a client do what it does in the background: it refills and ends leases, gives them back, and changes the limiter.
func (s *search) background(w *world, i int) (err error) {
	spec, c := &s.Clients[i], w.clients[i]
	if c.ledger == nil && spec.Changes == 0 {
		return nil
	}
	if c.refills {
		err = s.event(w, i, func(_ *world, c *client) error {
			c.refill()
			return nil
		}, "%s refills its lease", spec.Name)
	}
	if err == nil && c.ledger.Holds() {
		err = s.event(w, i, func(next *world, c *client) error {
			before := c.ledger.Unused()
			if c.ledger.Sweep(s.leaseMoment(next, i)); c.ledger.Holds() && c.ledger.Unused() == before {
				return errNoStep
			}
			return nil
		}, "%s ends its lease", spec.Name)
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
			unused, givenBack := c.ledger.Change()
			if c.changing = waits; givenBack == nil {
				c.changing = ready
			}
			for _, back := range unused {
				s.sendBack(next, i, back)
			}
			return nil
		}, "%s begins a change", spec.Name)
	}
	if err == nil && (c.changing == ready || c.changing == waits && c.ledger.GivenBack()) {
		err = s.event(w, i, func(next *world, c *client) error {
			c.changing = changes
			request := protocol.SetRate{Now: s.argument(next, i), Rate: protocol.Rate{Permits: s.Rate, Interval: s.Interval.Milliseconds()}}
			s.post(next, i, message{command: s.command(protocol.SetRateScript.SHA, keysOf(s.id(i, c.life)), request.Args()), what: sets})
			return nil
		}, "%s sends a change", spec.Name)
	}
	return err
}

// refill lets the next batch ask for more permits than those of the lease.
func (c *client) refill() {
	c.refills = false
	if c.ledger.MustRefill() {
		c.queue.Refill()
	}
}

// startBack lets a client give back the first permits that are to be given back.
func (s *search) startBack(w *world, i int) {
	c := w.clients[i]
	first := c.backs[0].Back
	c.backs = c.backs[1:]
	if c.ledger.Start(first) {
		s.sendBack(w, i, first)
	}
}

// sendBack sends a request that gives back permits. It is executed once, later, or never.
func (s *search) sendBack(w *world, i int, back lease.Back) {
	id := s.id(i, w.clients[i].life)
	request := protocol.Release{
		Now: s.argument(w, i), Permits: back.Permits, Granted: back.At, Own: record.NewIdentity(id).Origin(record.Redisson317),
	}
	s.post(w, i, message{command: s.command(s.Release.SHA, keysOf(id), request.Args()), what: givesBack, back: back})
}

// argument returns a client's time as an argument.
func (s *search) argument(w *world, i int) any {
	if s.Clients[i].ByServer {
		return ""
	}
	now := s.moment(w, i).Clock
	e := new(protocol.Encoder)
	e.Init(protocol.Options{}, nil, func() time.Time { return now })
	return e.Now()
}

// post puts a message on its way.
func (s *search) post(w *world, i int, m message) {
	c := w.clients[i]
	m.life = c.life
	c.sent = append(c.sent, m)
}

// send sends an attempt of a call, which is added to the open ones.
func (s *search) send(w *world, i int, call call) {
	c := w.clients[i]
	call.last, call.set, call.replied, call.reply, call.void = w.at, c.set, false, 0, false
	c.calls = append(c.calls, call)
	m := message{ids: call.ids, attempt: call.attempt}
	if f := s.Clients[i].Foreign; f != nil {
		c.ids = max(c.ids, call.ids+1)
		id := uint64(i+1)<<32 | uint64(c.life)<<16 | call.ids
		m.command = s.command(f.SHA, f.Keys(name), f.Args(call.n, s.moment(w, i).Clock.UnixMilli(), id))
	} else {
		r, _, args := s.request(w, i, &call)
		c.ids = max(c.ids, call.ids+uint64(r.Records))
		m.command = s.command(s.Acquire.SHA, keysOf(s.id(i, c.life)), args)
	}
	s.post(w, i, m)
}

// id returns the id of a client in one of its lives.
func (s *search) id(i, life int) string { return fmt.Sprint(s.Clients[i].Name, " ", life) }

// request returns the request of the last attempt of a call, and its arguments.
func (s *search) request(w *world, i int, call *call) (*protocol.AcquireRequest, *protocol.Encoder, []any) {
	identity, spec := record.NewIdentity(s.id(i, w.clients[i].life)), &s.Clients[i]
	identity.StartAt(call.ids)
	at := s.clock(i, call.first, call.setFirst)
	e := new(protocol.Encoder)
	e.Init(protocol.Options{Lease: spec.Lease, Granularity: spec.Granularity, ServerTime: spec.ByServer}, identity, func() time.Time { return at })
	r := new(protocol.AcquireRequest)
	if call.served > 0 { // the encoder learns it from a reply
		_, _ = new(protocol.AcquireRequest).Reply(e, new(script.Attempts), []int64{0, s.Rate, s.Interval.Milliseconds(), 0, 0, 0, call.served, 0})
	}
	r.Next(s.recents.all[call.recent])
	args := r.Args(nil, e, call.Ask, false)
	if call.attempt > 0 {
		at = s.clock(i, call.last, call.set)
		args = r.Args(nil, e, call.Ask, true)
	}
	return r, e, args
}

// server executes the messages of a client.
func (s *search) server(w *world, i int) error {
	for at, m := range w.clients[i].sent {
		done, err := s.run(w, m.command)
		if err != nil {
			return err
		}
		err = s.event(w, i, func(next *world, c *client) error {
			next.store = done.store
			c.sent = slices.Delete(c.sent, at, at+1)
			if m.what == sets {
				s.forgetAll(next, i)
			}
			if m.life != c.life {
				return nil
			}
			return s.executed(next, i, m, done.reply)
		}, "the server executes %q of %s: %v", s.commands.all[m.command].args, s.Clients[i].Name, s.replies.all[done.reply])
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
		c.ledger.Done(m.back, returned)
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
			// After a later reply, the grant is certainly in no further window, and the client is free later. So nothing is
			// missed if the reply comes at once.
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
			err = s.event(w, i, func(next *world, _ *client) error { return s.receive(next, i, at) }, "%s has the reply %v", spec.Name, s.replies.all[call.reply])
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
		if way > 0 && s.Clients[i].Foreign != nil || way == 2 && len(w.clients[i].callers) == w.clients[i].calls[at].Requests() {
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
	c.ledger.Saw(g.Interval)
	if g.Ahead > 0 {
		s.hold(w, i, &call, &g)
	}
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
	c.queue.Reserve(m, call.Batch, false)
	if err := s.judge(w, i, &call, &g, &f); err != nil {
		return err
	}
	return s.settled(w, i, &call)
}

// hold stores the lease that a call has brought.
func (s *search) hold(w *world, i int, call *call, g *protocol.AcquireReply) {
	c := w.clients[i]
	c.held += g.Ahead
	held := &lease.Lease{
		Rate: g.Rate, Interval: g.Interval, Free: g.Free, At: g.At, Began: Epoch.Add(s.Times[call.last]),
		Lasts: time.Duration(g.At-g.Now) * time.Microsecond, Permits: g.Ahead,
	}
	c.ledger.Brought(call.ticket, held, call.State() == schedule.BatchDetached, s.leaseMoment(w, i))
	held.Renews = held.Lasts - held.Lasts/8 // not at random
}

// settled tells the callers of a call that is complete.
func (s *search) settled(w *world, i int, call *call) error {
	c := w.clients[i]
	for _, r := range call.Settled {
		at := slices.IndexFunc(c.callers, func(other caller) bool { return other.Request == r })
		if at < 0 || c.callers[at].left {
			return s.violated("a request for %d is settled that nobody waits for", r.N)
		}
		if r.Kind == schedule.Wait {
			c.ledger.Unbar()
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

// moment returns a client's time.
func (s *search) moment(w *world, i int) schedule.Moment {
	return schedule.Moment{Clock: s.clock(i, w.at, w.clients[i].set), Mono: s.now(w)}
}

// leaseMoment returns the time by the clock that dates grants.
func (s *search) leaseMoment(w *world, i int) schedule.Moment {
	if s.Clients[i].ByServer {
		return schedule.Moment{Clock: s.now(w), Mono: s.now(w)}
	}
	return s.moment(w, i)
}

// clock returns a client's time at one of the Times; set says whether its clock was set back.
func (s *search) clock(i, at int, set bool) time.Time {
	now := Epoch.Add(s.Times[at])
	if set {
		now = now.Add(-s.Clients[i].Back)
	}
	return now
}
