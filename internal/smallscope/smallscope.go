// Package smallscope runs all interleavings of a few clients of one limiter, in a small scope: few
// permits, few moments of time, few callers. A client has leases (WithLease), or no leases, or
// charges permits, or is a client of another library, which calls its own script. Requests and
// replies take any time to arrive, some never arrive, and clients crash.
//
// Clients use the real schedule.Queue, lease.Ledger, scripts, arguments and decoders of replies.
// The package has its own code only for what package dispatch does around them: which method is
// called when. Package window checks every grant. After each step, judge.go checks the state of the
// client.
//
// This file has the search; client.go the state of a client, steps.go the events of a client and
// what it does then, send.go its requests, reply.go how it handles replies, judge.go the checks,
// server.go what a script does.
package smallscope

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Scope says what is explored.
type Scope struct {
	Rate     int64
	Interval time.Duration
	// the moments that there are, since Epoch; the clock stands still in between
	Times   []time.Duration
	Clients []Client
	Crashes int // at most so many clients crash

	Acquire, Release *script.Script
	Redis            *redis.Client
	SetTime          func(time.Time) // sets the server's clock; nil: no client uses it
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
	States   int // different ones
	Scripts  int // different executions of a script
	Grants   int // states in which a grant was judged
	Leased   int // of them, those of a lease
	Full     int // of them, those with a window that holds the whole rate
	Restored int // retries that found what an earlier attempt was granted
}

// A world is one state. It is not changed once it has a successor.
type world struct {
	at      int // index in Times
	store   int // what Redis holds: index in search.stores
	clients []*client
	grants  []grant // of the last interval, sorted
	crashes int
}

// A grant is permits that a caller got, at some time between two, in µs since the epoch of
// time.Time.
type grant struct{ permits, start, end int64 }

// A search explores a scope, depth first.
type search struct {
	Scope
	ctx     context.Context
	result  Result
	seen    map[[16]byte]struct{}
	path    []step
	numbers numbers // memory for keyOf
	text    []byte  // the same
	ahead   int64   // how many permits a batch of this step takes ahead if it may
	mayTake bool    // a batch of this step might take some

	// What states refer to by an index, and the executions of scripts that are known.
	stores   numbered[store]
	commands numbered[command]
	replies  numbered[any]
	recents  numbered[protocol.RecentIDs]
	ran      map[execution]ran
}

// A numbered holds values without repetition, each under a number.
type numbered[T any] struct {
	all    []T
	number map[string]int
}

// of returns the number of a value. Equal values have equal keys.
func (n *numbered[T]) of(key string, value T) int {
	at, known := n.number[key]
	if !known {
		if n.number == nil {
			n.number = map[string]int{}
		}
		at = len(n.all)
		n.number[key] = at
		n.all = append(n.all, value)
	}
	return at
}

// Explore visits all states of a scope. The error is a violation, with the steps that lead there,
// or a failure of the server.
func Explore(ctx context.Context, scope Scope) (Result, error) {
	s := &search{Scope: scope, ctx: ctx, seen: map[[16]byte]struct{}{}, ran: map[execution]ran{}}
	w := world{store: s.stores.of("", store{}), clients: make([]*client, len(scope.Clients))}
	s.recents.of("", protocol.RecentIDs{}) // the first one
	for i, c := range scope.Clients {
		own := &client{retries: c.Retries, changes: c.Changes}
		for _, kind := range c.Callers {
			own.comes = append(own.comes, kind.Comes)
		}
		s.start(own, i)
		w.clients[i] = own
	}
	schedule.Strict = true
	err := s.load()
	if err == nil {
		err = s.visit(w)
	}
	return s.result, err
}

// now returns the time of a world.
func (s *search) now(w *world) time.Time { return Epoch.Add(s.Times[w.at]) }

// ErrViolation is what must not happen.
var ErrViolation = errors.New("violation")

// violated returns the error of a violation, with the steps that lead there.
func (s *search) violated(what string, args ...any) error {
	text := fmt.Sprintf(what, args...)
	for _, step := range s.path {
		text += "\n  " + fmt.Sprintf(step.what, step.args...)
	}
	return fmt.Errorf("%w: %s", ErrViolation, text)
}

// visit explores all that follows from w.
func (s *search) visit(w world) error {
	s.forget(&w)
	key := s.keyOf(&w)
	if _, known := s.seen[key]; known {
		return nil
	}
	s.seen[key] = struct{}{}
	s.result.States++
	if err := s.consistent(&w); err != nil {
		return err
	}
	if !slices.ContainsFunc(w.clients, (*client).active) {
		return nil // nothing more is granted
	}
	if w.at+1 < len(s.Times) {
		next := w.copy()
		next.at++
		if err := s.step(next, "the time is %v", s.Times[next.at]); err != nil {
			return err
		}
	}
	for i := range w.clients {
		if err := s.steps(&w, i); err != nil {
			return err
		}
	}
	return nil
}

// step visits the world to which a step leads.
func (s *search) step(next world, what string, args ...any) error {
	s.enter(what, args...)
	defer s.leave()
	return s.visit(next)
}

// A step is what leads from one state to the next, as the arguments of Sprintf.
type step struct {
	what string
	args []any
}

func (s *search) enter(what string, args ...any) { s.path = append(s.path, step{what, args}) }
func (s *search) leave()                         { s.path = s.path[:len(s.path)-1] }

// copy returns a copy that can be changed.
func (w *world) copy() world {
	next := *w
	next.clients = slices.Clone(w.clients)
	return next
}

// forget drops the grants that share no window with later ones.
func (s *search) forget(w *world) {
	oldest := w.at
	for _, c := range w.clients {
		for _, call := range c.calls {
			oldest = min(oldest, call.last)
		}
	}
	from := Epoch.Add(s.Times[oldest]).Add(-s.Interval).UnixMicro()
	w.grants = slices.DeleteFunc(slices.Clone(w.grants), func(g grant) bool { return g.end <= from })
}

// keyOf returns a hash of all that decides what follows.
func (s *search) keyOf(w *world) (key [16]byte) {
	b := s.numbers[:0]
	b.add(int64(w.at), int64(w.crashes), int64(w.store))
	for _, g := range w.grants {
		b.add(g.permits, g.start, g.end)
	}
	for i := range w.clients {
		b.add(-1)
		s.key(&b, w, i)
	}
	s.numbers = b
	text := s.text[:0]
	for _, n := range b {
		text = binary.AppendVarint(text, n)
	}
	s.text = text
	sum := sha256.Sum256(text)
	copy(key[:], sum[:])
	return key
}

// numbers tell states apart.
type numbers []int64

func (b *numbers) add(all ...int64) { *b = append(*b, all...) }

func flag(set bool) int64 {
	if set {
		return 1
	}
	return 0
}
