package smallscope

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/replay"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// A world is one state. All that it refers to is its own.
type world struct {
	at      int // index in Times
	store   replay.Store
	crashes int
	clients []*client
	foreign []int   // how often each foreign client may still ask
	strays  []stray // sorted by their commands
	grants  [][]window.Grant
}

// A client is one client, and what may still happen to it.
type client struct {
	*replay.Client
	comes            []int // how often a caller of each kind may still come
	retries, changes int
	life             int           // how often it has crashed
	back             time.Duration // by how much its clock was set back
}

// A stray is a command on its way that is of no client: it has crashed, or has sent the command
// again. Or it is of a foreign client.
type stray struct {
	command replay.Command
	permits int64 // of a foreign client; else 0
	foreign int   // which one
	sent    time.Time
}

// first returns the first state.
func (s *search) first() *world {
	w := &world{store: s.server.Empty(), grants: make([][]window.Grant, len(s.Limiters))}
	for i, spec := range s.Clients {
		c := &client{Client: s.client(i, 0), retries: spec.Retries, changes: spec.Changes}
		for _, kind := range spec.Callers {
			c.comes = append(c.comes, kind.Comes)
		}
		w.clients = append(w.clients, c)
	}
	for _, f := range s.Foreign {
		w.foreign = append(w.foreign, f.Comes)
	}
	return w
}

// client returns a client that has crashed so often, with empty queues.
func (s *search) client(i, life int) *replay.Client {
	spec := &s.Clients[i]
	o := replay.Options{
		ID: fmt.Sprint(spec.Name, life), Redisson: spec.Redisson, FailFast: spec.FailFast,
		Options: protocol.Options{
			Lease: spec.Lease, Granularity: spec.Granularity, ServerTime: spec.ByServer, RecordPerRequest: spec.Each,
		},
		Ahead: func() int64 { return int64(s.Choose(spec.Ahead + 1)) },
		Self:  func() *replay.Client { return s.world.clients[i].Client },
	}
	for _, kind := range spec.Callers {
		known := slices.ContainsFunc(o.Sets, func(set []int) bool { return slices.Equal(set, kind.Of) })
		if len(kind.Of) > 1 && !known {
			o.Sets = append(o.Sets, kind.Of)
		}
	}
	return s.server.NewClient(o)
}

// now returns the time of a world.
func (s *search) now(w *world) time.Time { return Epoch.Add(s.Times[w.at]) }

// moment returns a client's time at one of the Times.
func (s *search) moment(at int, c *client) schedule.Moment {
	now := Epoch.Add(s.Times[at])
	return schedule.Moment{Clock: now.Add(-c.back), Mono: now}
}

// add notes a command that may still arrive; 0: there is none.
func (w *world) add(s stray) {
	if s.command == 0 {
		return
	}
	w.strays = append(w.strays, s)
	slices.SortFunc(w.strays, func(a, b stray) int { return cmp.Compare(a.command, b.command) })
}

// run returns what a command would do.
func (s *search) run(w *world, command replay.Command) (after replay.Store, reply any) {
	after, reply, err := s.server.Run(s.ctx, w.store, command, s.now(w))
	if err != nil {
		panic(deep.Failure{Err: err})
	}
	return after, reply
}

// execute lets the server execute a command. A change forgets all grants.
func (s *search) execute(w *world, command replay.Command) (reply any) {
	w.store, reply = s.run(w, command)
	if s.server.Forgets(command) {
		w.grants[0] = nil
		for _, c := range w.clients {
			for _, call := range c.Calls {
				call.Void = call.Reply != nil
			}
		}
	}
	return reply
}

// forget drops what decides nothing that follows: grants that share no window with later ones, and
// what queues have forgotten.
func (s *search) forget(w *world) {
	oldest := s.now(w)
	for _, stray := range w.strays {
		if stray.permits > 0 && stray.sent.Before(oldest) {
			oldest = stray.sent
		}
	}
	for _, c := range w.clients {
		for _, call := range c.Calls {
			if call.Batch != nil && call.Sent().Before(oldest) {
				oldest = call.Sent()
			}
		}
		c.Forget(s.moment(w.at, c), c.retries > 0)
	}
	for l := range w.grants {
		over := oldest.Add(-protocol.Millis(s.Limiters[l].Interval))
		w.grants[l] = slices.DeleteFunc(w.grants[l], func(g window.Grant) bool { return !g.End.After(over) })
	}
}
