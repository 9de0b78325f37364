// Package limiter has what a limiter is in this process: its names, its options, what is known of
// its rate and its records, and all calls that wait in no queue. It does not know which callers
// wait, who shares a call, or what is leased: package dispatch adds that, by Queues.
package limiter

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/checks"
	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/fallback"
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
	Observer    any            // of the root package; nil: none
	Observe     func(CallInfo) // nil: no observer
	// from the name of a limiter to that of its configuration key; nil: the same
	MapName  func(string) string
	Defaults Settings // of all limiters
}

// A Tuning sets thresholds, for tests; zero is the usual value.
type Tuning struct {
	Patience      time.Duration // a run of a pipeline that takes no longer has not stalled
	Linger        time.Duration // a batch that takes less does not make its queue linger
	LocalLimiters int           // for how many limiters local grants are counted
	RunsInFlight  int           // runs of a pipeline
	JobsInOne     int           // jobs of a run
}

// A Client holds what the limiters of one process share, but for their queues.
type Client struct {
	Config    Config // with a clock
	Linger    time.Duration
	Exchange  *exchange.Exchange
	Checks    checks.Table
	DenyCache denycache.Cache
	Local     fallback.Limiters
	Blocked   atomic.Int64 // waiting callers in all queues, and in Pause

	ownClock bool // the clock is not time.Now
	identity *record.Identity
	changes  changes
	closed   closed
	wake     func(chosen func(*Limiter) bool)
}

// Init makes c a client. wake lets the waiting callers of the chosen limiters ask again.
func (c *Client) Init(config Config, wake func(chosen func(*Limiter) bool)) {
	c.Config, c.ownClock, c.wake = config, config.Clock != nil, wake
	if !c.ownClock {
		c.Config.Clock = time.Now
	}
	c.Exchange = exchange.New(config.Redis, config.CallTimeout, c.Config.Clock)
	c.identity = record.NewIdentity(config.ID)
	c.closed.found = make(chan struct{})
	c.Tune(Tuning{})
}

// Tune replaces the tuning, before the client is used.
func (c *Client) Tune(t Tuning) {
	c.Linger = cmp.Or(t.Linger, schedule.LingerThreshold)
	c.Local.Most = cmp.Or(t.LocalLimiters, fallback.MaxLimiters)
	c.Exchange.Tune(exchange.Tuning{
		Patience:     cmp.Or(t.Patience, pipeline.ShortestStall),
		RunsInFlight: cmp.Or(t.RunsInFlight, pipeline.MaxRuns),
		JobsInOne:    cmp.Or(t.JobsInOne, pipeline.MaxJobs),
	})
}

// Topology returns the servers.
func (c *Client) Topology() *script.Topology { return c.Exchange.Topology() }

// Clock returns the time by the client's clock.
func (c *Client) Clock() time.Time { return c.Config.Clock() }

// Moment returns the time by the client's clock and by the monotonic one.
func (c *Client) Moment() schedule.Moment {
	now := time.Now()
	if c.ownClock {
		return schedule.Moment{Clock: c.Clock(), Mono: now}
	}
	return schedule.Moment{Clock: now, Mono: now}
}

// ForCaller returns the error of a call for its caller, whose context may have ended meanwhile.
func (c *Client) ForCaller(ctx context.Context, err error) error {
	if errors.Is(err, script.ErrUnavailable) {
		return script.Failure(ctx, c.Exchange.Timeout(), err)
	}
	return err
}

// Identity returns what makes the ids of the client's records.
func (c *Client) Identity() *record.Identity { return c.identity }

// An Inspection is what a client holds at one time, for tests.
type Inspection struct {
	Recounting    bool // the records of a limiter are added up in the background
	InFlight      int  // runs of the pipeline to the server that hold a slot
	Stalled       int  // runs of it that released theirs
	Queued        int  // batches that wait for a slot in it
	LocalLimiters int  // limiters for which a rate or local grants are stored
}

// Inspect returns what the client holds.
func (c *Client) Inspect() (i Inspection) {
	i.InFlight, i.Stalled, i.Queued = c.Exchange.Load()
	i.Recounting, i.LocalLimiters = c.Checks.Recounts() > 0, c.Local.Size()
	return i
}
