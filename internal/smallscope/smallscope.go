// Package smallscope runs all interleavings of a few clients of one limiter, or of a few, in a
// small scope: few permits, few moments of time, few callers. A client has leases (WithLease), or
// no leases, its callers ask one limiter or several that grant together, or it charges permits, or
// is a client of another library, which calls its own script. Requests and replies take any time to
// arrive, some never arrive, and clients crash.
//
// Clients use the real schedule.Queue, lease.Ledger, scripts, arguments and decoders of replies,
// which decide what is sent and who is granted. Package replay does what they say, and has the
// server; package deep has the search. This package only chooses what happens next. Package window
// checks every grant. After each step, judge.go checks the state of the client.
//
// This file says what is explored; world.go has the state, steps.go what may happen next.
package smallscope

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/replay"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Scope says what is explored.
type Scope struct {
	Limiters []protocol.Rate
	// the moments that there are, since Epoch; the clock stands still in between
	Times   []time.Duration
	Clients []Client
	Foreign []Foreign
	Crashes int // at most so many clients crash

	Acquire *script.Script
	Redis   *redis.Client
	SetTime func(time.Time) // sets the server's clock; nil: no client uses it
}

// Times are moments for an interval of 20 ms and leases of 2 ms: in a bucket, in its last quarter,
// in the next bucket, and those at which records of the two buckets, and of requests without one,
// have just expired.
var Times = []time.Duration{
	time.Millisecond, 1750 * time.Microsecond, 3 * time.Millisecond, 22 * time.Millisecond, 24 * time.Millisecond,
}

// Epoch is the time from which Times count: the end of a bucket of any whole number of ms up to 10.
var Epoch = time.UnixMilli(2520 * 700_000_000)

// A Client is one of the clients of this library.
type Client struct {
	Name        string
	Lease       time.Duration // of the first limiter; 0: it has none
	Granularity time.Duration // 0: it has none
	Ahead       int           // how many permits it may take ahead of demand, at most
	Callers     []Caller      // the kinds of callers
	Retries     int           // how many of its calls it gives up, or makes again, for want of a reply
	Changes     int           // of the first limiter, which forget all grants. They need a lease
	Stalls      bool          // it does not wait for a call that takes long, before it makes another
	Back        time.Duration // by how much its clock is set back at some time; 0: never
	ByServer    bool          // the server's clock dates its grants
	Redisson    bool          // it knows that Redisson uses limiters on the server
	Each        bool          // each grant gets a record of its own
	FailFast    bool          // a caller that would wait in vain is refused; timeouts are of contexts
}

// A Caller is a kind of callers.
type Caller struct {
	Kind    schedule.Kind
	Of      []int         // the limiters that it asks together
	Sizes   []int64       // how many permits each wants, of each limiter
	Comes   int           // how many of them come, but for those that a lease serves
	Timeout time.Duration // how long they wait; 0: for ever
	Leaves  bool          // their contexts may end at any time
}

func (c Caller) String() string {
	text := [...]string{"it tries", "it waits", "it takes what is free"}[c.Kind]
	if c.Timeout > 0 {
		text += fmt.Sprintf(" for %v", c.Timeout)
	}
	return text
}

// Tries returns callers of the first limiter that do not wait.
func Tries(comes int, sizes ...int64) Caller {
	return Caller{Kind: schedule.Try, Of: []int{0}, Sizes: sizes, Comes: comes}
}

// Waits returns callers of the first limiter that wait.
func Waits(comes int, sizes ...int64) Caller {
	return Caller{Kind: schedule.Wait, Of: []int{0}, Sizes: sizes, Comes: comes}
}

// A Foreign is a client of another library, with a script that asks for permits of the first
// limiter, or charges them.
type Foreign struct {
	Name    string
	Comes   int     // how often it asks
	Sizes   []int64 // for how many permits
	Charges bool

	SHA  string
	Keys func(name string) []string
	Args func(n, now int64, id uint64) []any // now in ms
}

// A Result is what a search has seen.
type Result struct {
	States  int // different ones
	Scripts int // different executions of a script
	Leased  int // states in which a lease granted permits
	Full    int // states in which a window held the whole rate
}

// A search explores a scope.
type search struct {
	Scope
	deep.Search[world]
	ctx    context.Context
	server replay.Server
	result Result
	world  *world // that an event changes
}

// Explore visits all states of a scope. The error is a violation, with the steps that lead there,
// or a failure of the server.
func Explore(ctx context.Context, scope Scope) (Result, error) {
	schedule.Strict = true
	s := &search{Scope: scope, ctx: ctx, server: replay.Server{
		Redis: scope.Redis, SetTime: scope.SetTime, Limiters: scope.Limiters, Acquire: scope.Acquire,
	}}
	s.Forget, s.Visit = s.forget, s.visit
	if err := s.server.Load(ctx); err != nil { // foreign scripts are loaded already
		return Result{}, err
	}
	err := s.Run(s.first())
	s.result.States, s.result.Scripts = s.States, s.server.Scripts
	return s.result, err
}
