package rratelimiter

import (
	"context"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
)

// An Observer sees each acquiring call after its reply was handled, and each decision that the
// process made without a call (WithFallback). Requests that a lease grants (WithLease) are reported
// to a [RequestObserver] only. The methods must return quickly, because callers wait for them.
type Observer interface{ Call(CallInfo) }

// CallInfo describes one acquiring call. A call that asks several limiters in one step (AllowAll,
// TakeAll, AcquireAll, TryAcquireAllTimeout) is reported once for each of them. If these methods
// ask one limiter after the other, each limiter has a call as for Allow. If a call fails and the
// process does not decide (Fallback), its Callers count as denied, except those that have left. If
// all have left before the call is sent, Attempts is 0, and Err is set.
type CallInfo struct {
	Limiter string // name
	// Callers is the number of callers whose requests the call carried. If the call fails, it
	// includes the queued requests that fail with it. If a caller is neither Granted nor Denied, it
	// continues to wait, its context has ended, or another limiter of the same call refused it. A
	// call without callers takes a lease, counts a charge, or has added up all records of the
	// limiter and repaired its free permits or its records (Repaired).
	Callers, Granted, Denied int
	Permits                  int64 // granted in total
	// part of Permits that no caller received, because the callers had cancelled
	Unclaimed int64
	// Waiting is the number of callers in this process that are still blocked. After a call for one
	// limiter, these are the callers that wait for this limiter alone. After a call for several
	// limiters, these are the callers of AcquireAll and TryAcquireAllTimeout that wait for the same
	// limiters, listed in the same order.
	Waiting  int
	Latency  time.Duration // from sending the call to its reply, retries included
	Attempts int           // number of attempts sent to Redis; 0 if no call was made
	Repaired string        // what was repaired and why; "" if nothing
	// the rate of WithRate or WithEnforcedRate differs from the rate in force
	RateMismatch bool
	// refusals by WithDenyCache since the limiter's previous call; 0 after a call for several
	// limiters
	DenyCacheHits int
	// decided by the process (WithFallback), after a failed call or without one
	Fallback bool
	// permits that were taken ahead of demand (WithLease), in addition to Permits
	Leased int64
	// permits of earlier leases given back since the limiter's previous call
	Returned int64
	// permits of earlier leases neither granted nor given back, since the limiter's previous call
	Void int64
	// permits that Charge counted, not in Permits
	Charged int64
	Err     error // why the call failed; nil if it did not
}

// callInfo returns a call as the observer gets it.
func callInfo(c limiter.CallInfo) CallInfo {
	return CallInfo{
		Limiter:       c.Limiter,
		Callers:       c.Callers.Carried,
		Granted:       c.Callers.Granted,
		Denied:        c.Callers.Denied,
		Permits:       c.Permits.Granted,
		Unclaimed:     c.Permits.Unclaimed,
		Waiting:       c.Callers.Waiting,
		Latency:       c.Latency,
		Attempts:      c.Attempts,
		Repaired:      c.Repaired,
		RateMismatch:  c.RateMismatch,
		DenyCacheHits: c.DenyCacheHits,
		Fallback:      c.Fallback,
		Leased:        c.Permits.Leased,
		Returned:      c.Permits.Returned,
		Void:          c.Permits.Void,
		Charged:       c.Permits.Charged,
		Err:           c.Err,
	}
}

// A RequestObserver is an [Observer] that also sees each request once, when the method returns. A
// call serves many requests. RequestInfo describes a single request, including its time in the
// queue. These requests are reported here, but in no [CallInfo]: a request whose context ends
// before a call carries it, a request that a lease grants, a request that fails before a call (for
// example with ErrInvalidPermits), and an AcquireUpTo or TakeUpTo that gets nothing because callers
// wait. If the context of a request ends while its call is in flight, CallInfo counts the caller,
// and only RequestInfo has the error. Invalid arguments of methods for several limiters are not
// reported. Request is called concurrently, in the goroutines of the callers.
type RequestObserver interface {
	Observer
	Request(ctx context.Context, info RequestInfo)
}

// RequestInfo describes one request: a call of a method that asks a limiter for permits. Take,
// TakeUpTo and TakeAll have the Method of Allow, AcquireUpTo and AllowAll.
//
// AllowAll, TakeAll, AcquireAll and TryAcquireAllTimeout make one request to each of their
// limiters. If a limiter is listed several times, it is one request for the sum.
//   - In one step: Method is "AllowAll", "AcquireAll" or "TryAcquireAllTimeout". If one limiter
//     refuses, Granted is 0 and Err is nil for all limiters, including those that would have
//     allowed. CallInfo.Denied counts the request only for the limiters that refused it.
//   - One limiter after the other: Method is "Allow", and Waits is false. The limiters after the
//     one that refuses get no request. AcquireAll and TryAcquireAllTimeout make such requests each
//     time they ask.
//
// With one limiter, AcquireAll has the Method of Acquire, and TryAcquireAllTimeout that of
// TryAcquireTimeout. If its timeout is 0 or less, TryAcquireAllTimeout has the Method of AllowAll.
type RequestInfo struct {
	Limiter string // name
	// Method is "Acquire", "TryAcquireTimeout", "TryAcquire", "Allow", "AcquireUpTo", "AllowAll",
	// "AcquireAll", "TryAcquireAllTimeout", "Charge" or "ChargeAll".
	Method  string
	Waits   bool          // whether the method waits for permits
	Permits int64         // requested
	Granted int64         // part of Permits that was granted or, by a charge, counted
	Leased  bool          // granted from a lease (WithLease), without a call
	Latency time.Duration // from the start of the method to its answer
	Err     error         // as returned to the caller; nil if the request was answered
}

// A GuardObserver is an [Observer] that also sees each decision of a guard: an HTTP handler or a
// gRPC server that a policy of package httplimit limits. Guard is called concurrently, in the
// goroutines of the callers, and must return quickly.
type GuardObserver interface {
	Observer
	Guard(ctx context.Context, info GuardInfo)
}

// GuardInfo describes one decision of a guard. Its Outcome is one of:
//
//	unlimited          no limit bounds the request, or a rule skips it; it passed
//	allowed            all limits allowed it; it passed
//	denied             a limit refused it
//	shadowed           a limit refused it; it passed, because the policy only watches
//	failed open        the limits could not be checked; it passed
//	failed closed      the limits could not be checked; it was refused
//	allowed locally    the limits could not be checked; the process allowed it
//	denied locally     the limits could not be checked; the process refused it
//	shadowed locally   the same as denied locally, but it passed, because the policy only watches
//	gone               the caller's context ended before the decision
//
// If the process decides for a limiter with [WithFallback], the outcome is allowed, denied or
// shadowed.
type GuardInfo struct {
	Policy  string        // name of the policy; "" if it has none
	Outcome string        // one of the list at GuardInfo
	Latency time.Duration // from the request to the decision, including time spent waiting
	Err     error         // why the limits could not be checked; nil if they were
}

// A watcher is an observer to which NewClient passes the client.
type watcher interface{ Watch(*Client) }

// Observer returns the observer set by [WithObserver], or nil.
func (c *Client) Observer() Observer { return c.observer }

// observed determines the optional interfaces of the observer, and calls its Watch method if it has
// one.
func (c *Client) observed() {
	c.requestObserver, _ = c.observer.(RequestObserver)
	if w, ok := c.observer.(watcher); ok {
		w.Watch(c)
	}
}

// Observers combines several observers into one observer, which calls them in order. Nil observers
// are skipped. If all are nil, the result is nil.
func Observers(all ...Observer) Observer {
	var some observers
	requests := false
	for _, o := range all {
		if o != nil {
			some = append(some, o)
			_, ok := o.(RequestObserver)
			requests = requests || ok
		}
	}
	switch {
	case len(some) == 0:
		return nil
	case len(some) == 1:
		return some[0]
	case requests:
		return requestObservers{some}
	}
	return some
}

type observers []Observer

func (all observers) Call(info CallInfo) {
	for _, o := range all {
		o.Call(info)
	}
}

func (all observers) Watch(c *Client) {
	for _, o := range all {
		if w, ok := o.(watcher); ok {
			w.Watch(c)
		}
	}
}

func (all observers) Guard(ctx context.Context, info GuardInfo) {
	for _, o := range all {
		if o, ok := o.(GuardObserver); ok {
			o.Guard(ctx, info)
		}
	}
}

type requestObservers struct{ observers }

func (all requestObservers) Request(ctx context.Context, info RequestInfo) {
	for _, o := range all.observers {
		if o, ok := o.(RequestObserver); ok {
			o.Request(ctx, info)
		}
	}
}

// Waiting returns the number of callers that are blocked now, by the name of their limiter. A
// caller of AcquireAll or TryAcquireAllTimeout counts at each of its limiters, or at none if they
// are asked one after the other.
func (c *Client) Waiting() map[string]int { return c.core.Waiting() }

// tell passes a request to the request observer, if there is one.
func (c *Client) tell(ctx context.Context, info RequestInfo) {
	if c.requestObserver != nil {
		c.requestObserver.Request(ctx, info)
	}
}
