package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/localgrant"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// AllowAll asks all limiters in one script for permits: all of them grant, or none does. It tells the observer about
// each of them. If it fails because of one limiter, failed is the index of that, else -1.
func (c *Client) AllowAll(ctx context.Context, permits []int64, limiters []*Limiter) (results []Result, failed int, err error) {
	started := time.Now()
	t := together{notes: make([]protocol.Notes, len(limiters)), refused: make([]bool, len(limiters))}
	results, failed, err = c.askTogether(ctx, permits, limiters, &t)
	if c.observe == nil || !t.asked {
		return results, failed, err
	}
	latency := time.Since(started)
	for i, l := range limiters {
		info := Call{
			Limiter: l.name, Callers: 1, Latency: latency, Attempts: t.attempts, Repaired: t.notes[i].Repaired(),
			RateMismatch: t.notes[i].Has(protocol.RateMismatch), Fallback: t.notes[i].Has(protocol.Local), Err: cmp.Or(err, t.cause),
		}
		if err == nil && results[i].Allowed {
			info.Granted, info.Permits = 1, permits[i]
		} else if t.refused[i] || err != nil && !errors.Is(err, ErrExceedsRate) {
			info.Denied = 1
		}
		c.observe(info)
	}
	return results, failed, err
}

// A together collects, for the observer, what happened to limiters that were asked in one script.
type together struct {
	asked    bool // a call was made, or decided locally
	attempts int
	notes    []protocol.Notes // of each limiter
	refused  []bool           // whether each limiter refused
	cause    error            // why Redis did not answer, if the process decided
}

// askTogether runs allowall.lua until it is no longer stopped by expired records or by another rate than an enforced
// one.
func (c *Client) askTogether(
	ctx context.Context, permits []int64, limiters []*Limiter, t *together,
) (results []Result, failed int, err error) {
	var all []string
	wanted := make([]protocol.Wanted, len(limiters))
	for i, l := range limiters {
		all = append(all, l.Keys()...)
		wanted[i] = protocol.Wanted{Encoder: &l.encoder, N: permits[i]}
	}
	for {
		for i, l := range limiters {
			wanted[i].Check = l.unchecked()
		}
		if err := ctx.Err(); err != nil {
			return nil, -1, err
		}
		t.asked = true
		var decide func(time.Duration) (decided, bool)
		if canDecide(limiters...) {
			decide = func(retry time.Duration) (decided, bool) {
				locals := make([]*localgrant.Limiter, len(limiters))
				for i, l := range limiters {
					locals[i] = &l.local
				}
				local, known := c.localLimiters.DecideAll(locals, permits, c.clock(), retry)
				return decided{decisions: local}, known
			}
		}
		sent := &script.Attempts{NoRetryIfUnsent: decide != nil}
		d, cause, err := reach(ctx, limiters[0], func(ctx context.Context) (decided, error) {
			return c.doAllWithRetry(ctx, sent, protocol.NewAllowAll(slices.Clone(wanted)), all)
		}, decide)
		t.attempts += sent.Count()
		if err, t.cause = sent.Outcome(err), sent.Outcome(cause); err != nil {
			return nil, -1, err
		}
		if err := d.fault; err != nil {
			l := limiters[d.failed]
			if errors.Is(err, protocol.ErrOtherRate) {
				wanted[d.failed].Sets++
				_, err = within(ctx, l, func(ctx context.Context) (bool, error) { return true, l.enforce(ctx) })
			}
			if err != nil {
				return nil, d.failed, err
			}
			continue
		}
		results, failed = make([]Result, len(limiters)), -1
		again, allowed := false, true
		for i, l := range limiters {
			one := d.decisions[i]
			wanted[i].Rebuild = one.Notes.Has(protocol.RebuildPending)
			if t.notes[i] |= one.Notes; !one.Notes.Has(protocol.Local) {
				l.learn(one.Rate, one.Interval)
				l.saw(one.Rate, one.Interval, one.Notes, wanted[i].Check)
			}
			if one.Exceeds && failed < 0 {
				failed = i
			}
			t.refused[i] = !one.Granted
			allowed = allowed && one.Granted
			again = again || !one.Granted && !one.Exceeds && one.Notes.Has(protocol.More)
			results[i] = Result{Limit: one.Rate, Remaining: one.Free, RetryAfter: one.RetryAfter, ResetAfter: one.ResetAfter}
		}
		if failed >= 0 {
			return nil, failed, ErrExceedsRate
		}
		if again {
			continue
		}
		for i := range results {
			results[i].Allowed = allowed
		}
		return results, -1, nil
	}
}

// A decided is the reply to a request for several limiters.
type decided struct {
	decisions []protocol.Decision
	failed    int   // index of the limiter that cannot be decided
	fault     error // why
}

// doAllWithRetry runs allowall.lua until there is a final reply or error. All attempts have the same record ids, and
// each has its own time.
func (c *Client) doAllWithRetry(
	ctx context.Context, t *script.Attempts, request *protocol.AllowAll, all []string,
) (d decided, err error) {
	var reply []int64
	err = c.topology.Retry(ctx, t, request.Findable(), func() (err error) {
		reply, err = c.topology.Try(ctx, t, protocol.AllowAllScript, all, request.Args(t.MaybeExecuted())...)
		return err
	})
	if err == nil {
		d.decisions, d.failed, d.fault = request.Reply(reply)
	}
	return d, err
}

// giveBack waits for the reply to a request whose caller's context ended, and gives back what it was granted.
func (l *Limiter) giveBack(r *request) {
	<-r.done
	if r.result.Allowed {
		_ = l.Undo(context.Background(), r.N, *r.Source)
	}
	l.client.recycle(r)
}

// Undo gives back n permits with the score of one grant, so that permits granted at other times return when they would
// have. Permits that expired or were released already are not given back again.
func (l *Limiter) Undo(ctx context.Context, n int64, from Source) error {
	if from.Local {
		l.client.localLimiters.Untake(&l.local, n)
		return nil
	}
	_, err := l.Release(ctx, n, from.At)
	return err
}
