package dispatch

import (
	"context"
	"runtime"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// serve.go answers the requests of callers.

// An Ask holds the parameters of one caller's request.
type Ask struct {
	N int64 // permits; of a set, they are an argument of ServeAll
	// the result has NextAfter, ResetAfter, and RetryAfter even if the caller does not wait
	Detail  bool
	Fresh   bool      // the deny cache does not answer
	Waits   bool      // the request stays queued until it is granted
	Until   time.Time // the end of the caller's timeout, by the client's clock; zero: none
	Sources []Source  // of the limiters, filled in with a grant; nil: not needed
	Taken   int64     // filled in, if a request that waits may take instalments: permits that it took
}

// A Source tells where granted permits came from, so that they can be given back.
type Source struct {
	Local bool  // granted by this process, not by Redis
	At    int64 // score of the record, or when the process granted, µs
}

// A request is an Ask under way. It is guarded by queue.mu until a value arrives in done; from then
// on it belongs to the caller.
type request struct {
	schedule.Request
	ctx     context.Context // of the caller
	done    chan struct{}   // of capacity 1: one value is sent to it, when the request is settled
	sources []Source        // of the limiters, filled in with a grant; nil: not needed
}

// newRequest returns a request for a. If it waits, it does so at most until ctx ends. The pool
// belongs to the client and is not global: a channel belongs to the synctest bubble of one test, as
// a client does.
func (c *Client) newRequest(ctx context.Context, a *Ask, kind schedule.Kind) *request {
	r, ok := c.requests.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.Request = schedule.Request{
		Permits: protocol.Permits{First: a.N}, Kind: kind, Detail: a.Detail, Next: a.Detail, Until: a.Until,
		End: a.Until, Owner: r,
	}
	r.ctx, r.sources = ctx, a.Sources
	if a.Waits {
		r.Kind = schedule.Wait
		if deadline, ok := ctx.Deadline(); ok {
			if end := c.Clock().Add(time.Until(deadline)); r.End.IsZero() || end.Before(r.End) {
				r.End = end
			}
		}
	}
	return r
}

// recycle returns r to the pool. Its caller must have received from done.
func (c *Client) recycle(r *request) {
	*r = request{done: r.done}
	c.requests.Put(r)
}

// Serve answers a request: from a lease, which it reports, from the deny cache, or by a call that
// it shares with other callers.
func (l *Limiter) Serve(ctx context.Context, a *Ask) (result Result, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return Result{}, false, err
	}
	if l.Settings.Lease > 0 {
		if result, from := l.fromLease(a.N, a.Detail, a.Sources); from.lease != nil {
			return result, true, nil
		}
	}
	cached := !a.Waits && !a.Fresh && l.Settings.DenyCache > 0
	if cached {
		if result, known := l.Refusal(a.N); known != nil {
			if known.Hit()%answersInARow == 0 {
				runtime.Gosched()
			}
			return result, false, nil
		}
	}
	r := l.client.newRequest(ctx, a, schedule.Try)
	r.Detail = r.Detail || cached         // a refusal is stored with its times
	var instalments *schedule.Instalments // r is recycled at the end
	if a.Waits && a.Until.IsZero() && l.Settings.Instalments {
		instalments = new(schedule.Instalments)
		r.Instalments = instalments
	}
	outcome, err := l.client.enter(l).serve(ctx, r)
	if instalments != nil {
		a.Taken = instalments.Taken
	}
	return outcome.First.Result, false, err
}

// UpTo takes as many permits as are free now, at most n, and returns how many it took. While
// callers wait, none are free. sources has one, which is filled in with a grant; nil: it is not
// needed.
func (l *Limiter) UpTo(ctx context.Context, n int64, sources []Source) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	outcome, err := l.client.enter(l).serve(ctx, l.client.newRequest(ctx, &Ask{N: n, Sources: sources}, schedule.UpTo))
	return outcome.Taken, err
}

// serve adds a request to the queue, which it unlocks, and returns its outcome. It blocks until
// that is known, the timeout of the request is over (the zero Outcome) or ctx ends.
func (q *queue) serve(ctx context.Context, r *request) (schedule.Outcome, error) {
	if r.Kind == schedule.Wait {
		q.client.Blocked.Add(1)
	}
	if q.schedule.Join(&r.Request); r.Settled() { // it is in no batch
		r.done <- struct{}{}
	}
	q.exitFor(ctx, r)
	outcome, err := q.await(ctx, r)
	return outcome, q.client.ForCaller(ctx, err)
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
			return q.abandon(ctx, r)
		case <-over:
			if q.giveUp(r) {
				return schedule.Outcome{}, nil
			}
		}
	}
}

// abandon ends r because its caller's context ended, unless r is settled. If r is in flight, the
// error wraps ErrOutcomeUnknown, too.
func (q *queue) abandon(ctx context.Context, r *request) (outcome schedule.Outcome, err error) {
	q.event(func(*schedule.Queue) {
		if r.Settled() {
			outcome, err = r.Outcome, r.Outcome.Err
			return
		}
		if err = ctx.Err(); r.InFlight() {
			err = script.Unknown(err)
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

// leave removes r without an outcome. The queue is locked. If r is in flight, what it is granted
// goes to the requests behind it. If its permits can be given back (sources), the rest is given
// back.
func (q *queue) leave(r *request) {
	if carrier := q.schedule.Leave(&r.Request); carrier != nil {
		b := carrier.Owner.(*batch)
		b.present.Add(-1)
		b.returns = b.returns || r.sources != nil
	}
	if r.Kind == schedule.Wait {
		q.client.Blocked.Add(-1)
	}
}
