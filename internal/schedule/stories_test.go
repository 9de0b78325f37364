package schedule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// TestStories tells the stories in testdata: an event in each block, and below the line what
// follows from it. `go test ./internal/schedule -run Stories -rewrite` writes what follows.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &stage{
			m:            at(0),
			requests:     map[string]*Request{},
			batches:      map[string]*Batch{},
			reservations: map[string]*Reservation{},
			owners:       map[*Reservation]string{},
		}
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			return s.play(arguments{t, d})
		})
	})
}

// A stage has the limiter, or the set of limiters, of a story.
type stage struct {
	q            *Queue
	m            Moment
	names        []string // of the requests that are not settled, in the order in which they came
	requests     map[string]*Request
	batches      map[string]*Batch // in flight, by their numbers
	reservations map[string]*Reservation
	owners       map[*Reservation]string // of the set: the names of their requests
	text         strings.Builder
}

// say adds a line.
func (s *stage) say(format string, a ...any) { fmt.Fprintf(&s.text, format+"\n", a...) }

// play plays an event, and returns what follows.
func (s *stage) play(a arguments) string {
	s.text.Reset()
	switch name := a.name(); a.d.Cmd {
	case "limiter":
		s.limiter(a)
	case "pass":
		wait := a.duration(name)
		s.m = Moment{Clock: s.m.Clock.Add(wait), Mono: s.m.Mono.Add(wait)}
	case "join":
		s.join(name, a)
	case "leave":
		s.q.Leave(s.requests[name])
		s.forget(name)
	case "reply":
		s.reply(s.complete(a), a)
	case "fail":
		var behind error
		if a.d.HasArg("behind") {
			behind = errors.New("Redis hangs")
		}
		b := s.complete(a)
		s.q.Fail(s.m, b, errors.New("no reply"), behind)
		s.settled(b)
	case "stalls":
		s.say("detached: %v", s.q.Stalled(s.batches[name]))
	case "changed":
		s.q.Changed()
	case "change-begins":
		for _, back := range s.q.Ledger().Change() {
			s.say("gives back %d permits of the lease, before the change", back.Permits)
		}
	case "outdated":
		for r := range s.q.Line() {
			r.front = inFront{}
		}
		s.q.Outdated(time.Time{})
	case "reserve":
		s.reservations[name] = &Reservation{N: a.number("permits", 1), Owner: name}
		s.q.Reserve(s.reservations[name], nil)
	case "redate":
		date := Date{Reservation: s.reservations[name], From: s.m.Clock.Add(a.duration(a.text("from", "0s")))}
		s.q.Hear(s.m, Notice{Dates: []Date{date}})
	case "serve":
		s.q.Hear(s.m, Notice{Ended: s.reservations[name], Served: s.m.Mono})
	case "take":
		s.take(a.integer(name))
	default:
		a.d.Fatalf(a.t, "no such event")
	}
	s.goOn()
	return s.text.String()
}

// limiter makes the limiter or, with limiters=2, the set.
func (s *stage) limiter(a arguments) {
	s.q = New(Settings{
		Limiters: int(a.number("limiters", 1)), Linger: LingerThreshold,
		Jitter: func(time.Duration) time.Duration { return 0 }, Identity: record.NewIdentity("me"),
		Lease: a.duration(a.text("lease", "0s")), Holding: new(atomic.Int64),
	})
}

// join adds a request.
func (s *stage) join(name string, a arguments) {
	r := &Request{Permits: a.permits("permits"), Kind: Try}
	if a.d.HasArg("behind") {
		r.front.permits = a.permits("behind")
	}
	if a.d.HasArg("waits") {
		r.Kind = Wait
	}
	if timeout := a.duration(a.text("timeout", "0s")); timeout > 0 {
		r.Kind, r.Until = Wait, s.m.Clock.Add(timeout)
		r.End = r.Until
	}
	if limiters := s.q.settings.Limiters; r.Kind == Wait && limiters > 1 {
		for i := range limiters {
			res := &Reservation{N: *r.Permits.Of(i)}
			r.Reservations = append(r.Reservations, res)
			s.owners[res] = name
		}
	}
	s.requests[name] = r
	s.names = append(s.names, name)
	s.q.Join(r)
}

// reply settles a batch with a reply. granted=1,0 are the numbers of requests that are granted of
// each group; wait is that of the others.
func (s *stage) reply(b *Batch, a arguments) {
	now := s.m.Clock.UnixMicro()
	wait := a.duration(a.text("wait", "0s"))
	g := replyOf(protocol.Member{
		Now: now, At: now, Rate: 10, Interval: time.Second, Free: a.number("free", 0),
		Origin: record.NoOrigin, Together: wait,
	})
	if a.d.HasArg("redisson") {
		g.First.Notes |= protocol.ForeignWriter
	}
	if a.d.HasArg("away") {
		g.First.Notes |= protocol.Local
		g.Retry = a.duration(a.text("retry", "0s"))
	}
	g.Members = protocol.Same(s.q.settings.Limiters, g.First)
	g.MakeOutcomes(len(b.members))
	granted := strings.Split(a.text("granted", "0"), ",")
	if len(granted) != max(len(b.members), 1) {
		a.d.Fatalf(a.t, "the batch has %d groups", len(b.members))
	}
	for i, n := range granted[:len(b.members)] {
		g.SetGranted(i, a.integer(n))
		for limiter := range s.q.settings.Limiters {
			g.SetWait(i, limiter, wait.Microseconds())
		}
	}
	if g.Ahead = a.number("ahead", 0); g.Ahead > 0 {
		g.First.At, g.Began = now+a.duration(a.text("lasts", "0s")).Microseconds(), s.m.Mono
	}
	held := s.q.Ledger().Held(s.m)
	s.q.Settle(s.m, b, g)
	if now := s.q.Ledger().Held(s.m); now > held {
		s.say("a lease of %d permits for %v", now, a.text("lasts", ""))
	}
	s.settled(b)
}

// complete takes a batch out of those in flight.
func (s *stage) complete(a arguments) *Batch {
	b := s.batches[a.name()]
	if b == nil {
		a.d.Fatalf(a.t, "no such batch is in flight")
	}
	delete(s.batches, a.name())
	return b
}

// settled tells the outcomes of the requests of a batch.
func (s *stage) settled(b *Batch) {
	for _, r := range b.Settled {
		name := s.name(r)
		s.forget(name)
		o := &r.Outcome
		switch {
		case o.Err != nil:
			s.say("%s: error: %v", name, o.Err)
		case o.First.Allowed:
			s.say("%s: granted, %d are left", name, o.First.Remaining)
		default:
			s.say("%s: refused, its permits are free in %v", name, o.First.RetryAfter)
		}
	}
}

// forget takes away the name of a request that is settled or has left.
func (s *stage) forget(name string) {
	delete(s.requests, name)
	s.names = slices.DeleteFunc(s.names, func(other string) bool { return other == name })
}

func (s *stage) name(r *Request) string {
	for name, other := range s.requests {
		if other == r {
			return name
		}
	}
	return "one that has left"
}

// take takes permits of the lease.
func (s *stage) take(n int64) {
	from, left, refill := s.q.Ledger().Take(n, s.m)
	if from == nil {
		s.say("no lease has them")
		return
	}
	s.say("taken, %d are left in the lease", left)
	if refill {
		s.q.Refill()
	}
}

// goOn sends the batches that are due, and tells what the requests and the queue wait for.
func (s *stage) goOn() {
	for s.q.due(s.m) {
		b := new(Batch)
		if !s.q.fill(s.m, b) {
			continue
		}
		number := strconv.FormatInt(b.number, 10)
		s.batches[number] = b
		s.say("sends %s%s", number, s.groups(b))
	}
	for _, back := range s.q.Ledger().Leftovers() {
		s.q.Ledger().Start(back, true)
		s.say("gives back %d permits of the lease", back.Permits)
	}
	s.tells()
	for _, name := range s.names {
		switch r := s.requests[name]; {
		case r.state == Refused && r.free.IsZero():
			s.say("%s waits for those in front", name)
		case r.state == Refused:
			s.say("%s waits for its permits, for %v", name, r.free.Sub(s.m.Clock))
		case r.state == Resting:
			s.say("%s waits for its turn", name)
		case r.state == Queued:
			s.say("%s waits to be asked for", name)
		}
	}
	if wake, cause := s.q.Wake(); cause != NextEvent {
		s.say("looks again in %v: %v", wake.Sub(s.m.Mono), cause)
	}
}

// tells tells what other queues are told.
func (s *stage) tells() {
	for _, n := range s.q.effects.Tell {
		to := fmt.Sprintf("tells limiter %d", 1+n.Limiter)
		if n.Ended != nil {
			s.say("%s: nothing is reserved for %s any more", to, s.owners[n.Ended])
		}
		for _, d := range n.Dates {
			s.say("%s: permits are reserved for %s from %v on", to, s.owners[d.Reservation],
				max(d.From.Sub(s.m.Clock), 0))
		}
	}
	for _, o := range s.q.effects.Outdated {
		s.say("tells %v: its calls are outdated", o.Set)
	}
	s.q.effects = Effects{}
}

// groups returns the groups of a batch: who asks, and for how many permits.
func (s *stage) groups(b *Batch) (text string) {
	for i, g := range b.Ask.Groups {
		names := make([]string, 0, len(b.members[i]))
		for _, r := range b.members[i] {
			names = append(names, s.name(r))
		}
		if len(names) == 0 {
			names = []string{"kept free"}
		}
		text += fmt.Sprintf(", %s: %s", strings.Join(names, " "), textOf(g.Permits))
	}
	if b.Ask.Lease > 0 {
		text += fmt.Sprintf(", ahead: %d", b.Ask.Lease)
	}
	return strings.Replace(text, ",", ":", 1)
}

// Arguments are those of an event.
type arguments struct {
	t *testing.T
	d *datadriven.TestData
}

// name returns the first one.
func (a arguments) name() string {
	if len(a.d.CmdArgs) == 0 {
		return ""
	}
	return a.d.CmdArgs[0].Key
}

// text returns the argument key=text, or what it is without.
func (a arguments) text(key, without string) string {
	if arg, has := a.d.Arg(key); has {
		return strings.Join(arg.Vals, ",")
	}
	return without
}

// permits returns an argument that is permits: 2/1 are those of two limiters.
func (a arguments) permits(key string) protocol.Permits {
	first, rest, _ := strings.Cut(a.text(key, "1"), "/")
	if rest == "" {
		return protocol.Permits{First: a.integer(first)}
	}
	return protocol.Permits{First: a.integer(first), Rest: []int64{a.integer(rest)}}
}

func (a arguments) number(key string, without int64) int64 {
	return a.integer(a.text(key, strconv.FormatInt(without, 10)))
}

func (a arguments) integer(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		a.d.Fatalf(a.t, "%v", err)
	}
	return n
}

func (a arguments) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		a.d.Fatalf(a.t, "%v", err)
	}
	return d
}
