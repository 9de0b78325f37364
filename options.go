package rratelimiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// An Option configures a client. If an option is invalid, every method of the client's limiters returns
// ErrInvalidOption.
type Option func(*dispatch.Config) error

// WithClientID sets the client's id, which must not be empty. The default is a random UUID, as in Redisson. With a
// stable id, a process finds its PerClient permits again after a restart.
func WithClientID(id string) Option {
	return func(c *dispatch.Config) error {
		if id == "" {
			return invalidOption("the client id is empty")
		}
		c.ID = id
		return nil
	}
}

// WithNameMapper sets the function that maps a limiter's name to the name of its configuration key (Redisson:
// NameMapper), for example to add the prefix that the Java side adds.
func WithNameMapper(mapName func(name string) string) Option {
	return func(c *dispatch.Config) error {
		if mapName == nil {
			return invalidOption("the name mapper is nil")
		}
		c.MapName = mapName
		return nil
	}
}

// WithClock sets the clock that dates the grants, for tests. The default is time.Now. With a clock that always returns
// whole milliseconds, permits return exactly one interval after their grant, whatever the interval is (see [Limiter]).
func WithClock(now func() time.Time) Option {
	return func(c *dispatch.Config) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		c.Clock = now
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
	return func(c *dispatch.Config) error {
		if d <= 0 {
			return invalidOption("the call timeout %v is not positive", d)
		}
		c.CallTimeout = d
		return nil
	}
}

// WithObserver sets the observer of all acquiring calls, and of all requests if it is a [RequestObserver]. If the
// observer has a method Watch(*Client), NewClient calls it with the client. [Observers] combines several observers.
func WithObserver(o Observer) Option {
	return func(c *dispatch.Config) error {
		c.Observer = o
		return nil
	}
}

// WithLimiterDefaults sets options for all limiters of the client. Options given to RateLimiter are applied after them.
func WithLimiterDefaults(opts ...LimiterOption) Option {
	return func(c *dispatch.Config) error {
		for _, opt := range opts {
			if err := apply(opt, &c.Defaults); err != nil {
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
		return invalidOption("WithLease has a granularity of its own")
	case s.Lease > 0 && s.Format == record.Redisson313:
		return invalidOption("WithLease needs records that tell which client wrote them: those of Redisson313 do not")
	case s.RecordPerRequest:
		return invalidOption("a %s joins the records that WithRecordPerRequest asks for", option)
	case s.Own != protocol.Rate{} && d > protocol.Millis(s.Own.Interval)/10:
		return invalidOption("the %s %v is more than a tenth of the interval %v", option, d, protocol.Millis(s.Own.Interval))
	}
	return nil
}

// A LimiterOption configures one limiter in this process. Options are not stored in Redis.
type LimiterOption func(*dispatch.Settings) error

// WithRate makes the limiter set its own rate when it finds none, in the first call that needs it. A rate that is
// already stored wins, whatever it is; if it differs, CallInfo.RateMismatch is true. If only a part of the
// configuration is stored, the missing fields are set (like Redisson's trySetRate before each use).
//
// Every acquiring method and AvailablePermits set the rate; methods that only read, such as Config, State and TTL, do
// not. If both WithRate and WithEnforcedRate are given, the last one counts.
func WithRate(r Rate) LimiterOption {
	return func(s *dispatch.Settings) error {
		s.Own, s.Enforced = r.protocol(), false
		return r.validate()
	}
}

// WithEnforcedRate makes the limiter set its own rate whenever it finds none or another one. Earlier grants still
// count. Two processes that enforce different rates on one limiter overwrite each other forever: a rate should have one
// owner. A call that has set its rate three times and still finds another one is decided under that rate, and
// CallInfo.RateMismatch is true.
func WithEnforcedRate(r Rate) LimiterOption {
	return func(s *dispatch.Settings) error {
		s.Own, s.Enforced = r.protocol(), true
		return r.validate()
	}
}

// WithServerTime dates the grants by the clock of the Redis server instead of the clock of this host. Use it where the
// clocks of the hosts disagree. Redisson's clients always use their own clocks.
func WithServerTime() LimiterOption {
	return func(s *dispatch.Settings) error {
		s.ServerTime = true
		return nil
	}
}

// WithRecordFormat sets the format in which grants are stored. It must be one that all Redisson clients of the limiter
// can read. The default is Redisson317, which all releases since 3.17.0 read.
func WithRecordFormat(f RecordFormat) LimiterOption {
	return func(s *dispatch.Settings) error {
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
	return func(s *dispatch.Settings) error {
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
	return func(s *dispatch.Settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the granularity %v is not a positive number of whole milliseconds", d)
		}
		s.Granularity = d
		return nil
	}
}

// WithLease lets this process take permits up to d ahead of demand and grant them without asking Redis, at the speed of
// memory. The limit stays exact: what is taken ahead is stored as one record, dated at the time until which it may be
// granted, so no window of the interval holds more than the rate, with Redisson, other leases and other clients on the
// limiter.
//
// The price: permits return up to d late, so at full use up to d/(interval+d) of the rate is lost; what a process holds is
// missing elsewhere meanwhile, and if the process dies, until an interval after the end of the lease. So a process takes no
// more than it used lately, a quarter of what is free, and nothing while a caller waits, soon after a refusal, or when less
// than a tenth of the rate would remain free: near full use, calls go to Redis as without the option. What is left at the
// end of a lease is given back.
//
// A change by this client (SetRate, Release, Delete, ...) ends its leases of the limiter at once. What others change is
// noticed when the lease ends. Leases are granted from while Redis is away, until they end. A client holds leases of at most
// 65,536 limiters at a time.
//
// d must be a positive number of whole milliseconds, at most a tenth of the interval. Any other d, more than a tenth of the
// interval of the limiter's own rate (WithRate), and the combination with WithGranularity, WithRecordPerRequest or the format
// Redisson313 are ErrInvalidOption. Records are as with WithGranularity(d).
func WithLease(d time.Duration) LimiterOption {
	return func(s *dispatch.Settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the lease %v is not a positive number of whole milliseconds", d)
		}
		s.Lease = d
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
	return func(s *dispatch.Settings) error {
		if limiters < 1 {
			return invalidOption("a deny cache for %d limiters", limiters)
		}
		s.DenyCache = limiters
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
	return func(s *dispatch.Settings) error {
		if !(fraction >= 0 && fraction <= 1) {
			return invalidOption("a fallback to %v of the rate, not 0 to 1", fraction)
		}
		s.FallsBack, s.Fallback = true, fraction
		return nil
	}
}
