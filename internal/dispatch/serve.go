package dispatch

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// serve.go answers the requests of callers.

// Serve answers a request: from a lease, which it reports, from the deny cache, or by a call that
// it shares with other callers.
func (l *Limiter) Serve(ctx context.Context, a *Ask) (result Result, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return Result{}, false, err
	}
	if l.settings.Lease > 0 {
		if result, from := l.fromLease(a.N, a.Detail, a.Sources); from.lease != nil {
			return result, true, nil
		}
	}
	cached := !a.Waits && !a.Fresh && l.settings.DenyCache > 0
	if cached {
		if result, known := l.fromDenyCache(a.N); known != nil {
			if known.Hit()%answersInARow == 0 {
				runtime.Gosched()
			}
			return result, false, nil
		}
	}
	r := l.client.newRequest(ctx, a, schedule.Try)
	r.Detail = r.Detail || cached // a refusal is stored with its times
	if a.Waits {
		l.client.waits(ctx, r)
	}
	var instalments *schedule.Instalments // r is recycled at the end
	if a.Waits && a.Until.IsZero() && l.settings.Instalments {
		instalments = new(schedule.Instalments)
		r.Instalments = instalments
	}
	outcome, err := l.join(ctx, r)
	if instalments != nil {
		a.Taken = instalments.Taken
	}
	return outcome.First.Result, false, err
}

// waits makes a request one that waits, at most until ctx ends.
func (c *Client) waits(ctx context.Context, r *request) {
	r.Kind = schedule.Wait
	if deadline, ok := ctx.Deadline(); ok {
		if end := c.Clock().Add(time.Until(deadline)); r.End.IsZero() || end.Before(r.End) {
			r.End = end
		}
	}
}

// fromDenyCache returns the refusal in the deny cache that holds for a request, and the result that
// it gives; nil if there is none.
func (l *Limiter) fromDenyCache(n int64) (Result, *denycache.Refusal) {
	now := l.client.Clock()
	known := l.client.denyCache.Find(l.Key(), n, now, l.enforced)
	if known == nil {
		return Result{}, nil
	}
	result := Result{
		Limit: known.Limit, Remaining: known.Left, RetryAfter: known.Free.Sub(now), NextAfter: known.Next.Sub(now),
		ResetAfter: known.Reset.Sub(now),
	}
	if result.NextAfter <= 0 { // a permit has returned, and it is not known when the one after it does
		result.NextAfter = result.RetryAfter
	}
	return result, known
}

// UpTo takes as many permits as are free now, at most n, and returns how many it took. While
// callers wait, none are free. sources has one, which is filled in with a grant; nil: it is not
// needed.
func (l *Limiter) UpTo(ctx context.Context, n int64, sources []Source) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	outcome, err := l.join(ctx, l.client.newRequest(ctx, &Ask{N: n, Sources: sources}, schedule.UpTo))
	return outcome.Taken, err
}

// join adds a request to the queue of its limiter and returns its outcome. It blocks until that is
// known, the timeout of the request is over (the zero Outcome) or ctx ends.
func (l *Limiter) join(ctx context.Context, r *request) (schedule.Outcome, error) {
	return l.client.enter(l).serve(ctx, r)
}

// serve adds a request to the queue, which it unlocks, and returns its outcome.
func (q *queue) serve(ctx context.Context, r *request) (schedule.Outcome, error) {
	if r.Kind == schedule.Wait {
		q.client.waiting.Add(1)
	}
	if q.schedule.Join(&r.Request); r.Settled() { // it is in no batch
		r.done <- struct{}{}
	}
	q.exitFor(ctx, r)
	outcome, err := q.await(ctx, r)
	return outcome, q.client.forCaller(ctx, err)
}

// forCaller returns the error of a request for its caller, whose context may have ended meanwhile.
func (c *Client) forCaller(ctx context.Context, err error) error {
	if errors.Is(err, script.ErrUnavailable) {
		return script.Failure(ctx, c.exchange.Timeout(), err)
	}
	return err
}

// await returns the outcome of a request.
func (q *queue) await(ctx context.Context, r *request) (schedule.Outcome, error) {
	var over <-chan time.Time
	if !r.Until.IsZero() {
		timer := time.NewTimer(r.Until.Sub(q.client.Clock()))
		defer timer.Stop()
		over = timer.C
	}
	for {
		select {
		case <-r.done:
			outcome := r.Outcome
			q.client.recycle(r)
			return outcome, outcome.Err
		case <-ctx.Done():
			return q.abandon(r, ctx.Err())
		case <-over:
			if q.giveUp(r) {
				return schedule.Outcome{}, nil
			}
		}
	}
}

// abandon ends r because its caller's context ended, unless r is settled. If r is in flight, the
// error wraps ErrOutcomeUnknown, too; if its permits can be given back (sources), that happens in
// the background after the reply.
func (q *queue) abandon(r *request, cause error) (outcome schedule.Outcome, err error) {
	q.event(func(*schedule.Queue) {
		switch {
		case r.Settled():
			outcome, err = r.Outcome, r.Outcome.Err
			return
		case r.InFlight():
			cause = script.Unknown(cause)
		}
		if err = cause; r.InFlight() && r.sources != nil {
			go q.undo(r)
			return
		}
		q.leave(r)
	})
	return outcome, err
}

// giveUp ends r because its timeout is over, and reports whether it did. A request that is in
// flight stays: the reply comes soon, and settles it. If its last call is due and the timer of the
// queue is late, that call is sent now.
func (q *queue) giveUp(r *request) (ended bool) {
	q.event(func(s *schedule.Queue) { s.Expire(&r.Request) })
	q.event(func(*schedule.Queue) {
		if ended = !r.Settled() && !r.InFlight(); ended {
			q.leave(r)
		}
	})
	return ended
}

// leave removes r without an outcome. The queue is locked.
func (q *queue) leave(r *request) {
	if carrier := q.schedule.Leave(&r.Request); carrier != nil {
		carrier.Owner.(*batch).present.Add(-1)
	}
	if r.Kind == schedule.Wait {
		q.client.waiting.Add(-1)
	}
}

// stalled lets the queue send its next batch before b, which takes too long, is complete. It does
// nothing once the call timeout of b is over: b is then completed at once, and may fail the
// requests queued behind it.
func (q *queue) stalled(b *batch) {
	q.event(func(s *schedule.Queue) {
		if b.call.InTime() {
			s.Stalled(q.client.now(), &b.Batch)
		}
	})
}
