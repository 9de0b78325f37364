// Package smallscope runs all interleavings of a few clients of one limiter, in a small scope: few
// permits, few moments of time, few callers. A client has leases (WithLease), or no leases, or
// charges permits, or is a client of another library, which calls its own script. Requests and
// replies take any time to arrive, some never arrive, and clients crash.
//
// Clients use the real schedule.Queue, lease.Ledger, scripts, arguments and decoders of replies,
// which decide everything. The package only chooses what happens next, and does what they say.
// Package window checks every grant. After each step, judge.go checks the state of the client.
//
// This file has the search; client.go the state of a client and its calls, steps.go what may happen
// to it, reply.go what it does with replies, judge.go the checks, server.go what a script does.
package smallscope

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/deep"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/window"
)

// A Scope says what is explored.
type Scope struct {
	Rate     int64
	Interval time.Duration
	// the moments that there are, since Epoch; the clock stands still in between
	Times   []time.Duration
	Clients []Client
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

// Epoch is the time from which Times count. It is the end of a bucket of any whole number of ms up
// to 10.
var Epoch = time.UnixMilli(2520 * 700_000_000)

// A Client is one of the clients.
type Client struct {
	Name        string
	Lease       time.Duration // 0: it has none
	Granularity time.Duration // the same
	Ahead       []int64       // how many permits it may take ahead of demand
	Callers     []Caller      // the kinds of callers
	// how many of its calls it gives up, or makes again, because no reply has come
	Retries int
	// how often it changes the limiter so that all grants are forgotten. It needs a lease
	Changes  int
	Stalls   bool          // it does not wait for a call that takes long, before it makes another
	Back     time.Duration // by how much its clock is set back at some time; 0: never
	ByServer bool          // the server's clock dates its grants
	Redisson bool          // it knows that Redisson uses limiters on the server
	Foreign  *Foreign      // it is another library's script
}

// A Caller is a kind of callers.
type Caller struct {
	Kind    schedule.Kind
	Sizes   []int64       // how many permits each wants
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

// Tries returns callers that do not wait.
func Tries(comes int, sizes ...int64) Caller {
	return Caller{Kind: schedule.Try, Sizes: sizes, Comes: comes}
}

// Waits returns callers that wait.
func Waits(comes int, sizes ...int64) Caller {
	return Caller{Kind: schedule.Wait, Sizes: sizes, Comes: comes}
}

// A Foreign is a script of another library, or one that charges permits.
type Foreign struct {
	SHA  string
	Keys func(name string) []string
	Args func(n, now int64, id uint64) []any // now in ms
	Debt time.Duration                       // how far ahead it dates records at most; 0: it does not charge
}

// Unbounded returns acquire.lua without the bounds of what it takes ahead, which are a matter of
// fairness: of few permits it would take none.
func Unbounded() *script.Script {
	const line = "ahead = ahead * 8 >= math.min(most, tenth) and ahead or 0\n"
	before, after, found := strings.Cut(protocol.AcquireScript.Text, line)
	if !found {
		panic("acquire.lua has no line " + line)
	}
	return script.New(before + "ahead = math.max(0, math.min(most, left))\n" + after)
}

// A Result is what a search has seen.
type Result struct {
	States  int // different ones
	Scripts int // different executions of a script
	Grants  int // states in which a grant was judged
	Leased  int // of them, those of a lease
	Full    int // of them, those with a window that holds the whole rate
}

// A world is one state. All that it refers to is its own.
type world struct {
	at      int // index in Times
	store   int // what Redis holds: index in search.stores
	crashes int
	clients []*client
	grants  []window.Grant // of the last interval, sorted
}

// A search explores a scope, depth first.
type search struct {
	Scope
	ctx     context.Context
	result  Result
	seen    map[[sha256.Size]byte]struct{}
	path    []step
	bytes   []byte // memory for a state
	ahead   int64  // how many permits a batch of this step takes ahead if it may
	mayTake bool   // a batch of this step might take some

	// What states refer to by an index, and the executions of scripts that are known.
	stores   numbered[store]
	commands numbered[command]
	replies  numbered[any]
	ran      map[execution]ran
}

// A step is what leads from one state to the next, as the arguments of Sprintf.
type step struct {
	what string
	args []any
}

// ErrViolation is what must not happen.
var ErrViolation = errors.New("violation")

// A serverError is a failure of the server.
type serverError struct{ error }

// Explore visits all states of a scope. The error is a violation, with the steps that lead there,
// or a failure of the server.
func Explore(ctx context.Context, scope Scope) (result Result, err error) {
	s := &search{Scope: scope, ctx: ctx, seen: map[[sha256.Size]byte]struct{}{}, ran: map[execution]ran{}}
	w := &world{store: s.stores.of(store{records: []redis.Z{}})}
	for i, c := range scope.Clients {
		own := &client{retries: c.Retries, changes: c.Changes}
		for _, kind := range c.Callers {
			own.comes = append(own.comes, kind.Comes)
		}
		w.clients = append(w.clients, s.started(i, own))
	}
	schedule.Strict = true
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // states are copied all the time
	defer func() { result, err = s.result, s.failure(recover()) }()
	s.load()
	s.visit(w)
	return result, nil
}

// failure returns the error of what has stopped a search; nil: nothing. A panic of the code that is
// searched is a violation, too.
func (s *search) failure(cause any) error {
	if server, failed := cause.(serverError); failed || cause == nil {
		return server.error
	}
	text := fmt.Sprint(cause)
	for _, step := range s.path {
		text += "\n  " + fmt.Sprintf(step.what, step.args...)
	}
	return fmt.Errorf("%w: %s", ErrViolation, text)
}

// violated ends the search.
func violated(what string, args ...any) { panic(fmt.Sprintf(what, args...)) }

// now returns the time of a world.
func (s *search) now(w *world) time.Time { return Epoch.Add(s.Times[w.at]) }

// visit explores all that follows from w.
func (s *search) visit(w *world) {
	s.forget(w)
	s.bytes = deep.Append(s.bytes[:0], w)
	key := sha256.Sum256(s.bytes)
	if _, known := s.seen[key]; known {
		return
	}
	s.seen[key] = struct{}{}
	s.result.States++
	s.consistent(w)
	if !slices.ContainsFunc(w.clients, (*client).active) {
		return // nothing more is granted
	}
	if w.at+1 < len(s.Times) {
		next := deep.Copy(w)
		next.at++
		s.step(func() { s.visit(next) }, "the time is %v", s.Times[next.at])
	}
	for i := range w.clients {
		s.steps(w, i)
	}
}

// step takes a step. The path keeps it if it ends the search.
func (s *search) step(take func(), what string, args ...any) {
	s.path = append(s.path, step{what, args})
	take()
	s.path = s.path[:len(s.path)-1]
}

// event lets something happen to a client, and visits a world for each number of permits that a
// batch may then take ahead.
func (s *search) event(w *world, i int, do func(next *world, c *client), what string, args ...any) {
	s.step(func() {
		for _, ahead := range append([]int64{0}, s.Clients[i].Ahead...) {
			next := deep.Copy(w)
			s.ahead, s.mayTake = ahead, false
			do(next, next.clients[i])
			s.exit(next, i)
			might := s.mayTake // what follows changes it
			s.sound(next, i)
			if s.visit(next); !might {
				return
			}
		}
	}, what, args...)
}

// takesAhead returns how many permits a batch takes ahead that may take some.
func (s *search) takesAhead() int64 {
	s.mayTake = true
	return s.ahead
}

// forget drops what decides nothing that follows: grants that share no window with later ones, and
// what queues have forgotten.
func (s *search) forget(w *world) {
	oldest := s.now(w)
	for i, c := range w.clients {
		if c.retries == 0 {
			c.recent = protocol.RecentIDs{}
		}
		var batches []*schedule.Batch
		for _, call := range c.calls {
			if call.content == asks && !call.alone && call.last.Mono.Before(oldest) {
				oldest = call.last.Mono
			}
			if c.retries == 0 && !call.again {
				call.recent = protocol.RecentIDs{}
			}
			if call.batch != nil {
				batches = append(batches, call.batch)
			}
		}
		if c.queue != nil {
			c.queue.Forget(s.moment(w.at, c), batches, s.known(i))
		}
	}
	w.grants = slices.DeleteFunc(w.grants, func(g window.Grant) bool { return !g.End.After(oldest.Add(-s.Interval)) })
}

// known returns what has no effect on the queue of a client.
func (s *search) known(i int) schedule.Known {
	spec := &s.Clients[i]
	return schedule.Known{
		NoEnd: !slices.ContainsFunc(spec.Callers, func(c Caller) bool { return c.Timeout > 0 }),
		NoShare: len(s.Clients) == 1 && !spec.Redisson ||
			!slices.ContainsFunc(spec.Callers, func(c Caller) bool { return c.Kind == schedule.Wait }),
	}
}
