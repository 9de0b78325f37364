// Package rratelimiter is Redisson's RRateLimiter for Go: a distributed rate limiter that keeps its state in Redis, in
// the same keys and bytes as Redisson, so that Go and Java services can share one limit.
//
// A limiter has a name and a [Rate]: a number of permits in any interval of a given length. All processes that use the
// same name on the same Redis share the limit.
//
//	client := rratelimiter.NewClient(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
//	if err := limiter.Acquire(ctx, 1); err != nil {
//		return err
//	}
//
// See [Limiter] for how it works and which method to use.
package rratelimiter

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/keys"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
	"github.com/rratelimiter/rratelimiter/internal/script"
	"github.com/rratelimiter/rratelimiter/internal/span"
)

// Redis is the part of a go-redis client that the limiters use. *redis.Client, *redis.ClusterClient, *redis.Ring,
// failover clients and *redis.AutoPipeliner implement it.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// A Client holds what the limiters of one process share: the connection, the client id, the clock and the defaults. It
// is safe for concurrent use. It has no Close method: closing the redis client ends all waiting with redis.ErrClosed.
type Client struct {
	topology    *script.Topology
	id          string
	identity    *record.Identity
	mapName     func(string) string
	clock       func() time.Time
	callTimeout time.Duration
	observer    Observer
	defaults    settings
	err         error // of the first invalid option

	requestObserver RequestObserver // observer, if it implements RequestObserver; else nil

	registry        registry
	waiting         atomic.Int64 // waiting callers in all queues
	requests        sync.Pool    // of *request
	lingerThreshold time.Duration
	denyCache       denycache.Cache
	localLimiters   localLimiters
	pipeline        *pipeline // to the server; to all servers where pipelines has no entry for the node

	pipelinesMu sync.Mutex
	pipelines   map[*redis.Client]*pipeline // to the nodes of a cluster or the shards of a Ring; guarded by pipelinesMu

	watching atomic.Bool // the check for a closed redis client is scheduled; it runs while callers wait
	alone    bool        // Redisson cannot use this server (limittest)
}

// NewClient returns a client that uses rdb. The caller owns and closes rdb. Closing it unblocks all waiters with
// redis.ErrClosed within 1 s (15 s for an AutoPipeliner or a Conn, whose state cannot be observed).
//
// Calls for many limiters share pipelines. On a cluster, each node is called through its own go-redis client, so a node
// that hangs delays only its own limiters. Hooks that must see these calls are added with
// redis.ClusterClient.OnNewNode, as the tracing and metrics of go-redis do.
func NewClient(rdb Redis, opts ...Option) *Client {
	c := &Client{
		topology:        script.NewTopology(rdb),
		id:              uuid.NewString(),
		mapName:         func(name string) string { return name },
		clock:           time.Now,
		callTimeout:     time.Second,
		lingerThreshold: lingerThreshold,
		registry:        registry{all: map[queueKey]*queue{}},
		localLimiters:   localLimiters{most: maxLocalLimiters},
		pipelines:       map[*redis.Client]*pipeline{},
	}
	for _, opt := range opts {
		if err := apply(opt, c); err != nil && c.err == nil {
			c.err = err
		}
	}
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		c.err = invalidOption("the redis client is nil")
	}
	c.identity = record.NewIdentity(c.id)
	c.pipeline = newPipeline(rdb, c.callTimeout)
	if c.topology.Hidden() { // each batch has a run of its own, and the number of runs is not limited
		c.pipeline.maxInFlight, c.pipeline.maxBatch = math.MaxInt, 1
	}
	c.observed()
	return c
}

// ID returns the client's id: the CLIENT part of the keys of PerClient limiters (Redisson: RedissonClient.getId).
func (c *Client) ID() string { return c.id }

// RateLimiter returns the limiter with the given name (Redisson: RedissonClient.getRateLimiter). It is cheap: it makes
// no call and keeps no state. Limiters with the same name and the same options are interchangeable.
func (c *Client) RateLimiter(name string, opts ...LimiterOption) *Limiter {
	l := &Limiter{client: c, name: name, settings: c.defaults, err: c.err}
	for _, opt := range opts {
		if err := apply(opt, &l.settings); err != nil && l.err == nil {
			l.err = asOption(err)
		}
	}
	l.encoder.Init(l.settings.Options, c.identity, c.clock)
	if own := l.settings.Own; l.settings.Enforced {
		l.enforced = denycache.Rate{own.Permits, own.Interval, own.Type, own.KeepAlive}
	}
	raw := c.mapName(name)
	if err := keys.CheckLength(len(raw), len(c.id)); err == nil {
		l.keyNames = keys.Names(raw, c.id)
	} else if l.err == nil {
		l.err = asOption(err)
	}
	if l.err == nil {
		l.err = l.settings.validate()
	}
	if l.err == nil && c.topology.Clustered() && !keys.SameSlot(l.keyNames[:]) {
		l.err = fmt.Errorf("%w: %s", ErrCrossSlotName, quoted(raw))
	}
	return l
}

// An Option configures a client. If an option is invalid, every method of the client's limiters returns
// ErrInvalidOption.
type Option func(*Client) error

// WithClientID sets the client's id, which must not be empty. The default is a random UUID, as in Redisson. With a
// stable id, a process finds its PerClient permits again after a restart.
func WithClientID(id string) Option {
	return func(c *Client) error {
		if id == "" {
			return invalidOption("the client id is empty")
		}
		c.id = id
		return nil
	}
}

// WithNameMapper sets the function that maps a limiter's name to the name of its configuration key (Redisson:
// NameMapper), for example to add the prefix that the Java side adds.
func WithNameMapper(mapName func(name string) string) Option {
	return func(c *Client) error {
		if mapName == nil {
			return invalidOption("the name mapper is nil")
		}
		c.mapName = mapName
		return nil
	}
}

// WithClock sets the clock that dates the grants, for tests. The default is time.Now. With a clock that always returns
// whole milliseconds, permits return exactly one interval after their grant, whatever the interval is (see [Limiter]).
func WithClock(now func() time.Time) Option {
	return func(c *Client) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		c.clock = now
		return nil
	}
}

// WithCallTimeout bounds one call to Redis, retries included. The default is 1 s.
//
// A failed call is retried while time is left: first after some milliseconds, later at intervals of up to 250 ms. To
// survive a failover without an error, set d to more than the failover takes, and the ReadTimeout of the redis client
// to at least d. With a shorter ReadTimeout, Redis may execute an attempt after the client has abandoned and retried
// it, and the permits are taken twice.
//
// If a call times out and no later call was answered, the requests queued behind it fail with the same timeout. Nothing
// was sent for them, so their error is never ErrOutcomeUnknown.
func WithCallTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return invalidOption("the call timeout %v is not positive", d)
		}
		c.callTimeout = d
		return nil
	}
}

// WithObserver sets the observer of all acquiring calls, and of all requests if it is a [RequestObserver]. If the
// observer has a method Watch(*Client), NewClient calls it with the client. [Observers] combines several observers.
func WithObserver(o Observer) Option {
	return func(c *Client) error {
		c.observer = o
		return nil
	}
}

// WithLimiterDefaults sets options for all limiters of the client. Options given to RateLimiter are applied after them.
func WithLimiterDefaults(opts ...LimiterOption) Option {
	return func(c *Client) error {
		for _, opt := range opts {
			if err := apply(opt, &c.defaults); err != nil {
				return asOption(err)
			}
		}
		return nil
	}
}

// apply applies an option to its target. A nil option is ErrInvalidOption.
func apply[O ~func(T) error, T any](opt O, to T) error {
	if opt == nil {
		return invalidOption("an option is nil")
	}
	return opt(to)
}

// settings are the options of a limiter. They are comparable: limiters with equal names and settings share one queue.
type settings struct {
	protocol.Options
	denyCache int     // most limiters with a cached refusal; 0: no cache
	fallsBack bool    // WithFallback
	fallback  float64 // fraction of the rate, 0 to 1
}

// validate rejects options that exclude each other, in whatever order they were given.
func (s settings) validate() error {
	switch {
	case s.Granularity == 0:
		return nil
	case s.RecordPerRequest:
		return invalidOption("WithGranularity joins the records that WithRecordPerRequest asks for")
	case s.Own != protocol.Rate{} && s.Granularity > protocol.Millis(s.Own.Interval)/10:
		return invalidOption("the granularity %v is more than a tenth of the interval %v", s.Granularity, protocol.Millis(s.Own.Interval))
	}
	return nil
}

// A LimiterOption configures one limiter in this process. Options are not stored in Redis.
type LimiterOption func(*settings) error

// WithRate makes the limiter set its own rate when it finds none, in the first call that needs it. A rate that is
// already stored wins, whatever it is; if it differs, CallInfo.RateMismatch is true. If only a part of the
// configuration is stored, the missing fields are set (like Redisson's trySetRate before each use).
//
// Every acquiring method and AvailablePermits set the rate; methods that only read, such as Config, State and TTL, do
// not. If both WithRate and WithEnforcedRate are given, the last one counts.
func WithRate(r Rate) LimiterOption {
	return func(s *settings) error {
		s.Own, s.Enforced = r.protocol(), false
		return r.validate()
	}
}

// WithEnforcedRate makes the limiter set its own rate whenever it finds none or another one. Earlier grants still
// count. Two processes that enforce different rates on one limiter overwrite each other forever: a rate should have one
// owner. A call that has set its rate three times and still finds another one is decided under that rate, and
// CallInfo.RateMismatch is true.
func WithEnforcedRate(r Rate) LimiterOption {
	return func(s *settings) error {
		s.Own, s.Enforced = r.protocol(), true
		return r.validate()
	}
}

// WithServerTime dates the grants by the clock of the Redis server instead of the clock of this host. Use it where the
// clocks of the hosts disagree. Redisson's clients always use their own clocks.
func WithServerTime() LimiterOption {
	return func(s *settings) error {
		s.ServerTime = true
		return nil
	}
}

// WithRecordFormat sets the format in which grants are stored. It must be one that all Redisson clients of the limiter
// can read. The default is Redisson317, which all releases since 3.17.0 read.
func WithRecordFormat(f RecordFormat) LimiterOption {
	return func(s *settings) error {
		if _, _, known := record.Format(f).Layout(); !known {
			return invalidOption("%v", f)
		}
		s.Format = record.Format(f)
		return nil
	}
}

// WithRecordPerRequest stores one record for each request instead of one for all requests of a call. Redisson before
// 3.35.0 counts records instead of permits when it repairs a limiter whose value key was evicted. If such releases use
// the limiter and each request takes one permit, this option keeps their count correct. It costs memory.
//
// It corrects only the count. Every release of Redisson treats a limiter without a value key as a new one, and repairs
// it at the earliest when a record expires: what Redisson grants until then comes on top of what was granted before.
func WithRecordPerRequest() LimiterOption {
	return func(s *settings) error {
		s.RecordPerRequest = true
		return nil
	}
}

// WithGranularity bounds the memory of a limiter with many grants. All permits granted to this client within d are
// stored as one record, dated at the end of that time. The limiter then has at most interval/d + 2 records for this
// client, and a few more after stalled or retried calls. Permits return up to d late, never early. Clients with and
// without this option, and Redisson, can share a limiter.
//
// The outcome of a call whose reply was lost can be determined less often than without the option: once a later call
// has joined the record, the error is ErrOutcomeUnknown. Records are four bytes longer.
//
// d must be a positive number of whole milliseconds, at most a tenth of the interval. Any other d, more than a tenth of
// the interval of the limiter's own rate (WithRate), and the combination with WithRecordPerRequest are
// ErrInvalidOption. If a rate with a shorter interval is in force, a tenth of that interval is used instead of d; below
// 2 ms no grants are joined. With WithServerTime the server's clock decides which grants are joined. With the format
// Redisson313 the option has no effect: its ids are too short for a client to recognize its own records.
func WithGranularity(d time.Duration) LimiterOption {
	return func(s *settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the granularity %v is not a positive number of whole milliseconds", d)
		}
		s.Granularity = d
		return nil
	}
}

// WithDenyCache lets this process answer requests from a cache of refusals. After Allow or TryAcquire was refused n
// permits, further requests of these two methods for n or more are refused without a call to Redis, until the time at
// which n permits are free if no others are taken. An attack then costs Redis almost nothing.
//
// Permits that return earlier, through a new rate or a release in another process, are noticed only at that time. A
// change by this client (SetRate, Release, Expire, a rate enforced by another handle, ...) counts at once, and so does
// a different rate in any reply to this client. A refusal that only protects waiting callers is not cached.
//
// The argument is the largest number of limiters whose refusals the client caches. It must be positive. When the cache
// is full, a new refusal replaces another one.
func WithDenyCache(limiters int) LimiterOption {
	return func(s *settings) error {
		if limiters < 1 {
			return invalidOption("a deny cache for %d limiters", limiters)
		}
		s.denyCache = limiters
		return nil
	}
}

// WithFallback lets this process decide by itself while Redis cannot be reached: there is no connection, no answer in
// time, or the server replies that it is loading, busy, out of client connections, a replica, or in a cluster that is
// down. All other errors are returned as without the option.
//
// Meanwhile the process grants a fraction of the last known rate. The fraction is from 0 to 1; any other value is
// ErrInvalidOption. 0 refuses everything. 1 lets each process grant the whole rate. With n processes, 1/n keeps their
// sum within the rate. If the fraction of the rate is less than one permit, the process grants one permit in a
// proportionally longer interval.
//
// All acquiring methods are decided like this. Result.Limit is then the process's own limit, and CallInfo.Fallback is
// true. Waiting callers keep their places in the queue. A request for more than the process's limit, but not more than
// the rate, is refused or waits until Redis is back; it does not delay the requests behind it. Release and all other
// methods still call Redis. Permits that the process granted have no record and cannot be given back.
//
// In any interval the process grants at most the fraction of the rate by itself, even across several outages. These
// grants come on top of what Redis granted before and after, and their permits may return up to a tenth of the interval
// late. The last known rate is the one in the latest reply from Redis to this process, else the limiter's own (WithRate
// or WithEnforcedRate). If neither is known, the error is returned as without the option. A client keeps this state for
// at most 65,536 limiters, until one interval after the last grant. For further limiters the error is returned, too.
//
// A node counts as away once it refuses calls, or once it has answered nothing for 500 ms (or WithCallTimeout, if
// shorter): neither a call in flight nor a probe, which is sent after half of that time. This does not depend on how
// long callers wait: calls of all methods count, even after their callers' contexts have ended. Callers whose calls are
// in flight then get the process's decision, and later callers get it at once. A background call probes Redis after 100
// ms, then less often, down to once a second.
//
// The state of a node applies to all its limiters, and that of a shard to all limiters on that shard of a Ring. An
// AutoPipeliner over several nodes hides them, so there it is kept for each limiter separately. A Ring removes a shard
// that does not answer, by default 2 s after it died or 15 s after it began to hang. Until the shard is back, its
// limiters start anew on another shard, where they need WithRate. With a RingOptions.HeartbeatFn that always returns
// true, they stay on their shard, and the process decides.
func WithFallback(fraction float64) LimiterOption {
	return func(s *settings) error {
		if !(fraction >= 0 && fraction <= 1) {
			return invalidOption("a fallback to %v of the rate, not 0 to 1", fraction)
		}
		s.fallsBack, s.fallback = true, fraction
		return nil
	}
}

// A Limiter shares one limit among all processes, Go or Java, that use its name on the same Redis.
//
// It grants at most [Rate.Permits] permits in any window of [Rate.Interval], wherever the window starts. A grant is
// stored as a record in Redis. It counts for one interval; then its permits are free again. Permits need not be
// returned. Grants that Redis loses can be made again, and what [WithFallback] grants comes on top.
//
// If the interval is shorter than 200 ms, records are dated to the microsecond. Otherwise, and always with the format
// [Redisson313], they are dated at the next whole millisecond, so their permits return up to 1 ms late. A record that
// Redisson wrote can be up to 1 ms older than its grant, so on a limiter that Redisson uses, too, the bound holds for
// windows of Rate.Interval - 1 ms.
//
// The methods differ in what they do when too few permits are free:
//   - [Limiter.TryAcquire] returns false at once.
//   - [Limiter.Allow] does the same and returns when to retry: all that an HTTP response needs.
//   - [Limiter.TryAcquireTimeout] waits up to a timeout, and returns false as soon as it is known that the permits will
//     not be free in time.
//   - [Limiter.Acquire] waits until the permits are granted or its context ends.
//   - [Limiter.AcquireUpTo] takes the permits that are free.
//
// Use Acquire in workers and Allow in front of a service. A request for more permits than the rate fails with
// ErrExceedsRate, one for fewer than one permit with ErrInvalidPermits, and one on a limiter without a rate with
// ErrNotInitialized; none of these takes permits. A call whose reply is lost is retried and takes its permits once. If
// no attempt succeeds within [WithCallTimeout], the error is ErrUnavailable or ErrOutcomeUnknown.
//
// Waiting callers of one Client on one limiter, through handles with the same options, are served in order, unless a
// call stalls. A call has stalled once it takes more than 20 ms and much longer than usual. It does not delay other
// requests, so those behind it may be served before its own callers. Only then do requests that do not wait overtake
// waiting callers; [Client.AllowAll] alone does not queue. Between processes there is no order, but a process leaves
// Redisson's threads a fair share.
//
// A Limiter is safe for concurrent use.
type Limiter struct {
	client   *Client
	name     string
	keyNames [keys.Count]string
	settings settings
	err      error // of the options or the name
	encoder  protocol.Encoder
	enforced denycache.Rate        // WithEnforcedRate; zero: none
	queue    atomic.Pointer[queue] // the one used last; it may have been dropped from the registry
}

// Name returns the name given to RateLimiter (Redisson: getName).
func (l *Limiter) Name() string { return l.name }

// Client returns the client that made the limiter.
func (l *Limiter) Client() *Client { return l.client }

func (l *Limiter) keys() []string { return l.keyNames[:] }

// key returns the name of the configuration key, which identifies the limiter on its server.
func (l *Limiter) key() string { return l.keyNames[keys.Config] }

// RateType is the scope of a limit.
type RateType int

// The types, by Redisson's numbers.
const (
	Overall   RateType = 0 // one limit for all clients together
	PerClient RateType = 1 // one limit for each client id: each Redisson instance and each Client, mostly each process
)

// String returns Redisson's name of the type: OVERALL or PER_CLIENT.
func (t RateType) String() string {
	switch t {
	case Overall:
		return "OVERALL"
	case PerClient:
		return "PER_CLIENT"
	}
	return fmt.Sprintf("unknown type %d", int(t))
}

// Rate is a limiter's configuration.
type Rate struct {
	Type     RateType      // Overall (zero value) or PerClient
	Permits  int64         // permits per Interval, 1 to 4294967295
	Interval time.Duration // whole milliseconds, at least 1 ms
	// KeepAlive is how long the limiter outlives its last use (Redisson 3.38 and later): 0 for ever, else whole
	// milliseconds, at least Interval.
	KeepAlive time.Duration
}

// PerSecond returns a rate of permits per second.
func PerSecond(permits int64) Rate { return Rate{Permits: permits, Interval: time.Second} }

// PerMinute returns a rate of permits per minute.
func PerMinute(permits int64) Rate { return Rate{Permits: permits, Interval: time.Minute} }

// PerHour returns a rate of permits per hour.
func PerHour(permits int64) Rate { return Rate{Permits: permits, Interval: time.Hour} }

// validate returns ErrInvalidRate for a rate that cannot be set.
func (r Rate) validate() error {
	switch {
	case r.Type != Overall && r.Type != PerClient:
		return invalidRate("%v", r.Type)
	case r.Permits < 1 || r.Permits > math.MaxUint32:
		return invalidRate("%d permits, not 1 to %d", r.Permits, uint32(math.MaxUint32))
	case r.Interval < time.Millisecond || r.Interval%time.Millisecond != 0:
		return invalidRate("interval %v is not a positive number of whole milliseconds", r.Interval)
	case r.KeepAlive < 0 || r.KeepAlive%time.Millisecond != 0:
		return invalidRate("keep-alive %v is not a number of whole milliseconds", r.KeepAlive)
	case r.KeepAlive != 0 && r.KeepAlive < r.Interval:
		return invalidRate("keep-alive %v is shorter than the interval %v", r.KeepAlive, r.Interval)
	}
	return nil
}

// protocol returns the rate as scripts take it.
func (r Rate) protocol() protocol.Rate {
	return protocol.Rate{
		Permits: r.Permits, Interval: r.Interval.Milliseconds(), Type: int64(r.Type), KeepAlive: r.KeepAlive.Milliseconds(),
	}
}

// rateOf is the inverse of protocol.
func rateOf(r protocol.Rate) Rate {
	return Rate{
		Permits: r.Permits, Interval: protocol.Millis(r.Interval), Type: RateType(r.Type), KeepAlive: protocol.Millis(r.KeepAlive),
	}
}

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

const (
	perClientText = " per client"
	keepAliveText = " keep-alive "
)

// String formats the rate in the form that ParseRate reads: "100/s", "5/250ms", "1000/h", "10/s per client keep-alive
// 1h".
func (r Rate) String() string {
	text := strconv.FormatInt(r.Permits, 10) + "/"
	if unit := span.Text(r.Interval); strings.HasPrefix(unit, "1") && units[unit[1:]] != 0 {
		text += unit[1:]
	} else {
		text += unit
	}
	if r.Type == PerClient {
		text += perClientText
	}
	if r.KeepAlive != 0 {
		text += keepAliveText + span.Text(r.KeepAlive)
	}
	return text
}

// ParseRate parses a rate: the number of permits, a slash, and a unit (ms, s, m, h, d) or a duration as
// time.ParseDuration reads it; then, optionally, "per client", and "keep-alive" with a unit or a duration. The error is
// ErrInvalidRate and names the invalid part.
func ParseRate(s string) (Rate, error) {
	rest, keepAlive, kept := strings.Cut(strings.TrimSpace(s), keepAliveText)
	rest, perClient := strings.CutSuffix(rest, perClientText)
	permits, interval, found := strings.Cut(rest, "/")
	if !found {
		return Rate{}, invalidRate("%q is not of the form permits/interval, such as 100/s", s)
	}
	var r Rate
	var err error
	if r.Permits, err = strconv.ParseInt(strings.TrimSpace(permits), 10, 64); err != nil {
		return Rate{}, invalidRate("%q: permits are not a whole number", s)
	}
	if r.Interval, err = parseInterval(interval); err != nil {
		return Rate{}, invalidRate("%q: the interval is neither a unit (ms, s, m, h, d) nor a duration", s)
	}
	if kept {
		if r.KeepAlive, err = parseInterval(keepAlive); err != nil {
			return Rate{}, invalidRate("%q: the keep-alive is not a duration", s)
		}
	}
	if perClient {
		r.Type = PerClient
	}
	if err := r.validate(); err != nil {
		return Rate{}, err
	}
	return r, nil
}

func parseInterval(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	if unit, found := units[text]; found {
		return unit, nil
	}
	return time.ParseDuration(text)
}

// Result is the outcome of one request, with all that an HTTP response needs.
type Result struct {
	Allowed bool
	Limit   int64 // permits of the rate that decided
	// Remaining is the number of permits free after this request; 0 if it is refused while callers of this process
	// wait.
	Remaining int64
	// RetryAfter is the time until the requested permits are free, if only waiting callers take permits; 0 when
	// Allowed.
	RetryAfter time.Duration
	// ResetAfter is the time until all permits are free, if none are taken. After a grant that is an interval (plus up
	// to a granularity).
	ResetAfter time.Duration
}

// An Observer sees each acquiring call after its reply was handled, and each decision that the process made without a
// call (WithFallback). Its methods must return quickly: callers wait for them.
type Observer interface{ Call(CallInfo) }

// CallInfo describes one acquiring call. An AllowAll in one step is reported as one call of each of its limiters. If a
// call fails, its callers count as denied, and so do the queued requests that fail with it.
type CallInfo struct {
	Limiter string // name
	// Callers is the number of callers of the call. A caller that is neither Granted nor Denied keeps waiting, or
	// another limiter of AllowAll refused it.
	Callers, Granted, Denied int
	Permits                  int64         // granted in total
	Unclaimed                int64         // of Permits, those that no caller received: their callers had cancelled
	Waiting                  int           // callers still blocked in this process
	Latency                  time.Duration // from sending the call to its reply, retries included
	Attempts                 int           // number of attempts sent to Redis; 0 if no call was made
	Repaired                 string        // what was repaired and why; "" if nothing
	RateMismatch             bool          // the rate of WithRate or WithEnforcedRate differs from the rate in force
	DenyCacheHits            int           // refusals by WithDenyCache, without a call, since the limiter's previous call
	Fallback                 bool          // decided by the process (WithFallback), after a failed call or without one
	Err                      error         // why the call failed; nil if it did not
}
