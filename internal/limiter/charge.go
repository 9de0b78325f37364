package limiter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/fallback"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// charge.go counts permits that were used, free or not. Such a call belongs to no queue: it waits
// for nobody. It travels in the pipelines as others do.

// A charge is one call of charge.lua, for one limiter or several. It is the body and the owner of
// its exchange.Call.
type charge struct {
	client   *Client
	limiters []*Limiter
	request  protocol.Charge
	reply    []protocol.Charged
	failed   int // index of the limiter that refused to decide, by the last reply; -1: none did
	call     exchange.Call
	left     atomic.Bool // the caller has left
	denials  int64       // DenyCache.Changes when it was sent
	resumes  []func()    // for each limiter: its leases are suspended until the charge has ended
	done     chan chargeOutcome
}

// A chargeOutcome is how a charge has ended.
type chargeOutcome struct {
	charged []protocol.Charged
	err     error
}

// Charge counts permits[i] at limiters[i], by one script. There are as many results as limiters,
// each with the number of permits that were counted. An error about one limiter is a
// schedule.MemberError. Leases of this client end before: what they hold is free then, and goes
// first.
func (c *Client) Charge(
	ctx context.Context, permits []int64, limiters []*Limiter,
) (results []schedule.Result, counted []int64, err error) {
	ch := c.newCharge(ctx, permits, limiters)
	if err := ctx.Err(); err != nil { // it may have ended while leases were given back
		ch.resume()
		return nil, nil, err
	}
	c.Exchange.Send(&ch.call, false)
	var o chargeOutcome
	select {
	case o = <-ch.done:
	case <-ctx.Done():
		ch.left.Store(true)
		return nil, nil, script.Unknown(ctx.Err())
	}
	if o.err != nil {
		return nil, nil, c.ForCaller(ctx, o.err)
	}
	results, counted = make([]schedule.Result, len(limiters)), make([]int64, len(limiters))
	for i, of := range o.charged {
		counted[i] = of.Counted
		results[i] = schedule.Result{
			Allowed: of.Free+of.Counted > 0, Limit: of.Rate, Remaining: max(0, of.Free),
			RetryAfter: of.RetryAfter, NextAfter: of.NextAfter, ResetAfter: of.ResetAfter,
		}
	}
	return results, counted, nil
}

// newCharge returns a charge that is to be sent.
func (c *Client) newCharge(ctx context.Context, permits []int64, limiters []*Limiter) *charge {
	ch := &charge{client: c, limiters: limiters, failed: -1, done: make(chan chargeOutcome, 1)}
	targets := make([]exchange.Target, len(limiters))
	ch.request.Parts = make([]protocol.ChargePart, len(limiters))
	for i, l := range limiters {
		targets[i] = l
		check, _ := l.Unchecked()
		ch.request.Parts[i] = protocol.ChargePart{Encoder: &l.encoder, Permits: permits[i], Check: check}
		ch.resumes = append(ch.resumes, l.suspendLeases(ctx))
	}
	ch.denials = c.DenyCache.Changes()
	ch.call.Begin(c.Exchange, ch, ch, targets)
	return ch
}

// The methods of exchange.Body.

func (ch *charge) Script() *script.Script                                { return protocol.ChargeScript }
func (ch *charge) Args(args []any, find bool) []any                      { return ch.request.Args(args, find) }
func (ch *charge) Findable() bool                                        { return true }
func (ch *charge) TakesOnce() bool                                       { return false }
func (ch *charge) Plain() bool                                           { return false }
func (ch *charge) Joint() bool                                           { return false }
func (ch *charge) SharedArgs(args []any, _ int64) []any                  { return args }
func (ch *charge) ReadShared(_ *script.Attempts, _ []int64, _ int) error { return protocol.ErrNotPlain }

func (ch *charge) Read(a *script.Attempts, reply []int64) (err error) {
	ch.reply, ch.failed, err = ch.request.Reply(a, reply)
	return err
}

func (ch *charge) Enforce(ctx context.Context, _ *script.Attempts) error {
	ch.request.Parts[ch.failed].Sets++
	return ch.limiters[ch.failed].Enforce(ctx)
}

// The methods of exchange.Owner.

// Cancelled reports whether the caller has left, so that nothing is to be counted.
func (ch *charge) Cancelled() bool { return ch.left.Load() }

// Stalled does nothing: nobody waits behind a charge.
func (ch *charge) Stalled() {}

// Away counts the permits in the process, if it can.
func (ch *charge) Away(retry time.Duration) bool {
	if ch.Cancelled() {
		return false
	}
	charged, known := ch.locally(retry)
	if known {
		go ch.complete(charged, exchange.Outcome{})
	}
	return known
}

// Done completes the charge.
func (ch *charge) Done(o exchange.Outcome) {
	charged := ch.reply
	if o.Err != nil {
		charged = nil
		if o.Away {
			charged, _ = ch.locally(o.Retry)
		}
		o.Err = ofMember(o.Err, &ch.failed)
	}
	ch.complete(charged, o)
}

// locally counts the permits in the process. It fails unless each limiter has WithFallback and a
// rate that is known.
func (ch *charge) locally(retry time.Duration) ([]protocol.Charged, bool) {
	locals, permits := make([]*fallback.Limiter, len(ch.limiters)), make([]int64, len(ch.limiters))
	most := make([]int64, len(ch.limiters))
	for i, l := range ch.limiters {
		if !l.Settings.FallsBack {
			return nil, false
		}
		locals[i], permits[i], most[i] = &l.Local, ch.request.Parts[i].Permits, l.Settings.MaxDebt
	}
	return ch.client.Local.Charge(locals, permits, most, ch.client.Clock(), retry)
}

// complete ends the charge with a reply of Redis or of the process; nil if there is none.
func (ch *charge) complete(charged []protocol.Charged, o exchange.Outcome) {
	ch.resume()
	err := o.Err
	if charged != nil {
		err = nil
	}
	for i, l := range ch.limiters {
		info := l.CallInfo(&ch.call, time.Now(), o.Err)
		if charged != nil {
			of := &charged[i]
			info.Noted(of.Notes)
			info.Permits.Charged = of.Counted
			if !info.Fallback {
				ch.saw(i, of)
			}
		}
		ch.client.Observe(info)
	}
	ch.done <- chargeOutcome{charged, err}
}

// resume lets batches take leases of the limiters again.
func (ch *charge) resume() {
	for _, resume := range ch.resumes {
		resume()
	}
}

// saw keeps what a reply of Redis says about a limiter. Its waiting callers ask again, since their
// permits return later. If no permit is free, the deny cache knows when one is.
func (ch *charge) saw(i int, of *protocol.Charged) {
	l := ch.limiters[i]
	l.Saw(of.Rate, of.Interval, max(0, of.Free), of.Notes, ch.request.Parts[i].Check)
	if of.Notes.Has(protocol.RebuildPending) {
		l.queues.FoundPending()
	}
	if of.Counted == 0 {
		return
	}
	l.wake()
	s := &l.Settings
	if s.DenyCache == 0 || of.RetryAfter == 0 || s.Enforced && of.Notes.Has(protocol.RateMismatch) {
		return
	}
	now := l.Clock()
	since := now
	if !s.ServerTime {
		since = time.UnixMicro(of.Now)
	}
	l.Remember(denycache.Refusal{
		N: 1, Limit: of.Rate, Interval: of.Interval,
		Free: since.Add(of.RetryAfter), Next: since.Add(of.NextAfter), Reset: since.Add(of.ResetAfter),
	}, now, ch.denials)
}
