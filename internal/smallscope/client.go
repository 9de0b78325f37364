package smallscope

import (
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A client is the state of one client: what it may still do, what it holds, and what is on its way to the server.
type client struct {
	calls, retries, ends int
	life                 int // how often it has crashed
	set                  bool
	ids                  uint64    // ids that its calls have drawn
	recent               int       // index in search.recents
	served               int64     // the server's time in the last reply (µs)
	changes              int       // as in package dispatch
	held, next           *held     // next follows held
	open                 []call    // at most two; the first one of two has stalled
	sent                 []message // requests that the server has not executed, in order
}

// A held is a lease, and how much is left of it.
type held struct {
	*lease.Lease // not begun, and never changed
	left         int64
}

// A call is one that the client waits for.
type call struct {
	ids           uint64 // drawn before it, which identifies it
	n, ahead      int64  // permits for its caller, and for a lease at most
	apart         bool   // another call has stalled
	recent        int
	served        int64
	first, last   int  // when its first and its last attempt were sent: indexes in Times
	setFirst, set bool // whether the clock was set back then
	attempt       int  // 0: the first
	before        int  // changes when it was sent
	replied       bool // the reply to the last attempt is there
	reply         int  // index in search.replies
}

// A message is a request on its way.
type message struct {
	command int // index in search.commands
	life    int
	ids     uint64
	attempt int // -1: no reply is waited for
}

// key adds all that decides what follows.
func (c *client) key(b *numbers) {
	b.flag(c.set)
	recent := 0 // no matter without a retry
	if c.retries > 0 {
		recent = c.recent
	}
	b.add(int64(c.calls), int64(c.retries), int64(c.ends), int64(c.life), int64(c.ids), int64(recent), c.served)
	for _, h := range []*held{c.held, c.next} {
		if h != nil {
			b.add(-2, h.left, h.At, h.Began.UnixMicro(), int64(h.Lasts))
		}
	}
	for _, call := range c.open {
		b.flag(call.apart)
		b.flag(call.set)
		b.flag(call.replied)
		if call.attempt == 0 && c.retries == 0 {
			call.recent, call.first, call.setFirst = 0, call.last, call.set
		}
		b.flag(call.setFirst)
		b.add(int64(call.ids), call.n, call.ahead, int64(call.recent), call.served, int64(call.first), int64(call.last),
			int64(call.attempt), int64(c.changes-call.before), int64(call.reply))
	}
	b.add(-3)
	for _, m := range c.sent {
		b.add(int64(m.command), int64(m.life), int64(m.ids), int64(m.attempt))
	}
}

// lease returns the lease as it is, for one step.
func (h *held) lease() *lease.Lease {
	l := &lease.Lease{Rate: h.Rate, Interval: h.Interval, At: h.At, Began: h.Began, Lasts: h.Lasts, Server: h.Server, Permits: h.Permits}
	l.Begin()
	l.Take(h.Permits-h.left, time.UnixMicro(h.At-1), h.Began)
	return l
}

// clock returns a client's time.
func (s *search) clock(w *world, i int) time.Time { return s.moment(i, w.at, w.clients[i].set) }

// moment returns a client's time at one of the Times; set says whether its clock was set back.
func (s *search) moment(i, at int, set bool) time.Time {
	now := Epoch.Add(s.Times[at])
	if set {
		now = now.Add(-s.Clients[i].Back)
	}
	return now
}

// steps takes each possible step of a client, and of the server for it.
func (s *search) steps(w *world, i int) error {
	spec, c := &s.Clients[i], &w.clients[i]
	if s.Crashes > w.crashes && (c.held != nil || len(c.open) > 0) {
		next := w.copy()
		next.crashes++
		next.clients[i] = client{calls: c.calls, retries: c.retries, ends: c.ends, life: c.life + 1, set: c.set, sent: c.sent}
		if err := s.step(next, "%s crashes", spec.Name); err != nil {
			return err
		}
	}
	if spec.Back > 0 && !c.set {
		next := w.copy()
		next.clients[i].set = true
		if err := s.step(next, "the clock of %s is set back by %v", spec.Name, spec.Back); err != nil {
			return err
		}
	}
	for at := range c.sent {
		if err := s.execute(w, i, at); err != nil {
			return err
		}
	}
	for at := range c.open {
		var err error
		if c.open[at].replied {
			err = s.receive(w, i, at)
		}
		if err == nil && c.retries > 0 {
			err = s.lose(w, i, at)
		}
		if err != nil {
			return err
		}
	}
	return s.ask(w, i)
}

// ask takes permits from the lease, or makes a call.
func (s *search) ask(w *world, i int) error {
	spec, c := &s.Clients[i], &w.clients[i]
	valid := c.held != nil && c.held.lease().Valid(s.clock(w, i), s.now(w))
	if c.held != nil && (!valid || c.next != nil) {
		next := w.copy()
		s.end(&next, i)
		if err := s.step(next, "the lease of %s ends, or the next one follows", spec.Name); err != nil {
			return err
		}
	}
	if valid && c.ends > 0 {
		next := w.copy()
		next.clients[i].ends--
		next.clients[i].changes++
		for next.clients[i].held != nil {
			s.end(&next, i)
		}
		if err := s.step(next, "%s ends its leases", spec.Name); err != nil {
			return err
		}
	}
	for _, n := range spec.Sizes {
		if c.held == nil {
			break
		}
		if left, ok := c.held.lease().Take(n, s.clock(w, i), s.now(w)); ok {
			next := w.copy()
			after := *c.held
			after.left = left
			next.clients[i].held = &after
			s.enter("%s takes %d of its lease", spec.Name, n)
			s.result.Leased++
			err := s.grant(&next, n, s.now(w), s.now(w))
			if err == nil {
				err = s.visit(next)
			}
			if s.leave(); err != nil {
				return err
			}
		}
	}
	stalled := len(c.open) == 1 && spec.Stalls
	if c.calls == 0 || len(c.open) > 0 && !stalled || c.held != nil && !valid {
		return nil
	}
	for _, n := range append([]int64{0}, spec.Sizes...) {
		if n > 0 && valid && n <= c.held.left {
			continue // the lease serves it
		}
		for _, ahead := range append([]int64{0}, spec.Ahead...) {
			if n+ahead == 0 || n == 0 && c.held == nil || stalled && ahead > 0 {
				continue
			}
			next := w.copy()
			own := &next.clients[i]
			own.calls--
			call := call{ids: c.ids, n: n, ahead: ahead, apart: stalled, recent: c.recent, served: c.served, first: w.at, setFirst: c.set, before: c.changes}
			own.open = slices.Clone(c.open)
			s.send(&next, i, call)
			if err := s.step(next, "%s asks for %d and %d ahead", spec.Name, n, ahead); err != nil {
				return err
			}
		}
	}
	return nil
}

// send sends an attempt of a call, which is added to the open ones.
func (s *search) send(w *world, i int, c call) {
	own := &w.clients[i]
	c.last, c.set, c.replied, c.reply = w.at, own.set, false, 0
	own.open = append(own.open, c)
	m := message{life: own.life, ids: c.ids, attempt: c.attempt}
	if f := s.Clients[i].Foreign; f != nil {
		own.ids = max(own.ids, c.ids+1)
		m.command = s.command(f.SHA, f.Keys(name), f.Args(c.n, s.clock(w, i).UnixMilli(), uint64(i+1)<<32|uint64(own.life)<<16|c.ids))
	} else {
		r, _, args := s.request(w, i, c)
		own.ids = max(own.ids, c.ids+uint64(r.Records))
		m.command = s.command(s.Acquire.SHA, keysOf(s.id(i, own.life)), args)
	}
	own.sent = append(slices.Clone(own.sent), m)
}

// id returns the id of a client in one of its lives.
func (s *search) id(i, life int) string { return fmt.Sprint(s.Clients[i].Name, " ", life) }

// request returns the request of the last attempt of a call, and its arguments.
func (s *search) request(w *world, i int, c call) (*protocol.AcquireRequest, *protocol.Encoder, []any) {
	identity, spec := record.NewIdentity(s.id(i, w.clients[i].life)), &s.Clients[i]
	identity.StartAt(c.ids)
	at := s.moment(i, c.first, c.setFirst)
	e := new(protocol.Encoder)
	e.Init(protocol.Options{Lease: spec.Lease, Granularity: spec.Granularity, ServerTime: spec.ByServer}, identity, func() time.Time { return at })
	r := new(protocol.AcquireRequest)
	if c.served > 0 { // the encoder learns it from a reply
		_, _ = new(protocol.AcquireRequest).Reply(e, new(script.Attempts), []int64{0, s.Rate, s.Interval.Milliseconds(), 0, 0, c.served, 0})
	}
	r.Next(s.recents.all[c.recent])
	ask := c.ask()
	args := r.Args(nil, e, ask, false)
	if c.attempt > 0 {
		at = s.moment(i, c.last, c.set)
		args = r.Args(nil, e, ask, true)
	}
	return r, e, args
}

func (c call) ask() protocol.Ask {
	ask := protocol.Ask{Lease: c.ahead, Apart: c.apart}
	if c.n > 0 {
		ask.Groups = []protocol.Group{{Size: c.n, Count: 1}}
	}
	return ask
}

// execute runs a message of a client on the server.
func (s *search) execute(w *world, i, at int) error {
	m := w.clients[i].sent[at]
	done, err := s.run(w, m.command)
	if err != nil {
		return err
	}
	next := w.copy()
	next.store = done.store
	own := &next.clients[i]
	own.sent = slices.Delete(slices.Clone(own.sent), at, at+1)
	s.enter("the server executes %q of %s: %v", s.commands.all[m.command].args, s.Clients[i].Name, s.replies.all[done.reply])
	defer s.leave()
	for open, c := range own.open {
		if m.attempt < 0 || m.life != own.life || c.ids != m.ids || c.attempt != m.attempt {
			continue
		}
		own.open = slices.Clone(own.open)
		own.open[open].replied, own.open[open].reply = true, done.reply
		if c.ahead == 0 && own.retries == 0 {
			// After a later reply, the grant is certainly in no further window, and the client is free later. So nothing is
			// missed if the reply comes at once.
			return s.receive(&next, i, open)
		}
	}
	return s.visit(next)
}

// lose lets the client wait no longer for a reply: it fails, or makes another attempt.
func (s *search) lose(w *world, i, at int) error {
	for _, again := range []bool{false, true} {
		if again && s.Clients[i].Foreign != nil {
			break
		}
		next := w.copy()
		own := &next.clients[i]
		own.retries--
		c := own.open[at]
		own.open = slices.Delete(slices.Clone(own.open), at, at+1)
		if again {
			c.attempt++
			s.send(&next, i, c)
		}
		if err := s.step(next, "%s waits no longer, and asks again: %t", s.Clients[i].Name, again); err != nil {
			return err
		}
	}
	return nil
}

// receive gives a client the reply to a call.
func (s *search) receive(w *world, i, at int) error {
	next := w.copy()
	own := &next.clients[i]
	c := own.open[at]
	detached := at+1 < len(own.open)
	own.open = slices.Delete(slices.Clone(own.open), at, at+1)
	reply := s.replies.all[c.reply]
	granted := reply == nil
	if s.Clients[i].Foreign == nil {
		r, e, _ := s.request(w, i, c)
		g, err := r.Reply(e, new(script.Attempts), figures(reply))
		if err != nil { // the outcome is unknown
			return s.step(next, "%s has %v", s.Clients[i].Name, err)
		}
		granted = c.n > 0 && g.Granted(0, protocol.Group{Size: c.n, Count: 1}) > 0
		if s.Clients[i].ByServer {
			own.served = g.Now
		}
		if granted || g.Ahead > 0 {
			if s.Clients[i].Granularity > 0 {
				ids := s.recents.all[own.recent]
				ids.Add(g.ID)
				own.recent = s.recents.of(fmt.Sprint(ids), ids)
			}
			if c.attempt > 0 {
				s.result.Restored++
			}
		}
		if g.Ahead > 0 {
			s.hold(&next, i, c, g, detached)
		}
	}
	s.enter("%s has the reply to %d and %d ahead, granted: %t", s.Clients[i].Name, c.n, c.ahead, granted)
	defer s.leave()
	if granted {
		if err := s.grant(&next, c.n, Epoch.Add(s.Times[c.last]), s.now(w)); err != nil {
			return err
		}
	}
	return s.visit(next)
}

// hold does what package dispatch does with a lease that a reply has brought.
func (s *search) hold(w *world, i int, c call, g protocol.AcquireReply, detached bool) {
	own := &w.clients[i]
	fresh := &held{Lease: &lease.Lease{
		Rate: g.Rate, Interval: g.Interval, At: g.At, Began: Epoch.Add(s.Times[c.last]),
		Lasts: time.Duration(g.At-g.Now) * time.Microsecond, Server: s.Clients[i].ByServer, Permits: g.Ahead,
	}}
	fresh.left = fresh.Permits
	switch old := own.held; {
	case detached && old != nil || own.next != nil || own.changes != c.before || !fresh.Valid(s.clock(w, i), s.now(w)):
		s.giveBack(w, i, g.Ahead, g.At)
	case old == nil:
		own.held = fresh
	case old.At == fresh.At && old.lease().Valid(s.clock(w, i), s.now(w)):
		fresh.Permits += old.lease().End()
		fresh.left = fresh.Permits
		own.held = fresh
	default:
		own.next = fresh
	}
}

// end ends the lease of a client, and gives back what is unused. The next one follows.
func (s *search) end(w *world, i int) {
	own := &w.clients[i]
	unused, at := own.held.lease().End(), own.held.At
	own.held, own.next = own.next, nil
	s.giveBack(w, i, unused, at)
}

// giveBack sends what is unused of a lease back. It is executed once, later, or never.
func (s *search) giveBack(w *world, i int, n, at int64) {
	if n == 0 {
		return
	}
	own := &w.clients[i]
	var now any = ""
	if !s.Clients[i].ByServer {
		clock := s.clock(w, i)
		e := new(protocol.Encoder)
		e.Init(protocol.Options{}, nil, func() time.Time { return clock })
		now = e.Now()
	}
	id := s.id(i, own.life)
	request := protocol.Release{Now: now, Permits: n, Granted: at, Own: record.NewIdentity(id).Origin(record.Redisson317)}
	own.sent = append(slices.Clone(own.sent), message{command: s.command(s.Release.SHA, keysOf(id), request.Args()), life: own.life, attempt: -1})
}
