// Package rratelimiter is Redisson's RRateLimiter for Go: a distributed rate limiter that keeps its
// state in Redis, in the same keys and bytes as Redisson, so that Go and Java services can share
// one limit.
//
// A limiter has a name and a [Rate]: a number of permits in any interval of a given length. All
// processes that use the same name on the same Redis share the limit.
//
//	client := rratelimiter.NewClient(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	limiter := client.RateLimiter("orders", rratelimiter.WithRate(rratelimiter.PerSecond(100)))
//	if err := limiter.Acquire(ctx, 1); err != nil {
//		return err
//	}
//
// [Limiter] describes how a limiter works. The page docs/api.md of the module has tables of
// methods, options and errors.
//
// # What most programs call
//
//   - [NewClient] and [Client.RateLimiter] make a limiter. [WithRate] sets its rate if it has none.
//   - [Limiter.Acquire] waits for permits: for workers. [Limiter.TryAcquireTimeout] waits for a
//     limited time.
//   - [Limiter.Allow] asks once and returns when to retry: for services that refuse requests.
//     [Limiter.TryAcquire] returns only whether the permits were granted.
//   - [Limiter.Peek] returns what Allow would return, and takes nothing.
//   - [Limiter.Take] is Allow with a [Grant], which can give its permits back.
//   - [Limiter.Charge] counts permits that were used, free or not: for work whose cost is known
//     only afterwards. [Grant.Settle] makes what was taken what was used.
//   - [Client.AllowAll] asks several limiters: all of them grant, or none does. [Client.TakeAll]
//     returns a Grant of each. [Client.AcquireAll] waits until all of them grant.
//   - [Limiter.SetRate] changes the rate. [Limiter.State] returns the rate and the permits in use.
//   - [WithFailFast] makes Acquire and AcquireAll fail at once if their caller would wait in vain.
//     [WithInstalments] lets Acquire take more permits than the rate, over several intervals.
//   - [WithFallback] lets the process decide while Redis cannot be reached. [WithDenyCache] refuses
//     repeated requests without calls to Redis. [WithLease] grants permits from memory.
//
// # Other packages of this repository
//
//   - [github.com/rratelimiter/rratelimiter/httplimit] guards HTTP handlers. Separate modules:
//     ginlimit, echolimit and fiberlimit guard routers; grpclimit guards gRPC servers and paces
//     gRPC clients; envoylimit is a rate limit service for Envoy.
//   - [github.com/rratelimiter/rratelimiter/adapt] gives a limiter the methods by which other
//     libraries call theirs.
//   - [github.com/rratelimiter/rratelimiter/limittest] has an embedded server and a clock for
//     tests.
//   - [github.com/rratelimiter/rratelimiter/classic] has other algorithms, such as GCRA and the
//     token bucket.
//   - [github.com/rratelimiter/rratelimiter/snapshot] saves and restores the state of a limiter.
//   - httplimit/rules, a separate module, takes the limits of HTTP handlers from a file, and
//     follows its changes.
//   - promlimit and otellimit, separate modules, export metrics for Prometheus, and metrics and
//     traces for OpenTelemetry.
//   - cmd/rrl is a command line for limiters on a live Redis.
package rratelimiter

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/limiter"
)

// Redis is the part of a go-redis client that the limiters use. *redis.Client,
// *redis.ClusterClient, *redis.Ring, failover clients and *redis.AutoPipeliner implement it.
type Redis interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// A Client holds what the limiters of one process share: the connection, the client id, the clock
// and the defaults. It is safe for concurrent use. It has no Close method. Closing the redis client
// unblocks all waiting callers with redis.ErrClosed.
type Client struct {
	core            *dispatch.Client
	redis           Redis
	mapName         func(name string) string // nil: names are keys
	id              string
	observer        Observer
	requestObserver RequestObserver // observer, if it implements RequestObserver; else nil
	defaults        limiter.Settings
	err             error // of the first invalid option
}

// NewClient returns a client that uses rdb. The caller owns and closes rdb. Closing rdb unblocks
// all waiting callers with redis.ErrClosed within 1 s (15 s for an AutoPipeliner or a Conn, whose
// state cannot be observed).
//
// Calls for many limiters share pipelines. On a cluster, each node is called through its own
// go-redis client, so a node that hangs delays only the limiters on this node. Hooks of the
// redis.ClusterClient do not see most of these calls: add hooks with redis.ClusterClient.OnNewNode,
// as the tracing and metrics of go-redis do. Add the hooks of a redis.Client before NewClient,
// which adds one of its own: later ones are not called for the calls of a goroutine that is the
// only one that asks (see [Limiter]).
func NewClient(rdb Redis, opts ...Option) *Client {
	c := &Client{redis: rdb}
	config := limiter.Config{Redis: rdb, ID: uuid.NewString(), CallTimeout: time.Second}
	config.Defaults.MaxDebt = defaultDebt
	for _, opt := range opts {
		if err := apply(opt.set, &config); err != nil && c.err == nil {
			c.err = err
		}
	}
	if v := reflect.ValueOf(rdb); rdb == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		c.err = invalidOption("the redis client is nil")
	}
	if c.observer, _ = config.Observer.(Observer); c.observer != nil {
		config.Observe = func(info limiter.CallInfo) { c.observer.Call(callInfo(info)) }
	}
	c.id, c.defaults, c.mapName = config.ID, config.Defaults, config.MapName
	c.core = dispatch.New(config)
	c.observed()
	return c
}

// ID returns the client's id: the CLIENT part of the keys of PerClient limiters (Redisson:
// RedissonClient.getId).
func (c *Client) ID() string { return c.id }

// Redis returns the Redis client that was given to NewClient: package classic can use it, too.
func (c *Client) Redis() Redis { return c.redis }

// KeyOf returns the name of the configuration key of a limiter: its name, or what the function of
// WithNameMapper makes of it.
func (c *Client) KeyOf(name string) string {
	if c.mapName == nil {
		return name
	}
	return c.mapName(name)
}

// RateLimiter returns the limiter with the given name (Redisson: RedissonClient.getRateLimiter). It
// is cheap: it makes no call and stores nothing. Limiters of one Client with the same name and the
// same options are interchangeable.
func (c *Client) RateLimiter(name string, opts ...LimiterOption) *Limiter {
	l := &Limiter{client: c, name: name, settings: c.defaults, err: c.err}
	for _, opt := range opts {
		if err := apply(opt.set, &l.settings); err != nil && l.err == nil {
			l.err = asOption(err)
		}
	}
	if l.err == nil {
		l.err = validate(l.settings)
	}
	if err := l.core.Init(c.core, name, l.settings, l.err); l.err == nil && err != nil {
		if l.err = err; !errors.Is(err, ErrCrossSlotName) {
			l.err = asOption(err)
		}
	}
	return l
}

// A Limiter shares one limit among all processes, Go or Java, that use its name on the same Redis.
//
// It grants at most [Rate.Permits] permits in any window of [Rate.Interval], wherever the window
// starts. Grants are stored in records in Redis. A grant counts for one interval; then its permits
// are free again. Callers need not return permits. Permits that were charged count, too
// ([Limiter.Charge]), so less is granted until a debt is paid back. More permits can be granted in
// a window if Redis loses grants, if [WithFallback] grants permits locally, if clocks are wrong, or
// if grants that still count are removed: by a method such as Release, Reset, Delete, or SetRate
// without KeepState, or at the end of a TTL of Expire.
//
// If the interval is shorter than 200 ms, records have the time of the grant in microseconds.
// Otherwise, and always with the format [Redisson313], their time is rounded up to a whole
// millisecond, so permits return up to 1 ms late. Redisson can date a record up to 1 ms before its
// grant. If Redisson also uses the limiter, the limit therefore holds only for windows of
// Rate.Interval - 1 ms.
//
// The methods differ in what they do when too few permits are free:
//   - [Limiter.TryAcquire] returns false at once.
//   - [Limiter.Allow] also returns at once, and its Result has the time to wait before a retry.
//   - [Limiter.TryAcquireTimeout] waits up to a timeout, and returns false as soon as the records
//     show that the permits will not be free in time.
//   - [Limiter.Acquire] waits until the permits are granted or its context ends. With
//     [WithFailFast] it does not wait in vain.
//   - [Limiter.AcquireUpTo] takes the permits that are free.
//   - [Limiter.Charge] counts permits that were used already. It is never refused.
//
// Use Acquire in workers and Allow in front of a service. A request for more permits than the rate
// fails with ErrExceedsRate (except AcquireUpTo and TakeUpTo, which take what is free), a request
// for fewer than one permit with ErrInvalidPermits, and a request on a limiter without a rate with
// ErrNotInitialized. None of these takes permits. If the reply to a call is lost, the call is
// retried if the retry can find what the first attempt was granted. If the ReadTimeout of the redis
// client is too short, permits can still be taken twice (see [WithCallTimeout]). If no attempt
// succeeds within the call timeout, the error is ErrUnavailable or ErrOutcomeUnknown.
//
// If a goroutine is the only one that asks, and a single Redis server answers it within 2.5 ms as a
// rule, it makes its call itself, for at most 20 ms: it may notice so late that its context was
// cancelled. A hook of the redis client that panics then does so in that goroutine, and one that
// takes long blocks it; one that was added after [NewClient] is not called. Other goroutines make
// all calls if the redis client has no deadlines, OnConnect or a provider of credentials, and with
// a call timeout below 20 ms.
//
// Waiting callers are served in order if they use one Client and Limiters with the same name and
// the same options. A request that does not wait is not served before them. Callers of
// [Client.AcquireAll] are part of this order at each of their limiters, if all of these can be
// asked in one step. There are four exceptions:
//   - A call that takes more than 20 ms and much longer than usual has stalled: it does not delay
//     other requests, so later requests may be served before its callers.
//   - Requests of [Client.AllowAll] and [Client.TakeAll] may be served before waiting callers at
//     any time.
//   - While a caller of AcquireAll waits for one limiter, later callers may take permits of its
//     other limiters that will be back when it can use them.
//   - While the process decides: see [WithFallback].
//
// There is no queue for all processes, but they take turns, and leave Redisson's threads a fair
// share.
//
// A Limiter is safe for concurrent use.
type Limiter struct {
	client   *Client
	name     string
	settings limiter.Settings
	err      error // of the options or the name
	core     dispatch.Limiter
}

// Name returns the name given to RateLimiter (Redisson: getName).
func (l *Limiter) Name() string { return l.name }

// Client returns the client that made the limiter.
func (l *Limiter) Client() *Client { return l.client }

// DenyCache returns the size of the limiter's deny cache (see WithDenyCache); 0 if it has none.
func (l *Limiter) DenyCache() int { return l.settings.DenyCache }

// MaxDebt returns the bound of a debt in intervals (see WithMaxDebt).
func (l *Limiter) MaxDebt() int { return int(l.settings.MaxDebt) }

// Result is the outcome of one request, with all that an HTTP response needs.
type Result struct {
	Allowed bool
	// permits of the rate under which the request was decided; with WithFallback perhaps the
	// process's own limit
	Limit int64
	// Remaining is the number of permits free after this request. A call reads at most 2,000
	// expired records, so the permits of further ones are not included. It is 0 if Redis refuses
	// the request while callers of this process wait. For an AllowAll in one step, only callers of
	// AcquireAll count that wait for the same limiters, listed in the same order.
	Remaining int64
	// RetryAfter is 0 if Allowed; [Limiter.Charge] has its own rule. Otherwise it is the time until
	// the requested permits are free, if no client takes permits until then. If Redis refuses the
	// request while callers of this process wait, it is at least the time until the first of them
	// can be served. For an AllowAll in one step, the same callers count as for Remaining.
	RetryAfter time.Duration
	// NextAfter is the time until the next of the permits in use returns, if no client gives back
	// permits until then. It is 0 if no permit is in use, or if the time is not known. NextAfter
	// may be too long in two cases. After a grant from a lease, or one that leaves more than half
	// of the limiter's permits free, it may be the time until the permits of this grant return.
	// After a refusal by the deny cache, or while callers of this process wait, it may be
	// RetryAfter.
	NextAfter time.Duration
	// ResetAfter, after a refusal, is the time until all permits are free, if no client takes or
	// gives back permits until then. After a grant it is the time until the permits of this grant
	// are free: one interval; with WithGranularity(d) up to d more, with WithLease(d) up to 1.25 d
	// more.
	ResetAfter time.Duration
}
