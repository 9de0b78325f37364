package smallscope

import (
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// sendBack sends a request that gives back permits. It is executed once, later, or never.
func (s *search) sendBack(w *world, i int, back lease.Back) {
	id := s.id(i, w.clients[i].life)
	request := protocol.Release{
		Now: s.argument(w, i), Permits: back.Permits, Granted: back.At,
		Own: record.NewIdentity(id).Origin(record.Redisson317),
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
	e.Init(
		protocol.Options{Lease: spec.Lease, Granularity: spec.Granularity, ServerTime: spec.ByServer}, identity,
		func() time.Time { return at },
	)
	r := new(protocol.AcquireRequest)
	if call.served > 0 { // the encoder learns it from a reply
		_, _ = new(
			protocol.AcquireRequest,
		).Reply(e, new(script.Attempts),
			[]int64{0, s.Rate, s.Interval.Milliseconds(), 0, 0, 6, 0, call.served, 0, record.NoOrigin, 0, 0})
	}
	r.Next(s.recents.all[call.recent])
	args := r.Args(nil, e, call.Ask, false)
	if call.attempt > 0 {
		at = s.clock(i, call.last, call.set)
		args = r.Args(nil, e, call.Ask, true)
	}
	return r, e, args
}

// moment returns a client's time.
func (s *search) moment(w *world, i int) schedule.Moment {
	return schedule.Moment{Clock: s.clock(i, w.at, w.clients[i].set), Mono: s.now(w)}
}

// clock returns a client's time at one of the Times; set says whether its clock was set back.
func (s *search) clock(i, at int, set bool) time.Time {
	now := Epoch.Add(s.Times[at])
	if set {
		now = now.Add(-s.Clients[i].Back)
	}
	return now
}
