// Package rratelimiter is Redisson's RRateLimiter for Go: a distributed rate limiter that keeps its state in Redis, in the
// same keys and bytes as Redisson, so that Go and Java services can share one limit.
//
// A limiter has a name and a [Rate]: so many permits in any interval of so much time. Whoever uses the name on the same
// Redis shares the limit.
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

	"github.com/rratelimiter/rratelimiter/internal/span"
)

// Redis is what the limiters need of a go-redis client: *redis.Client, *redis.ClusterClient, *redis.Ring, failover
// clients and *redis.AutoPipeliner all have it.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// A Client holds what the limiters of one process share: the connection, the client id, the clock and the defaults. It is
// safe for concurrent use. It has nothing to close: closing the redis client ends all waiting with its error.
type Client struct {
	rdb         Redis
	id          string
	identity    *identity
	mapName     func(string) string
	clock       func() time.Time
	callTimeout time.Duration
	observer    Observer
	defaults    settings
	err         error // of the options

	requestObserver RequestObserver // the observer, if it is one

	lines    lines
	waiting  atomic.Int64 // callers in all lines
	requests sync.Pool    // of *request
	faraway  time.Duration
	denials  denials
	deputies deputies
	lane     *lane // to the server, or to all of them where lanes has none

	lanesMu sync.Mutex
	lanes   map[*redis.Client]*lane // to the nodes of a cluster, or the shards of a Ring

	watching atomic.Bool // the redis client is looked at, since callers wait
	alone    bool        // no Redisson can be on this server (limittest)
}

// NewClient makes a client over a go-redis client, which stays the caller's to close: that ends all waiting within a
// second; where an AutoPipeliner or a Conn is closed, which don't show it, as soon as the first in line looks again, after 15
// seconds at most. Calls for many limiters travel together, in pipelines. On a cluster they go to each node by its own client, so
// that a node that hangs holds up its own limiters alone: hooks that are to see them are added by
// redis.ClusterClient.OnNewNode, as tracing and metrics of go-redis do.
func NewClient(rdb Redis, opts ...Option) *Client {
	c := &Client{
		rdb:         rdb,
		id:          uuid.NewString(),
		mapName:     func(name string) string { return name },
		clock:       time.Now,
		callTimeout: time.Second,
		faraway:     faraway,
		lines:       lines{all: map[lineKey]*line{}},
		deputies:    deputies{most: mostDeputies},
		lanes:       map[*redis.Client]*lane{},
	}
	for _, opt := range opts {
		if err := apply(opt, c); err != nil && c.err == nil {
			c.err = err
		}
	}
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		c.err = invalidOption("the redis client is nil")
	}
	c.identity = newIdentity(c.id)
	c.lane = newLane(rdb, c.callTimeout)
	c.observed()
	return c
}

// ID is the client's id, the CLIENT part of the keys of limiters of type PerClient (Redisson: RedissonClient.getId).
func (c *Client) ID() string { return c.id }

// RateLimiter gives the limiter with a name (Redisson: RedissonClient.getRateLimiter). It is cheap: no call is made and
// no state kept. Limiters of one name and with the same options are the same.
func (c *Client) RateLimiter(name string, opts ...LimiterOption) *Limiter {
	l := &Limiter{client: c, name: name, settings: c.defaults, err: c.err}
	for _, opt := range opts {
		if err := apply(opt, &l.settings); err != nil && l.err == nil {
			l.err = asOption(err)
		}
	}
	l.options = l.settings.options()
	raw := c.mapName(name)
	if err := checkLength(len(raw), len(c.id)); err == nil {
		l.keyNames = keyNames(raw, c.id)
	} else if l.err == nil {
		l.err = err
	}
	if l.err == nil {
		l.err = l.settings.validate()
	}
	if l.err == nil && c.clustered() && !sameSlot(l.keyNames[:]) {
		l.err = fmt.Errorf("%w: %s", ErrCrossSlotName, quoted(raw))
	}
	return l
}

// An Option is a property of a client. A wrong one comes back, as ErrInvalidOption, from every method of its limiters.
type Option func(*Client) error

// WithClientID sets the client's id, which must not be empty. The default is a random UUID, as in Redisson. A stable id
// lets a process find its PerClient permits again after a restart.
func WithClientID(id string) Option {
	return func(c *Client) error {
		if id == "" {
			return invalidOption("the client id is empty")
		}
		c.id = id
		return nil
	}
}

// WithNameMapper sets how a limiter's name becomes the name of its key (Redisson: NameMapper), for example to add the
// prefix that the Java side adds.
func WithNameMapper(mapName func(name string) string) Option {
	return func(c *Client) error {
		if mapName == nil {
			return invalidOption("the name mapper is nil")
		}
		c.mapName = mapName
		return nil
	}
}

// WithClock sets the clock that dates the grants, for tests. The default is time.Now.
func WithClock(now func() time.Time) Option {
	return func(c *Client) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		c.clock = now
		return nil
	}
}

// WithCallTimeout bounds one call to Redis, repetition included. The default is a second. A call that failed is repeated, at
// first after some ms, then up to a quarter of a second, while there is time: so who should outlive a failover without an
// error needs more time than that takes, and a redis client whose ReadTimeout is as long, since an attempt that is given up
// before it is served may take its permits a second time. Who waits behind a call that is late, with no later one answered,
// is told with it; nothing was sent for those, so they are in no doubt.
func WithCallTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return invalidOption("the call timeout %v is not positive", d)
		}
		c.callTimeout = d
		return nil
	}
}

// WithObserver sets who is told of each acquiring call, and of each request if it is a [RequestObserver]. Where it has a
// method Watch(*Client), NewClient calls that with the client. [Observers] makes one of several.
func WithObserver(o Observer) Option {
	return func(c *Client) error {
		c.observer = o
		return nil
	}
}

// WithLimiterDefaults sets options for all limiters of the client; what RateLimiter is given comes on top.
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

// apply lets an option change what it is an option of.
func apply[O ~func(T) error, T any](opt O, to T) error {
	if opt == nil {
		return invalidOption("an option is nil")
	}
	return opt(to)
}

// settings are the options of a limiter. They can be compared: limiters that agree in name and settings are the same.
type settings struct {
	rate             Rate // zero: none
	enforced         bool
	serverTime       bool
	format           RecordFormat
	recordPerRequest bool
	granularity      time.Duration // 0: none
	denyCache        int           // limiters; 0: none
	fallsBack        bool
	fallback         float64 // of the rate
}

// validate says which options don't go together, in whatever order they were given.
func (s settings) validate() error {
	switch {
	case s.granularity == 0:
		return nil
	case s.recordPerRequest:
		return invalidOption("WithGranularity joins the records that WithRecordPerRequest asks for")
	case s.rate != Rate{} && s.granularity > s.rate.Interval/10:
		return invalidOption("the granularity %v is more than a tenth of the interval %v", s.granularity, s.rate.Interval)
	}
	return nil
}

// A LimiterOption is a property of one limiter in this process; nothing of it is stored in Redis.
type LimiterOption func(*settings) error

// WithRate lets the limiter set its own rate, in the call that first needs it, when it finds none. A rate that is there
// already wins, whatever it is; the observer is told that it differs. Where only a part of the configuration is there, the
// rest is set (Redisson: trySetRate before each use). Every acquiring method and AvailablePermits set the rate; those that
// only look, such as Config, State and TTL, don't. Of WithRate and WithEnforcedRate, the last one given counts.
func WithRate(r Rate) LimiterOption {
	return func(s *settings) error {
		s.rate, s.enforced = r, false
		return r.validate()
	}
}

// WithEnforcedRate lets the limiter set its own rate, keeping what is granted, whenever it finds none or another. Two
// processes that enforce different rates on one limiter fight for ever: a rate should have one owner.
func WithEnforcedRate(r Rate) LimiterOption {
	return func(s *settings) error {
		s.rate, s.enforced = r, true
		return r.validate()
	}
}

// WithServerTime dates the grants by the clock of the Redis server, not of this host. It is worth the more the worse the
// hosts' clocks agree; Redisson's clients always use their own.
func WithServerTime() LimiterOption {
	return func(s *settings) error {
		s.serverTime = true
		return nil
	}
}

// WithRecordFormat sets how grants are written: so that the Redissons of the fleet can read them. The default is
// Redisson317, which all releases from 3.17.0 on read.
func WithRecordFormat(f RecordFormat) LimiterOption {
	return func(s *settings) error {
		if _, _, known := f.layout(); !known {
			return invalidOption("%v", f)
		}
		s.format = f
		return nil
	}
}

// WithRecordPerRequest writes a record for each request, where one for all requests of a call is the default. Redisson
// before 3.35.0 counts records where it should count permits, when it repairs a limiter whose value key was evicted: with
// those in the fleet, and requests of one permit, this keeps their count right. It costs memory.
//
// It can't mend more than the count. Redisson of any release takes a limiter without a value key for a fresh one, and
// repairs it when a record expires at the earliest: what it grants until then comes on top of what was granted before.
func WithRecordPerRequest() LimiterOption {
	return func(s *settings) error {
		s.recordPerRequest = true
		return nil
	}
}

// WithGranularity bounds the memory of a limiter with many grants: what this client is granted within d becomes one
// record, dated at the end of that time, so that it holds at most interval/d + 2 records, and a few more where calls stalled
// or had to be repeated. Its permits return up to d late, never early; clients with and without it, and Redisson, share a
// limiter as always.
//
// An answer that was lost can be found out less often than without it: not once a later call joined the record
// (ErrOutcomeUnknown). Its records are four bytes longer.
//
// d is a positive number of whole milliseconds, at most a tenth of the interval. More than that of the limiter's own rate
// (WithRate), or WithRecordPerRequest beside it, is ErrInvalidOption. Where a rate with a shorter interval is in force, a
// tenth of that counts instead, and below 2 ms nothing is joined. With WithServerTime it is the server's clock that cuts
// time. With the format Redisson313 the option does nothing: its ids are too short for a client to know its own records.
func WithGranularity(d time.Duration) LimiterOption {
	return func(s *settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the granularity %v is not a positive number of whole milliseconds", d)
		}
		s.granularity = d
		return nil
	}
}

// WithDenyCache lets this process answer by itself what is known to be in vain: once Allow or TryAcquire was refused n
// permits, the next ones for n or more are refused without a call to Redis, until those n are free if nobody takes them. So
// an attack costs Redis next to nothing. Permits that come back earlier, by a new rate or a release elsewhere, are seen only
// then; what this client does (SetRate, Release, Delete, ...) counts at once. The client remembers refusals of at most so
// many limiters, which must be positive, and forgets others for them.
func WithDenyCache(limiters int) LimiterOption {
	return func(s *settings) error {
		if limiters < 1 {
			return invalidOption("a deny cache for %d limiters", limiters)
		}
		s.denyCache = limiters
		return nil
	}
}

// WithFallback lets this process decide by itself while Redis can't be reached: no connection, no answer in time, or a
// server that says it is loading, busy, full of clients, a replica, or in a cluster that is down. All other errors come as
// always. A fraction of the last known rate, from 0 to 1, is what the process grants then: 0 refuses everything, 1 lets each
// process grant the whole rate; with n processes, 1/n keeps to it in sum. Less than one permit is one permit in a longer
// time. Any other fraction is ErrInvalidOption.
//
// All acquiring methods are answered like that, with the process's part as Result.Limit; callers who wait do so in the
// same line. Who asks for more than the part, but not than the rate, is refused, or waits, until Redis is back; such a
// caller holds up nobody behind him.
// FlightInfo.Fallback tells the observer. Release and all else asks Redis as ever: what the process granted left no
// record, and can't be given back.
//
// No interval holds more of the process's own grants than the fraction of the rate, outages in close succession included;
// they come on top of what Redis granted before and after, and permits may return up to a tenth of the interval late. The
// last known rate is what Redis told this process last, else that of WithRate; without either the error comes as without
// the option. What must be known for that is kept for at most 65,536 limiters a client, until an interval after the last
// grant; on more at a time, the error comes, too.
//
// Redis is asked again after 100 ms, then less often, down to once a second, by a call that nobody waits for. So a server
// that hangs costs a call's time those who come before that is known, and then nobody. What is known goes for all limiters
// on a node, or on a shard of a Ring; an AutoPipeliner over several nodes doesn't show these, so each limiter finds out for
// itself. A Ring takes a shard out that doesn't answer, by default 2 s after it died or 15 s after it began to hang: until it
// is back, its limiters begin anew on another shard, where they need WithRate. With a RingOptions.HeartbeatFn that always
// returns true they stay where they are, and the process decides.
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
// It grants at most [Rate.Permits] permits in any window of [Rate.Interval], wherever the window starts. A grant is a
// record in Redis: it counts for one interval, then its permits are free again. No permit has to be returned. What Redis
// forgets can be granted again, and what [WithFallback] grants comes on top.
//
// Each way to ask does something else when too few permits are free:
//   - [Limiter.TryAcquire] answers false at once.
//   - [Limiter.Allow] does the same and says when to come back: what an HTTP answer needs.
//   - [Limiter.TryAcquireTimeout] waits up to a time, and answers false as soon as it is known that this is in vain.
//   - [Limiter.Acquire] waits until the permits are granted or its context ends.
//   - [Limiter.AcquireUpTo] takes what is free.
//
// Use Acquire in workers and Allow in front of a service. A request for more permits than the rate fails with
// ErrExceedsRate, one for fewer than one with ErrInvalidPermits, one on a limiter without a rate with ErrNotInitialized;
// none of these takes anything. A call whose answer is lost is made again, and takes its permits once; where that was in
// vain for as long as a call may take ([WithCallTimeout]), the error is the network's or ErrOutcomeUnknown.
//
// Callers of one Client who wait for one limiter, through handles with the same options, are served strictly in order,
// and callers who don't wait never pass them; [Client.AllowAll] alone does not queue. Between processes there is no
// order, only a rule that lets Redisson's threads have their part.
//
// A Limiter is safe for concurrent use.
type Limiter struct {
	client   *Client
	name     string
	keyNames [keyCount]string
	settings settings
	err      error                // of the options, or of the name
	options  []any                // of the settings, as scripts take them
	line     atomic.Pointer[line] // the one used last; it may have been dropped
	served   atomic.Int64         // a time in ms, by the server's clock, before which nothing is asked any more; 0: not known
}

// Name is the limiter's name, as given to RateLimiter (Redisson: getName).
func (l *Limiter) Name() string { return l.name }

// Client is the client that the limiter is of.
func (l *Limiter) Client() *Client { return l.client }

func (l *Limiter) keys() []string { return l.keyNames[:] }

// now is the time as scripts take it: ms since the epoch, or "" where the server's clock decides.
func (l *Limiter) now() any {
	if l.settings.serverTime {
		return ""
	}
	return l.client.clock().UnixMilli()
}

// RateType tells whom a limit counts.
type RateType int

// The types, by Redisson's numbers.
const (
	Overall   RateType = 0 // all clients together
	PerClient RateType = 1 // each Redisson instance and each Client by itself, by its id: mostly each process
)

// String gives Redisson's name of the type: OVERALL or PER_CLIENT.
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
	Type      RateType      // Overall (zero value) or PerClient
	Permits   int64         // permits per Interval, 1 to 4294967295
	Interval  time.Duration // whole milliseconds, at least 1 ms
	KeepAlive time.Duration // how long the limiter outlives its last use; 0: for ever; else at least Interval (Redisson 3.38 and later)
}

// PerSecond is a rate of so many permits a second.
func PerSecond(permits int64) Rate { return Rate{Permits: permits, Interval: time.Second} }

// PerMinute is a rate of so many permits a minute.
func PerMinute(permits int64) Rate { return Rate{Permits: permits, Interval: time.Minute} }

// PerHour is a rate of so many permits an hour.
func PerHour(permits int64) Rate { return Rate{Permits: permits, Interval: time.Hour} }

// validate says what is wrong with a rate that is to be set.
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

// figures are the values of the rate as scripts take them.
func (r Rate) figures() [4]int64 {
	return [...]int64{r.Permits, r.Interval.Milliseconds(), int64(r.Type), r.KeepAlive.Milliseconds()}
}

// args are the same, as arguments.
func (r Rate) args() (args []any) {
	for _, figure := range r.figures() {
		args = append(args, figure)
	}
	return args
}

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

const (
	perClientText = " per client"
	keepAliveText = " keep-alive "
)

// String writes the rate as ParseRate reads it: "100/s", "5/250ms", "1000/h", "10/s per client keep-alive 1h".
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

// ParseRate reads a rate: permits, a slash, and a unit (ms, s, m, h, d) or a duration as time.ParseDuration takes it;
// then, if wanted, "per client" and "keep-alive" with a duration. The error is ErrInvalidRate and says what is wrong.
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

// millis is a number of ms as a duration, as long as durations can be.
func millis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// Result is what one try brought, with all that an HTTP answer needs.
type Result struct {
	Allowed    bool
	Limit      int64         // the limiter's rate
	Remaining  int64         // permits free after this caller
	RetryAfter time.Duration // when the permits asked for will be free, if nobody else takes them; 0 when Allowed
	ResetAfter time.Duration // when all permits will be free, if nobody takes any; after a grant, an interval (and up to a granularity)
}

// An Observer sees each acquiring call after it landed, and what the process decided in place of one (WithFallback). Its
// methods must return fast: callers wait for them.
type Observer interface{ Flight(FlightInfo) }

// FlightInfo describes one acquiring call; AllowAll's in one step is told as one of each of its limiters. Where it failed, its
// callers count as denied; so do those who waited behind it and were told its error.
type FlightInfo struct {
	Limiter                  string        // name
	Callers, Granted, Denied int           // of the call; neither: who keeps waiting, or is refused by another limiter
	Permits                  int64         // granted in sum
	Abandoned                int64         // of them, those that nobody got: their callers had gone
	Waiting                  int           // callers still blocked in this process
	Latency                  time.Duration // from asking Redis to its answer
	Attempts                 int           // how often Redis was asked; 0 where no call was made
	Healed                   string        // what was repaired and why; "" mostly
	RateMismatch             bool          // WithRate differs from the rate in force
	Remembered               int           // refusals by WithDenyCache, without a call, since the limiter's last call
	Fallback                 bool          // the process decided by itself (WithFallback): since the call failed, or without one
	Err                      error         // why the call failed; nil mostly
}
