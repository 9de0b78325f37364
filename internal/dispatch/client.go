// Package dispatch connects the callers of each limiter with Redis. For each limiter it has a lock,
// a schedule.Queue and a timer. Package schedule decides which callers share a call, package
// exchange how a call reaches its node, and package limiter makes the calls that wait in no queue.
//
// These locks are taken in this order. None is held while an observer or a hook of the Redis client
// is called:
//
//	sets.mu           the table of sets
//	queue.mu of a set, before those of its limiters
//	registry.mu       the table of queues
//	queue.mu          a schedule.Queue, with its leases, and its timer
//	nodes, Breaker    the table of nodes; the health of a node
//	Pipeline          the runs to a node
//	leaves            the leases to be given back, the changes under way, the checks, the deny cache, the
//	                  local limiters: no other lock is taken within them
package dispatch

import (
	"sync"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/workers"
)

// An Extended is a Redis client with settings for which there is no option. Packages of this
// repository, such as limittest, pass it to rratelimiter.NewClient.
type Extended struct {
	script.Redis
	Alone bool          // Redisson cannot use the server
	Made  func(*Client) // is called with the new client; nil: nothing is called
}

// A Client holds what the limiters of one process share: that of package limiter, and the queues.
type Client struct {
	limiter.Client
	alone    bool // see Extended
	registry registry
	sets     sets
	requests sync.Pool // of *request

	leases     atomic.Bool  // some limiter has leases
	holding    atomic.Int64 // limiters that have one
	givingBack workers.Workers[giveBack]
}

// New returns a client.
func New(config limiter.Config) *Client {
	c := &Client{registry: registry{all: map[queueKey]*queue{}}}
	c.givingBack = workers.Workers[giveBack]{Most: mostGivingBack, Do: giveBack.work}
	extended, ok := config.Redis.(Extended)
	if ok {
		config.Redis, c.alone = extended.Redis, extended.Alone
	}
	c.Init(config, c.wake)
	if extended.Made != nil {
		extended.Made(c)
	}
	return c
}

// A Result is the outcome of one request.
type Result = schedule.Result
