// Package dispatch connects the callers of each limiter with Redis. For each limiter it has a lock,
// a schedule.Queue and a timer. Package schedule decides which callers share a call, and package
// exchange how a call reaches its node. Package dispatch also has what belongs to a limiter and not
// to a queue: checks of the records, the deny cache, local decisions, and the calls of all other
// methods.
//
// These locks are taken in this order. None is held while an observer or a hook of the Redis client
// is called:
//
//	sets.mu           the table of sets
//	queue.mu of a set, before those of its limiters
//	registry.mu       the table of queues
//	queue.mu          a schedule.Queue, with its leases, and its timer
//	lender.mu         changes under way, leases to be given back
//	nodes, Breaker    the table of nodes; the health of a node
//	Pipeline          the runs to a node
//	leaves            the checks, the deny cache, the local limiters: no other lock is taken within them
package dispatch

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/checks"
	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/localgrant"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// A Config is what a client is made of. The options of a client set its fields.
type Config struct {
	Redis       script.Redis
	ID          string
	Clock       func() time.Time // nil: time.Now
	CallTimeout time.Duration
	Observer    any        // of the root package; nil: none
	Observe     func(Call) // nil: no observer
	// from the name of a limiter to that of its configuration key; nil: the same
	MapName  func(string) string
	Defaults Settings // of all limiters
}

// An Extended is a Redis client with settings for which there is no option. Packages of this
// repository, such as limittest, pass it to rratelimiter.NewClient.
type Extended struct {
	script.Redis
	Alone bool          // Redisson cannot use the server
	Made  func(*Client) // is called with the new client; nil: nothing is called
}

// A Tuning sets thresholds, for tests; zero is the usual value.
type Tuning struct {
	Patience      time.Duration // a run of a pipeline that takes no longer has not stalled
	Linger        time.Duration // a batch that takes less does not make its queue linger
	LocalLimiters int           // for how many limiters local grants are counted
	RunsInFlight  int           // runs of a pipeline
	JobsInOne     int           // jobs of a run
}

// A Client holds what the limiters of one process share.
type Client struct {
	config   Config // with a clock
	ownClock bool   // the clock is not time.Now
	tuning   Tuning // with all values set
	exchange *exchange.Exchange
	identity *record.Identity

	registry      registry
	sets          sets
	lender        lender
	checks        checks.Table
	denyCache     denycache.Cache
	localLimiters localgrant.Limiters

	requests sync.Pool    // of *request
	waiting  atomic.Int64 // waiting callers in all queues, and in Pause
	// the check for a closed redis client is scheduled; it runs while callers wait
	watching atomic.Bool
	closed   chan struct{} // it is closed once this check has found the redis client closed
	close    func()        // closes it; may be called repeatedly
}

// New returns a client.
func New(config Config) *Client {
	c := &Client{config: config, ownClock: config.Clock != nil, registry: registry{all: map[queueKey]*queue{}}}
	c.closed = make(chan struct{})
	c.close = sync.OnceFunc(func() { close(c.closed) })
	if !c.ownClock {
		c.config.Clock = time.Now
	}
	extended, ok := config.Redis.(Extended)
	if !ok {
		extended.Redis = config.Redis
	}
	c.exchange = exchange.New(extended.Redis, config.CallTimeout, c.config.Clock)
	c.identity = record.NewIdentity(config.ID)
	c.Tune(Tuning{})
	if extended.Made != nil {
		extended.Made(c)
	}
	return c
}

// Tune replaces the tuning, before the client is used.
func (c *Client) Tune(t Tuning) {
	t.Patience = cmp.Or(t.Patience, pipeline.ShortestStall)
	t.Linger = cmp.Or(t.Linger, schedule.LingerThreshold)
	t.LocalLimiters = cmp.Or(t.LocalLimiters, localgrant.MaxLimiters)
	t.RunsInFlight = cmp.Or(t.RunsInFlight, pipeline.MaxRuns)
	t.JobsInOne = cmp.Or(t.JobsInOne, pipeline.MaxJobs)
	c.tuning = t
	c.localLimiters.Most = t.LocalLimiters
	c.exchange.Tune(exchange.Tuning{Patience: t.Patience, RunsInFlight: t.RunsInFlight, JobsInOne: t.JobsInOne})
}

// alone reports whether Redisson cannot use the server.
func (c *Client) alone() bool {
	extended, _ := c.config.Redis.(Extended)
	return extended.Alone
}

// Topology returns the servers.
func (c *Client) Topology() *script.Topology { return c.exchange.Topology() }

// Clock returns the time by the client's clock.
func (c *Client) Clock() time.Time { return c.config.Clock() }

// now returns the time by the client's clock and by the monotonic one.
func (c *Client) now() schedule.Moment {
	now := time.Now()
	if c.ownClock {
		return schedule.Moment{Clock: c.Clock(), Mono: now}
	}
	return schedule.Moment{Clock: now, Mono: now}
}

// A Result is the outcome of one request.
type Result = schedule.Result

// A Call describes one acquiring call, for the observer.
type Call struct {
	Limiter                  string
	Callers, Granted, Denied int
	Permits                  int64
	Unclaimed                int64
	Waiting                  int
	Latency                  time.Duration
	Attempts                 int
	Repaired                 string
	RateMismatch             bool
	DenyCacheHits            int
	Fallback                 bool
	Leased, Returned, Void   int64
	Charged                  int64
	Err                      error
}

// Identity returns what makes the ids of the client's records.
func (c *Client) Identity() *record.Identity { return c.identity }
