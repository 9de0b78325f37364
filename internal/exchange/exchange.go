// Package exchange carries a call to its node. The outcome is a reply, an error, or that the node
// is away. The package has commands for one call and commands that several calls share, retries,
// timeouts and stalls, and for each node a pipeline and a breaker. The Body of a call defines what
// it asks and what a reply means. The Owner of a call decides what follows its end. The package
// does not know callers, permits or queues.
//
// exchange.go has the types and methods that other packages use, call.go one call, repeat.go what
// follows an attempt, shared.go the shared commands, node.go the nodes, direct.go the calls that no
// pipeline carries.
package exchange

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Target is a limiter, as a call that asks it sees it.
type Target interface {
	breaker.Prober
	Key() string               // the name of its configuration key: the node that has it gets the call
	Keys() []string            // the names of all its keys
	Arguments() []any          // the same, as arguments of a command
	FallsBack() bool           // the process decides in its place if Redis is away, as far as it can
	CanDecide() bool           // the process can do so now
	Breaker() *breaker.Breaker // its own, for a Redis client that shows no nodes
	NotPlain()                 // a request of it was no plain grant
}

// A Body encodes what a call asks, and decodes and keeps its reply. The first attempt that is
// encoded fixes the ids of the call. After a timeout an attempt may still use the body, so its
// reply is valid only in Owner.Done without an error.
type Body interface {
	Script() *script.Script
	// Args appends the arguments of the next attempt, with the current time. With find it searches
	// what an earlier attempt was granted.
	Args(args []any, find bool) []any
	// Read reads a reply to Args.
	Read(a *script.Attempts, reply []int64) error
	// Findable reports whether the next attempt finds what an earlier one was granted.
	Findable() bool
	// TakesOnce reports whether an attempt that Redis executes after a later one, which was
	// granted, takes nothing.
	TakesOnce() bool
	// Enforce sets the own rate of the limiter that refused with protocol.ErrOtherRate.
	Enforce(ctx context.Context, a *script.Attempts) error

	// Plain reports whether the call is likely to need plain grants only, so that it may share its
	// command.
	Plain() bool
	// Joint reports whether the call has a shared command also where it shares it with no other
	// call: Script makes no plain grants.
	Joint() bool
	// SharedArgs appends the arguments in a shared command, at the time that this has.
	SharedArgs(args []any, now int64) []any
	// ReadShared reads its part of the reply to a shared command, in which its first target has a
	// place.
	ReadShared(a *script.Attempts, reply []int64, place int) error
}

// An Owner is the one that a call is made for.
type Owner interface {
	// Cancelled reports whether nobody waits for the call any more. It may be called while a
	// pipeline is locked.
	Cancelled() bool
	// Away is called, also within Send, if the call is not sent yet and its node is known to be
	// away: the owner decides in the process if it can, and reports whether it does. Then Done is
	// not called. The node may be asked again after retry.
	Away(retry time.Duration) bool
	// Stalled is called when the call takes longer than usual.
	Stalled()
	// Done is called once, when the call has ended.
	Done(o Outcome)
}

// An Outcome is how a call has ended. Without an error, its body has the reply.
type Outcome struct {
	Err error // of the callers that the call was made for
	// of those that only waited for its end, for whom Redis was surely not asked. It is set if they
	// might wait as long again: the call has timed out, and no later one was answered. nil: they go
	// on waiting
	Behind error
	Away   bool          // Redis was not reached: the process may decide
	Retry  time.Duration // if Away: Redis may be asked again after this
	Unused bool          // nothing uses the call and its body any more
}

// A Tuning sets thresholds.
type Tuning struct {
	Patience     time.Duration // a run of a pipeline that takes no longer has not stalled
	RunsInFlight int           // runs of a pipeline
	JobsInOne    int           // calls of a run
}

// An Exchange carries calls to the nodes behind one Redis client.
type Exchange struct {
	topology *script.Topology
	timeout  time.Duration    // of a call
	clock    func() time.Time // dates shared commands
	tuning   Tuning
	server   *pipeline.Pipeline // to the server; of all servers where nodes has none
	nodes    nodes
	proxied  atomic.Bool // the server is a proxy of several, so that no calls share commands
}

// New returns an exchange. Tune must be called before it is used.
func New(rdb script.Redis, timeout time.Duration, clock func() time.Time) *Exchange {
	return &Exchange{topology: script.NewTopology(rdb), timeout: timeout, clock: clock}
}

// Tune sets the tuning, before the exchange is used.
func (x *Exchange) Tune(t Tuning) {
	x.tuning = t
	x.server = x.newPipeline(x.topology.Redis())
	if client := x.topology.Single(); client != nil {
		x.server.AllowInline(client)
	}
}

// Topology returns the servers.
func (x *Exchange) Topology() *script.Topology { return x.topology }

// Timeout returns how long one call may take.
func (x *Exchange) Timeout() time.Duration { return x.timeout }

// Send sends a call, after Begin, to the node of its first target. Away, or else Done, of its owner
// is called, perhaps within Send. With inline, Send may make the call in its own goroutine, for at
// most pipeline.ShortestStall; without, it does not block.
func (x *Exchange) Send(c *Call, inline bool) {
	switch {
	case c.decided():
	case x.topology.Clustered():
		go x.find(c) // this may make a call
	default:
		inline = inline && c.body.TakesOnce() && !c.attempts.NoRetryIfUnsent
		if t := x.server.Admit(c, inline); t != nil {
			t.Go()
		}
	}
}
