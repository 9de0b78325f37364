package httplimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/rratelimiter/rratelimiter"
)

// bill.go keeps what a request uses of a limit, while it is handled and after its response, in line
// with what the limiter has counted.

// Charge tells that the request of ctx has used n more permits, while it is handled: so a long
// response counts before it ends. It is for limits with [Limit.CostAfter]: for those with the
// names, or for all of the request if there is no name. The permits that the request took cover
// what is used first. What exceeds them is charged.
//
// Charge returns at once. The permits are charged in the background, with one call of each limit at
// a time, for at most 1 s. The next call has what is told during it. Policy.OnError and
// Policy.Logger get the errors. What was charged counts towards the cost that the function of
// CostAfter returns. What is told after that, by a writer that still streams, adds to the cost.
//
// ctx is the context that the handler gets from [Guard.Middleware], or from ginlimit, echolimit
// (both: of the http.Request), fiberlimit (fiber.Ctx.Context) and grpclimit. Without such limits,
// or if n is less than 1, Charge does nothing.
func Charge(ctx context.Context, n int64, names ...string) {
	bills, _ := ctx.Value(billsKey{}).([]*bill)
	for _, b := range bills {
		if n > 0 && (len(names) == 0 || slices.Contains(names, b.claim.Name)) {
			b.use(ctx, n)
		}
	}
}

// NewContext returns the context for the handler of a request, so that the handler can call
// [Charge]. It is for the callers of [Guard.Admit], [Guard.Decide] and [Policy.Decide]. If ctx is
// from another guard, the limits of both are charged.
func NewContext(ctx context.Context, d Decision) context.Context {
	before, _ := ctx.Value(billsKey{}).([]*bill)
	bills := slices.Clip(before)
	for _, a := range d.Answers {
		if a.bill != nil && a.Allowed && a.after {
			bills = append(bills, a.bill)
		}
	}
	if len(bills) == len(before) {
		return ctx
	}
	return context.WithValue(ctx, billsKey{}, bills)
}

type billsKey struct{}

// A charger is a limiter that counts permits that were used, free or not.
type charger interface {
	Charge(ctx context.Context, n int64) (rratelimiter.Result, error)
}

// A bill is what a request that passed uses of a limit.
type bill struct {
	policy *Policy
	claim  Claim
	back   way

	mu       sync.Mutex // guards the fields below
	used     int64      // permits, as far as the handler or the response has told
	counted  int64      // permits that the limiter has counted: taken and charged
	taken    int64      // of these, permits that were taken and can come back
	over     bool       // the response has told the cost: what was not used can come back
	counting bool       // a goroutine runs count
}

// bill returns the bill of a claim that was allowed; nil if it does not depend on the response, or
// if nothing can be corrected.
func (p *Policy) bill(c Claim, back way) *bill {
	if !c.after && (c.countIf == nil || back == nil) {
		return nil
	}
	return &bill{policy: p, claim: c, back: back, counted: c.Permits, taken: c.Permits}
}

// use adds n permits to those that were used.
func (b *bill) use(ctx context.Context, n int64) {
	b.mu.Lock()
	b.used += min(n, math.MaxInt64-b.used)
	begins := b.begins()
	b.mu.Unlock()
	if begins {
		go b.count(ctx)
	}
}

// settle makes n the permits that were used, or what the handler has told if n is not known and
// less. A penalty of the limit is told, too.
func (b *bill) settle(ctx context.Context, n int64, known bool) {
	b.mu.Lock()
	if !known {
		n = max(n, b.used)
	}
	b.over, b.used = true, n
	begins := b.begins()
	b.mu.Unlock()
	if begins || b.claim.penalty != nil {
		go func() {
			if begins {
				b.count(ctx)
			}
			b.report(ctx, b.claim.countForPenalty(ctx, n))
		}()
	}
}

// change returns by how many permits the limiter must be corrected. What was charged does not come
// back. b.mu is held.
func (b *bill) change() int64 {
	n := b.used - b.counted
	if n < 0 && (!b.over || b.back == nil) {
		return 0
	}
	return max(n, -b.taken)
}

// begins reports whether the caller must run count. b.mu is held.
func (b *bill) begins() bool {
	if b.counting || b.change() == 0 {
		return false
	}
	b.counting = true
	return true
}

// count corrects the limiter until it has counted what was used, or until a call fails. What failed
// is in the next correction, if there is one.
func (b *bill) count(ctx context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		n, over := b.change(), b.over
		if n == 0 {
			break
		}
		back := min(n, 0)
		b.counted, b.taken = b.counted+n, b.taken+back
		b.mu.Unlock()
		err := b.correct(ctx, n)
		b.report(ctx, err)
		b.mu.Lock()
		if err == nil || errors.Is(err, rratelimiter.ErrOutcomeUnknown) || errors.Is(err, rratelimiter.ErrDebtBound) {
			continue
		}
		b.taken -= back
		if b.counted -= n; over == b.over {
			break
		}
	}
	b.counting = false
}

// correct charges n permits or, if n is negative, gives permits back.
func (b *bill) correct(ctx context.Context, n int64) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), correcting)
	defer cancel()
	if n < 0 {
		return b.back(bounded, -n)
	}
	_, err := b.claim.Limiter.(charger).Charge(bounded, n)
	return err
}

func (b *bill) report(ctx context.Context, err error) {
	if err != nil {
		b.policy.report(ctx, fmt.Errorf("limit %q, key %q: after a request passed: %w", b.claim.Name, b.claim.Key, err))
	}
}
