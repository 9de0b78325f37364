// Package dispatch has the queue and the batches of each limiter in this process: it decides which callers share a call,
// when a waiting caller asks again, what a reply means for each caller, and what the process decides while Redis is away.
//
// Lock order: that of the sets, of a set, of the registry, of a queue, of a pipeline; then those under which no other is
// taken: that of the local limiters, of a breaker, of the deny cache, of the checks, of the changes under way, of the leases
// to be given back, of the sweeper. The lock of a ledger comes after that of its queue, and before that of the leases to be
// given back. That of the nodes of the exchange comes before that of a pipeline. A pipeline calls into a batch without its mutex,
// but for methods that take at most the lock of the local limiters.
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/localgrant"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// ErrExceedsRate means that one request asked for more permits than the rate has.
var ErrExceedsRate = errors.New("rratelimiter: the rate is less than the requested permits")

// A Config is what a client is made of. The options of a client set its fields. Packages of this module may set those
// for which there is no option.
type Config struct {
	Redis       script.Redis
	ID          string
	Clock       func() time.Time // nil: time.Now
	CallTimeout time.Duration
	Observer    any                 // of the root package; nil: none
	Observe     func(Call)          // nil: no observer
	MapName     func(string) string // from the name of a limiter to that of its configuration key; nil: the same
	Defaults    Settings            // of all limiters
	Alone       bool                // Redisson cannot use the server
	Made        func(*Client)       // is called with the new client; nil: nothing is
}

// A Tuning sets thresholds, for tests; zero is the usual value.
type Tuning struct {
	Patience      time.Duration // a run of a pipeline that takes no longer has not stalled
	Linger        time.Duration // a batch that takes less does not make its queue linger
	LocalLimiters int           // for how many limiters local grants are counted
	RunsInFlight  int           // runs of a pipeline
	BatchesInOne  int           // batches of a run
}

// A Client holds what the limiters of one process share.
type Client struct {
	exchange *exchange.Exchange
	identity *record.Identity
	clock    func() time.Time
	observe  func(Call) // nil: no observer
	id       string
	mapName  func(string) string
	defaults Settings
	alone    bool   // Redisson cannot use this server
	tuning   Tuning // with all values set

	registry      registry
	sets          sets
	waiting       atomic.Int64 // waiting callers in all queues
	requests      sync.Pool    // of *request
	jointRequests sync.Pool    // of *jointRequest
	leases        atomic.Int64 // ledgers that have one
	leasing       atomic.Bool  // some limiter has leases
	sweeper       sweeper      // ends leases that are over
	giveBacks     giveBacks    // of leases that have ended
	changes       changes      // under way
	ownClock      bool         // the clock is not time.Now
	checks        checks
	denyCache     denycache.Cache
	localLimiters localgrant.Limiters

	watching atomic.Bool // the check for a closed redis client is scheduled; it runs while callers wait
}

// New returns a client.
func New(c Config) *Client {
	ownClock := c.Clock != nil
	if !ownClock {
		c.Clock = time.Now
	}
	d := &Client{
		ownClock: ownClock,
		exchange: exchange.New(c.Redis, c.CallTimeout, c.Clock), identity: record.NewIdentity(c.ID), clock: c.Clock,
		observe: c.Observe, id: c.ID, mapName: c.MapName, defaults: c.Defaults, alone: c.Alone,
		registry: registry{all: map[queueKey]*queue{}},
	}
	d.Tune(Tuning{})
	if c.Made != nil {
		c.Made(d)
	}
	return d
}

// Tune replaces the tuning, before the client is used.
func (c *Client) Tune(t Tuning) {
	t.Patience = cmp.Or(t.Patience, pipeline.ShortestStall)
	t.Linger = cmp.Or(t.Linger, LingerThreshold)
	t.LocalLimiters = cmp.Or(t.LocalLimiters, localgrant.MaxLimiters)
	t.RunsInFlight = cmp.Or(t.RunsInFlight, pipeline.MaxRuns)
	t.BatchesInOne = cmp.Or(t.BatchesInOne, pipeline.MaxBatch)
	c.tuning = t
	c.localLimiters.Most = t.LocalLimiters
	c.exchange.Tune(exchange.Tuning{Patience: t.Patience, RunsInFlight: t.RunsInFlight, BatchesInOne: t.BatchesInOne})
}

// Topology returns the servers.
func (c *Client) Topology() *script.Topology { return c.exchange.Topology() }

// Settings are the options of a limiter. They are comparable: limiters with equal names and settings share one queue.
type Settings struct {
	protocol.Options
	DenyCache int     // most limiters with a cached refusal; 0: no cache
	FallsBack bool    // the process decides while Redis is away
	Fallback  float64 // the fraction of the rate that it grants then, 0 to 1
}

// A Limiter is one limiter of a client.
type Limiter struct {
	client   *Client
	name     string
	keyNames [keys.Count]string
	keyArgs  atomic.Pointer[[keys.Count]any] // the same, as arguments of a command; nil: not needed yet
	settings Settings
	encoder  protocol.Encoder
	err      error                 // of the options or the name
	local    localgrant.Limiter    // as local decisions see it
	enforced denycache.Rate        // the rate to enforce; zero: none
	queue    atomic.Pointer[queue] // the one used last; it may have been dropped from the registry
}

// Limiter returns a limiter with a name and the default options.
func (c *Client) Limiter(name string) (*Limiter, error) {
	l := new(Limiter)
	return l, l.Init(c, name, c.defaults, nil)
}

// Init makes l a limiter of the client. It returns err or, if that is nil, what is wrong with the name. A limiter with an
// error must not be used, but by Survey, Collect and Health.
func (l *Limiter) Init(c *Client, name string, s Settings, err error) error {
	l.client, l.name, l.settings = c, name, s
	if s.Lease > 0 && !c.leasing.Load() {
		c.leasing.Store(true)
	}
	raw := name
	if c.mapName != nil {
		raw = c.mapName(name)
	}
	wrong := keys.CheckLength(len(raw), len(c.id))
	if wrong == nil {
		l.keyNames = keys.Names(raw, c.id)
		if c.Topology().Clustered() && !keys.SameSlot(l.Keys()) {
			wrong = fmt.Errorf("%w: %s", script.ErrCrossSlotName, Quoted(raw))
		}
	}
	l.err = cmp.Or(err, wrong)
	l.encoder.Init(s.Options, c.identity, c.clock)
	l.local = localgrant.Limiter{
		Key: l.Key(), Own: s.Own.Permits, Interval: protocol.Millis(s.Own.Interval), Fraction: s.Fallback,
	}
	if own := s.Own; s.Enforced {
		l.enforced = denycache.Rate{own.Permits, own.Interval, own.Type, own.KeepAlive}
	}
	return l.err
}

// Clock returns the time by the client's clock.
func (l *Limiter) Clock() time.Time { return l.client.clock() }

// Now returns the time as an argument of a script.
func (l *Limiter) Now() any { return l.encoder.Now() }

// A Result is the outcome of one request.
type Result struct {
	Allowed    bool
	Limit      int64
	Remaining  int64
	RetryAfter time.Duration
	NextAfter  time.Duration
	ResetAfter time.Duration
}

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
	Err                      error
}

// Read runs a script that changes nothing, and returns its reply.
func (l *Limiter) Read(ctx context.Context, s *script.Script, args ...any) ([]int64, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		return l.client.Topology().Run(ctx, sent, s, true, l.Keys(), args...)
	})
	return reply, sent.Explain(err)
}

// ReadMixed is Read for a reply of any kind.
func (l *Limiter) ReadMixed(ctx context.Context, s *script.Script, args ...any) ([]any, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]any, error) {
		return l.client.Topology().RunMixed(ctx, sent, s, true, l.Keys(), args...)
	})
	return reply, sent.Explain(err)
}

// Change runs a script that changes the limiter, and returns its reply. An idempotent one may be executed twice. The leases
// of the limiter, and of the others that are given, end. The keys of the others follow those of l.
func (l *Limiter) Change(ctx context.Context, s *script.Script, idempotent bool, args []any, others ...*Limiter) ([]int64, error) {
	keys, ends := l.Keys(), []func(error){l.changing(ctx, l.changed)}
	for _, other := range others {
		keys = append(keys[:len(keys):len(keys)], other.Keys()...)
		ends = append(ends, other.changing(ctx, other.changed))
	}
	return l.change(ctx, s, idempotent, keys, args, ends...)
}

// change runs a script. Then it calls what ends the changes with the error of the call, even if its caller is gone.
func (l *Limiter) change(
	ctx context.Context, s *script.Script, idempotent bool, keys []string, args []any, ends ...func(error),
) ([]int64, error) {
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		reply, err := l.client.Topology().Run(ctx, sent, s, idempotent, keys, args...)
		for _, end := range ends {
			end(err)
		}
		return reply, err
	})
	return reply, sent.Outcome(err)
}

// Integer runs a command on the configuration key that changes nothing and replies with a number.
func (l *Limiter) Integer(ctx context.Context, command string) (int64, error) {
	return within(ctx, l, func(ctx context.Context) (int64, error) {
		cmd := redis.NewIntCmd(ctx, command, l.Key())
		err := l.client.Topology().Process(ctx, cmd)
		return cmd.Val(), err
	})
}

// Scan calls found for each key on the limiter's server that matches a pattern, perhaps more than once.
func (l *Limiter) Scan(ctx context.Context, pattern string, found func(key string)) error {
	server, err := within(ctx, l, func(ctx context.Context) (script.Redis, error) {
		return l.client.Topology().Server(ctx, l.Key())
	})
	if err != nil {
		return err
	}
	for cursor := uint64(0); ; {
		type page struct {
			keys []string
			next uint64
		}
		got, err := within(ctx, l, func(ctx context.Context) (page, error) {
			cmd := redis.NewScanCmd(ctx, nil, "scan", cursor, "match", pattern, "count", 1000)
			err := server.Process(ctx, cmd)
			keys, next := cmd.Val()
			return page{keys, next}, err
		})
		if err != nil {
			return err
		}
		for _, key := range got.keys {
			found(key)
		}
		if cursor = got.next; cursor == 0 {
			return nil
		}
	}
}

// Repair runs repair.lua.
func (l *Limiter) Repair(ctx context.Context, request protocol.Repair) (protocol.Repaired, error) {
	end := func(error) {}
	if !request.Dry {
		end = l.changing(ctx, l.changed)
	}
	request.Now = l.Now()
	sent := new(script.Attempts)
	reply, err := within(ctx, l, func(ctx context.Context) ([]int64, error) {
		reply, err := l.client.Topology().Run(ctx, sent, protocol.RepairScript, request.Idempotent(), l.Keys(), request.Args()...)
		end(err)
		return reply, err
	})
	if err = sent.Explain(err); !request.Idempotent() {
		err = sent.Outcome(err)
	}
	if err != nil {
		return protocol.Repaired{}, err
	}
	return request.Reply(reply)
}

// Survey reads the raw content of the limiter's keys, with at most count records from index first on, newest first. With
// own it reads the client's keys, whatever the limiter's type.
func (l *Limiter) Survey(ctx context.Context, first, count int, own bool) (s protocol.Stored, err error) {
	request := protocol.Survey{First: first, Count: count, Own: own}
	var reply []any
	if err = l.err; err == nil {
		if reply, err = l.ReadMixed(ctx, protocol.SurveyScript, request.Args()...); err == nil {
			s, err = request.Reply(reply)
		}
	}
	if err != nil {
		return s, fmt.Errorf("survey %s: %w", Quoted(l.name), err)
	}
	names := [...]string{l.keyNames[keys.Config], l.keyNames[keys.Value], l.keyNames[keys.Permits]}
	if s.Own {
		names[1], names[2] = l.keyNames[keys.ClientValue], l.keyNames[keys.ClientPermits]
	}
	for i := range s.Keys {
		s.Keys[i].Name = names[i]
	}
	return s, nil
}

// Collect removes the client's own value and permits keys if they hold nothing of use. With dry it only returns what it
// would do. Keys with records that counted within the last idle are in use.
func (l *Limiter) Collect(ctx context.Context, idle time.Duration, dry bool) (protocol.Collected, error) {
	request := protocol.Collect{Now: l.Now(), Idle: idle, Dry: dry}
	var reply []int64
	err := l.err
	switch {
	case err != nil:
	case dry:
		reply, err = l.Read(ctx, protocol.CollectScript, request.Args()...)
	default:
		reply, err = l.Change(ctx, protocol.CollectScript, false, request.Args())
	}
	if err != nil {
		return 0, fmt.Errorf("collect the keys of a client of %s: %w", Quoted(l.name), err)
	}
	return request.Reply(reply), nil
}

// Quoted quotes a name for an error text: on one line, and at most its first 200 bytes.
func Quoted(name string) string {
	const most = 200
	if len(name) <= most {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q... (%d bytes)", name[:most], len(name))
}

// SeeRate drops a cached refusal under another rate.
func (l *Limiter) SeeRate(rate int64, interval time.Duration) {
	l.client.denyCache.SeeRate(l.Key(), rate, interval)
}

// WakeAll lets all waiting callers of all limiters ask again, and clears the cached refusals.
func (c *Client) WakeAll() { c.wake("") }

// Waiting returns the number of callers blocked now, by the names of their limiters.
func (c *Client) Waiting() map[string]int {
	waiting := map[string]int{}
	for _, q := range c.registry.list(func(*Limiter) bool { return true }) {
		q.mu.Lock()
		if q.waiting > 0 {
			waiting[q.limiter.name] += q.waiting
		}
		q.mu.Unlock()
	}
	return waiting
}

// Activity is what goes on in a client at one time.
type Activity struct {
	Waiting  int           // waiting callers, including those whose call is in flight
	InFlight bool          // a call is in flight, or about to be sent
	Next     time.Duration // by the last replies, the time until the first waiting caller is served; 0: no caller waits
}

// Look returns what goes on now on the limiters with a name; "" means all limiters.
func (c *Client) Look(limiter string) (calls Activity) {
	for _, q := range c.registry.list(func(l *Limiter) bool { return limiter == "" || l.name == limiter }) {
		q.mu.Lock()
		calls.Waiting += q.waiting
		calls.InFlight = calls.InFlight || q.inFlight != nil || q.detached > 0 || q.linger > 0 // or about to be
		if q.first != nil && !q.first.free.IsZero() {
			if wait := q.first.result.RetryAfter; calls.Next == 0 || wait < calls.Next {
				calls.Next = wait
			}
		}
		q.mu.Unlock()
	}
	return calls
}

// silence returns for how long the last batch sent for l has had no reply; 0 if it has one, or is detached and has no
// waiting caller.
func (l *Limiter) silence() time.Duration {
	q := l.queue.Load()
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.inFlight
	if first := q.first; b == nil && first != nil && first.state.inFlight() && first.batch.number == q.batches {
		b = first.batch // detached, and no batch was sent since
	}
	if b == nil {
		return 0
	}
	return time.Since(b.call.Started())
}

// Identity returns what makes the ids of the client's records.
func (c *Client) Identity() *record.Identity { return c.identity }

// Encoder returns what the requests of the limiter have in common.
func (l *Limiter) Encoder() *protocol.Encoder { return &l.encoder }
