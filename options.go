package rratelimiter

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/record"
)

// An Option configures a client. If an option is invalid, every method of the client's limiters
// returns ErrInvalidOption.
type Option struct {
	set func(*limiter.Config) error
}

// WithClientID sets the client's id, which must not be empty. The default is a random UUID, as in
// Redisson. With a stable id, a process finds its PerClient permits again after a restart.
// Processes with the same id share these permits. It combines with all options.
func WithClientID(id string) Option {
	return Option{func(c *limiter.Config) error {
		if id == "" {
			return invalidOption("the client id is empty")
		}
		c.ID = id
		return nil
	}}
}

// WithNameMapper sets the function that maps a limiter's name to the name of its configuration key
// (Redisson: NameMapper). For example, it adds the prefix that the Java services use. It combines
// with all options.
func WithNameMapper(mapName func(name string) string) Option {
	return Option{func(c *limiter.Config) error {
		if mapName == nil {
			return invalidOption("the name mapper is nil")
		}
		c.MapName = mapName
		return nil
	}}
}

// WithClock sets the clock that gives grants their time, for tests. The default is time.Now. If the
// clock always returns whole milliseconds, permits return exactly one interval after their grant,
// for every interval (see [Limiter]). With [WithServerTime] it gives grants no time, and only
// bounds timeouts.
func WithClock(now func() time.Time) Option {
	return Option{func(c *limiter.Config) error {
		if now == nil {
			return invalidOption("the clock is nil")
		}
		c.Clock = now
		return nil
	}}
}

// WithCallTimeout bounds one call to Redis, retries included. It must be positive; the default is 1
// s. A call that fails because of the network, or because the server cannot serve it yet (LOADING,
// READONLY, ...), is retried until d is over, if the retry cannot take permits twice. Otherwise the
// error is [ErrOutcomeUnknown].
//
// A longer d survives a failover without an error, and blocks callers longer while Redis is away.
// Set the ReadTimeout of the redis client to at least d: with a shorter one a retry can be answered
// while the first attempt is still on its way, and some calls then take their permits twice.
//
// With [WithFallback], a call that Redis did not execute is not retried: the process decides at
// once. See docs/options.md#withcalltimeout.
func WithCallTimeout(d time.Duration) Option {
	return Option{func(c *limiter.Config) error {
		if d <= 0 {
			return invalidOption("the call timeout %v is not positive", d)
		}
		c.CallTimeout = d
		return nil
	}}
}

// WithObserver sets the observer of all acquiring calls. A [RequestObserver] also sees all
// requests, and a [GuardObserver] the decisions of guards. If the observer has a method
// Watch(*Client), NewClient calls this method with the client. If the option is given twice, the
// last one counts: [Observers] combines several observers.
func WithObserver(o Observer) Option {
	return Option{func(c *limiter.Config) error {
		c.Observer = o
		return nil
	}}
}

// WithLimiterDefaults sets options for all limiters of the client. Options given to RateLimiter are
// applied after them. What cannot be combined is refused by RateLimiter also if one of the two
// options is a default.
func WithLimiterDefaults(opts ...LimiterOption) Option {
	return Option{func(c *limiter.Config) error {
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
func validate(s limiter.Settings) error {
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
		return invalidOption("the %s %v is more than a tenth of the interval %v",
			option, d, protocol.Millis(s.Own.Interval))
	}
	return nil
}

// A LimiterOption configures one limiter in this process. Options are not stored in Redis.
type LimiterOption struct {
	set func(*limiter.Settings) error
}

// WithRate makes the limiter set the rate r if no rate is stored in Redis, in the same step in
// which it acquires permits. If a rate is stored, it stays in force. If it differs from r,
// CallInfo.RateMismatch is true. If only some fields of the configuration are stored, the missing
// fields are set, as by Redisson's trySetRate.
//
// Every acquiring method and AvailablePermits set the rate. Methods that only read, such as Config,
// State and TTL, do not. If both WithRate and WithEnforcedRate are given, the last one counts. It
// cannot be combined with [WithLease] or [WithGranularity] if their d is more than a tenth of the
// interval of r ([ErrInvalidOption]).
func WithRate(r Rate) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		s.Own, s.Enforced = r.protocol(), false
		return r.validate()
	}}
}

// WithEnforcedRate makes the limiter set the rate r whenever no rate or another rate is stored in
// Redis. Earlier grants still count, unless the Type changes. Two processes that enforce different
// rates on one limiter overwrite each other's rate with each call, so only one owner should enforce
// a rate. If a call has set r three times and another rate is stored again, the call is decided
// under that other rate, and CallInfo.RateMismatch is true. It cannot be combined with [WithLease]
// or [WithGranularity] if their d is more than a tenth of the interval of r ([ErrInvalidOption]).
func WithEnforcedRate(r Rate) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		s.Own, s.Enforced = r.protocol(), true
		return r.validate()
	}}
}

// WithServerTime gives grants the time of the Redis server instead of the time of this host. Use it
// if the clocks of the hosts differ. Redisson's clients always use their own clocks. The time of
// [WithClock] is then used for timeouts only.
func WithServerTime() LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		s.ServerTime = true
		return nil
	}}
}

// WithRecordFormat sets the format in which grants are stored. All Redisson clients of the limiter
// must be able to read it. The default is Redisson317, which all releases since 3.17.0 read.
// Redisson313 cannot be combined with [WithLease] ([ErrInvalidOption]), and [WithGranularity] has
// no effect with it.
func WithRecordFormat(f RecordFormat) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
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
// addition to those in the records. It cannot be combined with [WithGranularity] or [WithLease]
// ([ErrInvalidOption]).
func WithRecordPerRequest() LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		s.RecordPerRequest = true
		return nil
	}}
}

// WithGranularity bounds the memory of a limiter with many grants: all permits that this client is
// granted within a period of length d are stored as one record, with the time of the end of the
// period. The limiter then has about interval/d + 2 records of this client. d is positive, whole
// milliseconds, and at most a tenth of the interval.
//
// Permits return up to d late, never early. After a lost reply, [ErrOutcomeUnknown] is more
// frequent: a retry cannot find the permits of the earlier attempt if another call was stored in
// the same record.
//
// It cannot be combined with [WithRecordPerRequest], [WithLease], or a shorter interval of
// [WithRate] or [WithEnforcedRate] ([ErrInvalidOption]), and has no effect with the format
// Redisson313. See docs/options.md#withgranularity.
func WithGranularity(d time.Duration) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the granularity %v is not a positive number of whole milliseconds", d)
		}
		s.Granularity = d
		return nil
	}}
}

// WithLease lets this process take permits ahead of demand and grant them without a call to Redis,
// for up to 1.25 d. The limit stays exact, also beside other leases, other clients and Redisson. d
// is positive, whole milliseconds, and at most a tenth of the interval.
//
// Permits of a call that takes a lease return late, by up to 1.25 d, and the permits that one
// process holds are missing in others until the lease ends. A change of the limiter by another
// client is noticed when the lease ends; one by this client ends its leases at once. While Redis is
// away, a lease grants until it ends.
//
// Near the full rate, while a caller waits, and beside Redisson, little or nothing is taken ahead.
// It cannot be combined with [WithGranularity], [WithRecordPerRequest], the [WithRecordFormat] of
// Redisson313, or a shorter interval of [WithRate] or [WithEnforcedRate] ([ErrInvalidOption]). See
// docs/guide/serve-from-memory.md.
func WithLease(d time.Duration) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		if d <= 0 || d%time.Millisecond != 0 {
			return invalidOption("the lease %v is not a positive number of whole milliseconds", d)
		}
		s.Lease = d
		return nil
	}}
}

// WithDenyCache lets this process answer requests from a cache of refusals. If Redis refuses n
// permits to Allow, Take, TryAcquire or Peek, the reply contains the time at which n permits will
// be free if no other permits are taken. Until that time, requests of these methods for n or more
// permits are refused without a call to Redis, with the times of that refusal. An attack then costs
// Redis almost nothing. limiters is the largest number of limiters whose refusals the client
// caches, at least 1; if the cache is full, a new refusal replaces another one.
//
// If a new rate or a release in another process frees permits earlier, this process notices it at
// the cached time, or when another reply contains the new rate. A change by this client (SetRate,
// Release, Expire, a rate enforced by another Limiter of the client, ...) has effect at once. If
// permits are free but reserved for waiting callers, the refusal is not cached.
//
// It combines with all options: with [WithLease] the lease is asked first, and a refusal by the
// process ([WithFallback]) is not cached.
func WithDenyCache(limiters int) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		if limiters < 1 {
			return invalidOption("a deny cache for %d limiters: at least 1", limiters)
		}
		s.DenyCache = limiters
		return nil
	}}
}

// WithFailFast makes Acquire fail at once if its caller would wait in vain. When a reply from Redis
// shows that the permits cannot be free before the deadline of the context, Acquire returns a
// *[NotInTimeError] with the earliest time at which they can be, instead of waiting until the
// deadline. TryAcquireTimeout also heeds the deadline of its context then.
//
// The callers of this process in front count; those of other processes are not known, so each later
// reply is judged again. A release or a higher rate that could come is not waited for. Each caller
// with a deadline causes a call to Redis, which callers that come at the same time share.
//
// With [WithInstalments] the whole request is judged before its first permit is taken, by one more
// call. While the process decides ([WithFallback]), callers wait until their deadline.
// [Client.AcquireAll] and [Client.TryAcquireAllTimeout] do the same if one of their limiters has
// the option, and all can be asked in one step, but may notice late, or never, that a caller waits
// in vain. See docs/options.md#of-a-limiter.
func WithFailFast() LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		s.FailFast = true
		return nil
	}}
}

// WithInstalments lets Acquire take more permits than the rate, such as 200 at 20/s for a batch of
// 200 mails: it takes the permits of the rate, an interval later those of the next interval, and so
// on, and returns when it has all of them. Callers of this process behind it wait until then, and
// requests that do not wait are refused. If ctx ends before, or if a call fails, the error is a
// *[PartlyTakenError] that tells how many permits were taken; they are not given back.
//
// With [WithFailFast], Acquire returns a *[NotInTimeError] at once, and takes nothing, if the last
// instalment cannot be in time. If that turns out later, because other clients take permits, the
// rate is lowered, or [WithGranularity] dates a grant later, a *[PartlyTakenError] wraps it.
//
// More than the rate stays ErrExceedsRate for the other methods, for AcquireAll of several limiters
// and at a rate of 0. While the process decides ([WithFallback]), the caller waits for Redis,
// unless its next instalment is within the limit of the process. See docs/options.md#of-a-limiter.
func WithInstalments() LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		s.Instalments = true
		return nil
	}}
}

// WithMaxDebt bounds the debt that [Limiter.Charge] leaves: to the permits of so many intervals, 0
// to 1,000. The default is 10. So a charge with a wrong number refuses requests for about 10
// intervals, not for days. What is above the bound is not counted, and Charge returns
// [ErrDebtBound]. With 0, Charge counts only what is free.
//
// The bound is that of the limiter that charges: another one, with a higher bound, can add to the
// debt. A lowered rate can leave more permits owed than the bound; then nothing is counted.
func WithMaxDebt(intervals int) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		if intervals < 0 || intervals > mostDebt {
			return invalidOption("a debt of %d intervals: not 0 to %d", intervals, mostDebt)
		}
		s.MaxDebt = int64(intervals)
		return nil
	}}
}

// A debt has at most the permits of so many intervals: by default, and with any option.
const (
	defaultDebt = 10
	mostDebt    = 1000
)

// WithFallback lets this process decide by itself in the cases of [ErrUnavailable]. It then grants
// at most the fraction of the last known rate in any interval: with 0 nothing, with 1 the whole
// rate, and with 1/n in each of n processes the rate together. These grants are in addition to
// those of Redis. The fraction is 0 to 1, else [ErrInvalidOption].
//
// The last known rate is that of the latest reply of Redis to a limiter of this Client with the
// name and this option, else that of [WithRate] or [WithEnforcedRate]. If neither is known, the
// method returns the error. Result.Limit is the limit of this process, and CallInfo.Fallback is
// true. All acquiring methods are decided; other methods, also Release, still call Redis.
//
// If several limiters are asked in one step, each needs the option. While the process decides,
// [WithFailFast] and [WithInstalments] wait for Redis. See docs/options.md#withfallback.
func WithFallback(fraction float64) LimiterOption {
	return LimiterOption{func(s *limiter.Settings) error {
		if !(fraction >= 0 && fraction <= 1) {
			return invalidOption("the fraction %v of WithFallback is not between 0 and 1", fraction)
		}
		s.FallsBack, s.Fallback = true, fraction
		return nil
	}}
}
