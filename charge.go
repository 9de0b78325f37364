package rratelimiter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/dispatch"
)

// Charging: use that is known only afterwards.

// Charge counts n permits that were used, whether they are free or not: for work whose cost is
// known only afterwards, such as the tokens of a language model. It refuses nothing, and it does
// not wait behind callers that do. What is not free is a debt: until that is paid back, requests
// are refused or wait, those of Redisson, too. State.Debt tells it.
//
// A permit counts from when a caller that waits would have had it: now if it is free, else as soon
// as it returns. So an interval pays back at most the rate. A charge of three times the rate to an
// unused limiter uses up the rate now and is a debt of twice the rate: the next permit is free
// after three intervals. Permits that return within the same eighth of an interval are stored
// together, with the time of the last of them. [WithMaxDebt] bounds the debt, to the permits of ten
// intervals by default. If n is more, Charge counts up to the bound and returns the Result with
// [ErrDebtBound].
//
// Result.Allowed reports whether a permit was free before. So requests whose cost is charged later
// pass as long as there is no debt. RetryAfter is the time until a permit is free, 0 if one is now,
// and ResetAfter the time until all permits are free, the debt included. The times are exact as
// those of Allow.
//
// If n is 0, Charge counts nothing and tells the same. If n is negative, the error is
// ErrInvalidPermits. Without a rate the error is ErrNotInitialized. If the reply to the call is
// lost, it is retried, and no permit is counted twice. If no retry has a reply, or if ctx ends
// while the call is in flight, the error wraps ErrOutcomeUnknown.
//
// A lease of this process (WithLease) that covers n is used, without a call. Otherwise it ends, and
// what it held is free before the charge. The deny cache (WithDenyCache) stops no charge, and knows
// when the debt is paid back. With WithFallback, the process counts the charge against its own
// limit while Redis is away, for one interval; Redis does not learn of it. If that limit is 0, the
// error is ErrUnavailable.
func (l *Limiter) Charge(ctx context.Context, n int64) (Result, error) {
	const operation = "charge"
	err := l.err
	if err == nil && n < 0 {
		err = fmt.Errorf("%w (%d)", ErrInvalidPermits, n)
	}
	if err != nil {
		err = wrap(operation, l.name, err)
		l.client.tell(ctx, RequestInfo{Limiter: l.name, Method: "Charge", Permits: n, Err: err})
		return Result{}, err
	}
	results, err := l.client.charge(ctx, operation, "Charge", []int64{n}, []*Limiter{l})
	return results[0], err
}

// ChargeAll is Charge for permits[i] of limiters[i]. The slices must have the same length. Limiters
// that are listed twice, and names that are refused, are as for [Client.AllowAll].
//
// If all limiters can be asked in one step (see [Client.AllowAll]), all of them count, or none
// does. Otherwise they are charged one after the other, in the order of the arguments, also those
// behind one that fails: the error joins those of all calls, and a limiter whose call failed has a
// zero Result. The results are in the order of the limiters, and valid also with [ErrDebtBound].
func (c *Client) ChargeAll(ctx context.Context, permits []int64, limiters ...*Limiter) ([]Result, error) {
	const operation = "charge all"
	asked, err := c.distinct(operation, permits, limiters, 0)
	if err != nil || len(limiters) == 0 {
		return nil, err
	}
	if c.core.Topology().OneStep(asked.keys) {
		found, err := c.charge(ctx, operation, "ChargeAll", asked.sums, asked.limiters)
		if err != nil && !errors.Is(err, ErrDebtBound) {
			return nil, err
		}
		return asked.spread(found), err
	}
	found, errs := make([]Result, len(asked.limiters)), make([]error, len(asked.limiters))
	for i, l := range asked.limiters {
		var one []Result
		one, errs[i] = c.charge(ctx, operation+" of", "Charge", asked.sums[i:i+1], []*Limiter{l})
		found[i] = one[0]
	}
	return asked.spread(found), errors.Join(errs...)
}

// charge charges limiters in one step, and reports it to the request observer. There are as many
// results as limiters, also with an error.
func (c *Client) charge(
	ctx context.Context, operation, method string, permits []int64, limiters []*Limiter,
) ([]Result, error) {
	started := time.Now()
	cores := make([]*dispatch.Limiter, len(limiters))
	for i, l := range limiters {
		cores[i] = &l.core
	}
	charged, counted, leased, err := c.core.Charge(ctx, permits, cores)
	results, errs := make([]Result, len(limiters)), make([]error, len(limiters))
	switch {
	case err == nil:
	case len(limiters) == 1:
		err = wrap(operation, limiters[0].name, err)
	default:
		err = errorOfAll(operation, permits, limiters, err)
		operation += " of"
	}
	for i, l := range limiters {
		info := RequestInfo{
			Limiter: l.name, Method: method, Permits: permits[i], Leased: leased, Latency: time.Since(started),
			Err: err,
		}
		if err == nil {
			results[i], info.Granted = Result(charged[i]), counted[i]
			if counted[i] < permits[i] {
				errs[i] = wrap(operation, l.name, fmt.Errorf("%w: %d of %d permits counted", ErrDebtBound, counted[i],
					permits[i]))
				info.Err = errs[i]
			}
		}
		c.tell(ctx, info)
	}
	return results, errors.Join(append(errs, err)...)
}
