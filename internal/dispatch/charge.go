package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/localgrant"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
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
	left     atomic.Bool   // the caller has left
	denials  int64         // denyCache.Changes when it was sent
	ends     []func(error) // of the changes that have begun
	done     chan chargeOutcome
}

// A chargeOutcome is how a charge has ended.
type chargeOutcome struct {
	charged []protocol.Charged
	err     error
}

// Charge counts permits[i] at limiters[i], by one script. There are as many results as limiters,
// each with the number of permits that were counted. An error about one limiter is a
// schedule.MemberError. leased reports whether permits of leases were used, without a call.
func (c *Client) Charge(
	ctx context.Context, permits []int64, limiters []*Limiter,
) (results []Result, counted []int64, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, false, err
	}
	if results, ok := c.allFromLeases(permits, limiters, nil); ok {
		return results, permits, true, nil
	}
	ch := c.newCharge(ctx, permits, limiters)
	if err := ctx.Err(); err != nil { // it may have ended while leases were given back
		ch.end(err)
		return nil, nil, false, err
	}
	c.exchange.Send(&ch.call, false)
	var o chargeOutcome
	select {
	case o = <-ch.done:
	case <-ctx.Done():
		ch.left.Store(true)
		return nil, nil, false, script.Unknown(ctx.Err())
	}
	if o.err != nil {
		return nil, nil, false, c.forCaller(ctx, o.err)
	}
	for i := range o.charged {
		of := &o.charged[i]
		counted = append(counted, of.Counted)
		results = append(results, Result{
			Allowed: of.Free+of.Counted > 0, Limit: of.Rate, Remaining: max(0, of.Free),
			RetryAfter: of.RetryAfter, NextAfter: of.NextAfter, ResetAfter: of.ResetAfter,
		})
	}
	return results, counted, false, nil
}

// newCharge returns a charge that is to be sent. Leases of this client that do not cover it end
// before: what they hold is free then, and goes first.
func (c *Client) newCharge(ctx context.Context, permits []int64, limiters []*Limiter) *charge {
	ch := &charge{client: c, limiters: limiters, failed: -1, done: make(chan chargeOutcome, 1)}
	targets := make([]exchange.Target, len(limiters))
	ch.request.Parts = make([]protocol.ChargePart, len(limiters))
	for i, l := range limiters {
		targets[i] = l
		check, _ := l.unchecked()
		ch.request.Parts[i] = protocol.ChargePart{Encoder: &l.encoder, Permits: permits[i], Check: check}
		ch.ends = append(ch.ends, l.changing(ctx, func(error) {}))
	}
	ch.denials = c.denyCache.Changes()
	ch.call.Begin(c.exchange, ch, ch, targets)
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
	return ch.limiters[ch.failed].enforce(ctx)
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
	locals, permits := make([]*localgrant.Limiter, len(ch.limiters)), make([]int64, len(ch.limiters))
	most := make([]int64, len(ch.limiters))
	for i, l := range ch.limiters {
		if !l.settings.FallsBack {
			return nil, false
		}
		locals[i], permits[i], most[i] = &l.local, ch.request.Parts[i].Permits, l.settings.MaxDebt
	}
	return ch.client.localLimiters.Charge(locals, permits, most, ch.client.Clock(), retry)
}

// complete ends the charge with a reply of Redis or of the process; nil if there is none.
func (ch *charge) complete(charged []protocol.Charged, o exchange.Outcome) {
	err := o.Err
	if charged != nil {
		err = nil
	}
	ch.end(err)
	for i, l := range ch.limiters {
		call := Call{Limiter: l.name, Latency: time.Since(ch.call.Started()), Attempts: ch.call.Attempts(), Err: o.Err}
		if charged != nil {
			of := &charged[i]
			call.Charged, call.Fallback = of.Counted, of.Notes.Has(protocol.Local)
			if !call.Fallback {
				call.Repaired, call.RateMismatch = of.Notes.Repaired(), of.Notes.Has(protocol.RateMismatch)
				ch.saw(i, of)
			}
		}
		if observe := ch.client.config.Observe; observe != nil {
			observe(call)
		}
	}
	ch.done <- chargeOutcome{charged, err}
}

// end ends the changes of the limiters.
func (ch *charge) end(err error) {
	for _, end := range ch.ends {
		end(err)
	}
}

// saw keeps what a reply of Redis says about a limiter. Its waiting callers ask again, since their
// permits return later. If no permit is free, the deny cache knows when one is.
func (ch *charge) saw(i int, of *protocol.Charged) {
	l, c := ch.limiters[i], ch.client
	l.learn(of.Rate, of.Interval)
	l.saw(of.Rate, of.Interval, max(0, of.Free), of.Notes, ch.request.Parts[i].Check)
	if of.Notes.Has(protocol.RebuildPending) {
		l.event(func(q *queue) { q.schedule.FoundPending() })
	}
	if of.Counted == 0 {
		return
	}
	c.wakeChosen(func(other *Limiter) bool { return other.Key() == l.Key() })
	s := &l.settings
	if s.DenyCache == 0 || of.RetryAfter == 0 || s.Enforced && of.Notes.Has(protocol.RateMismatch) {
		return
	}
	now := c.Clock()
	since := now
	if !s.ServerTime {
		since = time.UnixMicro(of.Now)
	}
	c.denyCache.Add(s.DenyCache, l.Key(), denycache.Refusal{
		N: 1, Limit: of.Rate, Interval: of.Interval, Enforced: l.enforced,
		Free: since.Add(of.RetryAfter), Next: since.Add(of.NextAfter), Reset: since.Add(of.ResetAfter),
	}, now, ch.denials)
}
