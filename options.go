package rratelimiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// An Option configures a client. If an option is invalid, every method of the client's limiters
// returns ErrInvalidOption.
type Option struct {
	set func(*dispatch.Config) error
}

// WithClientID sets the client's id, which must not be empty. The default is a random UUID, as in
// Redisson. With a stable id, a process finds its PerClient permits again after a restart.
func WithClientID(id string) Option {
	return Option{func(c *dispatch.Config) error {
		if id == "" {
			return invalidOption("the client id is empty")
		}
		c.ID = id
		return nil
	}}
}

// WithNameMapper sets the function that maps a limiter's name to the name of its configuration key
// (Redisson: NameMapper). For example, it adds the prefix that the Java services use.
func WithNameMapper(mapName func(name string) string) Option {
	return Option{func(c *dispatch.Config) error {
		if mapName == nil {
			return invalidOption("the name mapper is nil")
		}
		c.MapName = mapName
		return nil
	}}
}

// WithClock sets the clock that gives grants their time, for tests. The default is time.Now. If the
// clock always returns whole milliseconds, permits return exactly one interval after their grant,
// for every interval (see [Limiter]).
func WithClock(now func() time.Time) Option {
	return Option{func(c *dispatch.Config) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		c.Clock = now
		return nil
	}}
}

// WithCallTimeout bounds the duration of one call to Redis, including retries. The default is 1 s.
//
// A call that fails because of the network, or because the server cannot serve the call yet
// (LOADING, READONLY, ...), is retried until d is over: first after some milliseconds, later after
// up to 250 ms. A call that Redis may have executed is retried only if the retry finds what the
// first attempt did, or if a second execution does no harm. Otherwise (for example Release, Delete,
// Rename and TrySetRate) the error is ErrOutcomeUnknown. With WithFallback, a call that Redis did
// not execute is not retried: the process decides at once. To survive a failover without an error,
// set d to more than the failover takes, and the ReadTimeout of the redis client to at least d.
// With a shorter ReadTimeout, a retry can be answered while the first attempt is still on its way,
// and Redis then executes both. Some calls then take their permits twice: see docs/faults.md, "What
// can't be survived".
//
// If a call times out, and the node has answered no call that began after it, the requests queued
// behind this call fail with the same timeout. Nothing was sent for these requests, so their error
// is never ErrOutcomeUnknown.
func WithCallTimeout(d time.Duration) Option {
	return Option{func(c *dispatch.Config) error {
		if d <= 0 {
			return invalidOption("the call timeout %v is not positive", d)
		}
		c.CallTimeout = d
		return nil
	}}
}

// WithObserver sets the observer of all acquiring calls. A [RequestObserver] also sees all
// requests, and a [GuardObserver] the decisions of guards. If the observer has a method
// Watch(*Client), NewClient calls this method with the client. [Observers] combines several
// observers.
func WithObserver(o Observer) Option {
	return Option{func(c *dispatch.Config) error {
		c.Observer = o
		return nil
	}}
}

// WithLimiterDefaults sets options for all limiters of the client. Options given to RateLimiter are
// applied after them.
func WithLimiterDefaults(opts ...LimiterOption) Option {
	return Option{func(c *dispatch.Config) error {
		for _, opt := range opts {
			if err := apply(opt.set, &c.Defaults); err != nil {
				return asOption(err)
			}
		}
		return nil
	}}
}

// apply applies an option to its target. An option that no function made is ErrInvalidOption.
func apply[T any](set func(T) error, to T) error {
	if set == nil {
		return invalidOption("an option is empty")
	}
	return set(to)
}

// validate rejects options that exclude each other, in whatever order they were given.
func validate(s dispatch.Settings) error {
	option, d := "granularity", s.Granularity
	if s.Lease > 0 {
		option, d = "lease", s.Lease
	}
	switch {
	case d == 0:
		return nil
	case s.Lease > 0 && s.Granularity > 0:
		return invalidOption("WithLease and WithGranularity cannot be combined")
	case s.Lease > 0 && s.Format == record.Redisson313:
		return invalidOption("WithLease needs records that tell which client wrote them: those of Redisson313 do not")
	case s.RecordPerRequest:
		return invalidOption("WithRecordPerRequest cannot be combined with a %s", option)
	case s.Own != protocol.Rate{} && d > protocol.Millis(s.Own.Interval)/10:
		return invalidOption("the %s %v is more than a tenth of the interval %v", option, d, protocol.Millis(s.Own.Interval))
	}
	return nil
}

// A LimiterOption configures one limiter in this process. Options are not stored in Redis.
type LimiterOption struct {
	set func(*dispatch.Settings) error
}

// WithRate makes the limiter set the rate r if no rate is stored in Redis, in the same step in
// which it acquires permits. If a rate is stored, it stays in force. If it differs from r,
// CallInfo.RateMismatch is true. If only some fields of the configuration are stored, the missing
// fields are set, as by Redisson's trySetRate.
//
// Every acquiring method and AvailablePermits set the rate. Methods that only read, such as Config,
// State and TTL, do not. If both WithRate and WithEnforcedRate are given, the last one counts.
func WithRate(r Rate) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		s.Own, s.Enforced = r.protocol(), false
		return r.validate()
	}}
}

// WithEnforcedRate makes the limiter set the rate r whenever no rate or another rate is stored in
// Redis. Earlier grants still count, unless the Type changes. Two processes that enforce different
// rates on one limiter overwrite each other's rate with each call, so only one owner should enforce
// a rate. If a call has set r three times and another rate is stored again, the call is decided
// under that other rate, and CallInfo.RateMismatch is true.
func WithEnforcedRate(r Rate) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		s.Own, s.Enforced = r.protocol(), true
		return r.validate()
	}}
}

// WithServerTime gives grants the time of the Redis server instead of the time of this host. Use it
// if the clocks of the hosts differ. Redisson's clients always use their own clocks.
func WithServerTime() LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		s.ServerTime = true
		return nil
	}}
}

// WithRecordFormat sets the format in which grants are stored. All Redisson clients of the limiter
// must be able to read it. The default is Redisson317, which all releases since 3.17.0 read.
func WithRecordFormat(f RecordFormat) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		if _, _, known := record.Format(f).Layout(); !known {
			return invalidOption("%v", f)
		}
		s.Format = record.Format(f)
		return nil
	}}
}

// WithRecordPerRequest stores one record for each request instead of one record for all requests of
// a call. It costs memory. Redisson before 3.35.0 counts records instead of permits when it repairs
// a limiter whose stored number of free permits (the key {NAME}:value) was evicted. If such
// releases use the limiter and each request takes one permit, this option keeps their count
// correct.
//
// The option corrects only the count. Every release of Redisson treats a limiter without that key
// as new, and repairs it when a record expires, or later. Until then Redisson grants permits in
// addition to those in the records.
func WithRecordPerRequest() LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		s.RecordPerRequest = true
		return nil
	}}
}

// WithGranularity bounds the memory of a limiter with many grants. All permits granted to this
// client within a period of length d are stored as one record with the time of the end of the
// period. The limiter then has at most interval/d + 2 records for this client, and a few more after
// stalled or retried calls. Permits return up to d late, never early. If a call of the period is
// retried after a lost reply, all permits of the period count from the time of the retry. Clients
// with and without this option, and Redisson, can share a limiter.
//
// After a lost reply, ErrOutcomeUnknown is more frequent than without the option: a retry cannot
// find the permits of the earlier attempt if another call, mostly a later one, was stored in the
// same record. Records are four bytes longer.
//
// d must be a positive number of whole milliseconds. It must be at most a tenth of the interval of
// the rate that WithRate or WithEnforcedRate sets. The option cannot be combined with
// WithRecordPerRequest or WithLease. Otherwise the error is ErrInvalidOption.
//
// If the interval in force is shorter than 10 d, a tenth of that interval is used instead of d. If
// d, or the tenth of the interval that replaces it, is less than 2 ms, each call has its own
// record. With WithServerTime, the server's clock defines the periods. With the format Redisson313
// the option has no effect, because the ids are too short for a client to recognize its own
// records.
func WithGranularity(d time.Duration) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the granularity %v is not a positive number of whole milliseconds", d)
		}
		s.Granularity = d
		return nil
	}}
}

// WithLease lets this process take permits ahead of demand, and grant them without a call to Redis.
// Such permits are a lease. Leases end at times that are multiples of d since 1970. A lease lasts
// for at least d/4 and less than 1.25 d. (If the interval in force is shorter than 10 d, a tenth of
// it replaces d.) The client takes the next lease before the current one ends, at most d/4 earlier,
// so that callers do not wait for it. The limit stays exact: the permits of a lease are stored in a
// record with the time of the end of the lease. So leases do not weaken the limit, also if other
// leases, other clients and Redisson use the limiter.
//
// The option has a price. The permits of a call that takes a lease return late, by up to the length
// of the lease. So up to 1.25 d/(interval + 1.25 d) of the rate can be lost. The permits that one
// process holds are missing in other processes until the lease ends. If the process dies, they are
// missing until one interval after the end of the lease.
//
// So a process takes ahead about as many permits as it will need until the lease ends, by its
// recent use, and at most a quarter of the free permits. It takes nothing ahead
//   - while a caller waits, while a call is stalled, and for the time d after a refusal;
//   - if a tenth of the rate or little more is free: it never takes the last tenth;
//   - while this client changes the limiter, or if the limiter expires before the lease would end;
//   - if a check for this limiter has found that Redisson has used the server, with this limiter or
//     any other, at any time since the server started. A check counts only for the limiter for
//     which it was made, and is made only while callers wait for that limiter. The result holds
//     until the next check, or until the limiter has been idle for a while.
//
// In these cases calls go to Redis, and grant permits as without the option. Unused permits are
// given back when the lease ends, unless they are too few to justify a call.
//
// A change by this client (SetRate, Release, Delete, ...) ends its leases of the limiter at once. A
// change by another client is noticed when the lease ends. While Redis cannot be reached, a lease
// grants its permits until it ends. A client holds leases of at most 65,536 limiters at a time.
//
// d must be a positive number of whole milliseconds. It must be at most a tenth of the interval of
// the rate that WithRate or WithEnforcedRate sets. The option cannot be combined with
// WithGranularity, WithRecordPerRequest or the format Redisson313. Otherwise the error is
// ErrInvalidOption. If d, or the tenth of the interval that replaces it, is less than 2 ms, nothing
// is taken ahead.
func WithLease(d time.Duration) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the lease %v is not a positive number of whole milliseconds", d)
		}
		s.Lease = d
		return nil
	}}
}

// WithDenyCache lets this process answer requests from a cache of refusals. If Redis refuses n
// permits to Allow, Take or TryAcquire, the reply contains the time at which n permits will be free
// if no other permits are taken. Until that time, requests of these methods for n or more permits
// are refused without a call to Redis. An attack then costs Redis almost nothing.
//
// If a new rate or a release in another process frees permits earlier, this process notices it at
// the cached time. It notices a new rate sooner if another reply contains that rate. A change by
// this client (SetRate, Release, Expire, a rate enforced by another Limiter of the client, ...) has
// effect at once. If permits are free but reserved for waiting callers, the refusal is not cached.
//
// limiters is the largest number of limiters whose refusals the client caches. It must be positive.
// If the cache is full, a new refusal replaces another refusal.
func WithDenyCache(limiters int) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		if limiters < 1 {
			return invalidOption("a deny cache for %d limiters: at least 1", limiters)
		}
		s.DenyCache = limiters
		return nil
	}}
}

// WithFailFast makes Acquire fail at once if its caller would wait in vain. When a reply from Redis
// shows that the permits cannot be free before the deadline of the context, Acquire returns a
// *[NotInTimeError], with the earliest time at which they can be. It is not an error of the
// context. Without the option, Acquire waits until the deadline. A context without a deadline
// changes nothing.
//
// The records in Redis count, and the callers of this process that wait in front: each of them
// takes its permits first. What callers of other processes wait for is not known, so a caller that
// goes on waiting can still be too late. Each later reply is judged again. Acquire does not wait
// for a release or a higher rate that could free the permits earlier. While the process decides
// (WithFallback), callers wait until their deadline, because Redis may come back.
//
// TryAcquireTimeout then also returns false at once if the deadline of its context is before its
// timeout, and counts the callers in front. Each caller that waits with a deadline causes a call to
// Redis, which callers that come at the same time share.
//
// [Client.AcquireAll] and [Client.TryAcquireAllTimeout] do the same if one of their limiters has
// the option, and all can be asked in one step. They know less about the callers in front. So they
// may notice late, or never, that a caller waits in vain.
func WithFailFast() LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		s.FailFast = true
		return nil
	}}
}

// WithInstalments lets Acquire take more permits than the rate, such as 200 at 20/s for a batch of
// 200 mails: it takes the permits of the rate, an interval later those of the next interval, and so
// on, and returns when it has all of them. It keeps its place in the queue: callers of this process
// behind it wait until it has all, and requests that do not wait are refused. If other clients take
// permits meanwhile, it takes those that are free, and more an interval later. If ctx ends before,
// or if a call fails, the error is a *[PartlyTakenError] that tells how many permits were taken;
// they are not given back.
//
// With [WithFailFast], Acquire returns at once if the last instalment cannot be in time; callers
// behind it are judged later. The other methods return ErrExceedsRate for more permits than the
// rate, as without the option, and so do AcquireAll of several limiters and a rate of 0. While the
// process decides (WithFallback), the caller waits for Redis, unless its next instalment is within
// the limit of the process.
func WithInstalments() LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		s.Instalments = true
		return nil
	}}
}

// WithFallback lets this process decide by itself in the cases of [ErrUnavailable]: Redis cannot be
// reached, no connection or no reply came in time, the server replied with LOADING, BUSY, READONLY,
// MASTERDOWN, CLUSTERDOWN, TRYAGAIN, or "max number of clients reached", or nodes of a cluster
// disagree about a slot. All other errors are returned as without the option.
//
// In these cases the process grants the fraction of the last known rate. The fraction must be from
// 0 to 1; otherwise the error is ErrInvalidOption. With 0 the process grants nothing; waiting
// callers wait until Redis is back, or until their timeout or context ends. With 1 each process
// grants the whole rate. With 1/n, n processes together grant at most the rate. If the fraction of
// the rate is less than one permit, the process grants one permit in a proportionally longer
// interval.
//
// The process decides requests of all acquiring methods. Result.Limit is then the limit of this
// process, and CallInfo.Fallback is true. Waiting callers keep their order, with two exceptions. A
// request for more permits than the limit of this process, but not more than the rate, is refused
// or waits until Redis is back, and does not delay later requests. Callers of AcquireAll are in
// order only with others that wait for the same limiters, listed in the same order. If several
// limiters are asked in one step, the process decides only if each of them has the option.
//
// All other methods, including Release, still call Redis. The permits that the process grants are
// not stored in Redis, so Release cannot give them back, but Grant.Return can, without a call.
//
// In any interval the process grants at most the fraction of the rate by itself, even across
// several outages. These grants are in addition to the grants of Redis. Permits granted within a
// tenth of the interval return together, one interval after the last of them. The last known rate
// is the rate in the latest reply of Redis to a limiter of this Client that has the name and this
// option. Without such a reply it is the rate of WithRate or WithEnforcedRate. If neither is known,
// the method returns the error. With this option, a call that Redis did not execute is never
// retried. A client stores the last known rates and its own grants of at most 65,536 limiters, a
// grant for up to 1.1 intervals. If so many limiters have such grants, the calls of further
// limiters return the error, as if no rate were known.
//
// A node counts as away once a call fails because the node cannot be reached, or replies with one
// of the errors above, except those that concern one slot: TRYAGAIN, "CLUSTERDOWN Hash slot not
// served", and MOVED or ASK of nodes that disagree. If the node refuses connections, such a call
// fails late, because go-redis dials several times (by default five times in 400 ms). So when a
// call takes longer than 20 ms and much longer than usual, and no call in flight has a connection,
// the client dials once itself, through the same hooks, at most once per second. If the node
// refuses this connection (ECONNREFUSED), and a probe gets no connection within 10 ms, the node
// counts as away.
//
// A node also counts as away if it has answered nothing for 500 ms (or for WithCallTimeout, if that
// is shorter) while a call was in flight. After half of that time a probe is sent, so an answer to
// the probe also shows that the node is not away. Calls of all methods count for this, also those
// whose callers' contexts have ended. When the node counts as away, the process decides the calls
// in flight and all later calls at once. While requests or calls of Health come, background calls
// probe the node: first after 100 ms, then less often, down to once per second. If none comes for 1
// to 2 s, the process forgets that the node was away: the next call asks it again.
//
// The state of a node applies to all limiters on the node, and the state of a shard to all limiters
// on that shard of a Ring. With an AutoPipeliner over several nodes, the node of a limiter is not
// known, so each limiter has a state of its own. A Ring removes a shard that does not answer: by
// default 2 s after the shard died, or 15 s after it began to hang. Until the shard is back, its
// limiters are on another shard, where they have no grants, and no rate without WithRate. If
// RingOptions.HeartbeatFn always returns true, the limiters stay on their shard, and the process
// decides.
func WithFallback(fraction float64) LimiterOption {
	return LimiterOption{func(s *dispatch.Settings) error {
		if !(fraction >= 0 && fraction <= 1) {
			return invalidOption("the fraction %v of WithFallback is not between 0 and 1", fraction)
		}
		s.FallsBack, s.Fallback = true, fraction
		return nil
	}}
}
