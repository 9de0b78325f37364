package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
	"github.com/rratelimiter/rratelimiter/internal/script"
)

// queue.go guards the schedule of each limiter with a lock, drives it with a timer, and sends the
// batches that are due.

// A queue holds all current callers of one limiter in this process, or of one set of limiters that
// grant together. Limiters of a client with the same name and settings share one queue, and sets of
// such limiters another one.
type queue struct {
	client   *Client
	limiter  *Limiter          // the first one
	limiters []*Limiter        // those that are asked together, mostly one
	targets  []exchange.Target // the same
	set      uint64            // identifies the set; 0: the queue is of one limiter
	ledger   *lease.Ledger     // of the schedule: for Holds and Grant, without the lock

	mu       sync.Mutex // guards the fields below
	schedule *schedule.Queue
	// closed once no permits of leases are being given back; nil: nobody waits for that
	returned          chan struct{}
	timer             *time.Timer        // calls onTimer; nil: it was never needed
	timerAt           time.Time          // when it fires, by the monotonic clock; zero: it is not set
	grants            protocol.RecentIDs // of the latest grants, if the limiter has a granularity
	redissonCheckedAt time.Time          // when the server was last asked whether Redisson uses it
	parked            bool               // in registry.spare
	dropped           bool               // no longer in the registry: a caller must enter again
}

// newQueue returns the queue of a limiter or, if set is not 0, of a set of limiters.
func newQueue(set uint64, limiters ...*Limiter) *queue {
	c := limiters[0].client
	q := &queue{client: c, limiter: limiters[0], limiters: limiters, set: set}
	s := schedule.Settings{
		Limiters: len(limiters),
		Linger:   c.tuning.Linger,
		Identity: c.identity,
		Jitter:   func(d time.Duration) time.Duration { return rand.N(d) },
		Leaving:  func(r *schedule.Request) bool { return r.Owner.(*request).ctx.Err() != nil },
	}
	q.targets = make([]exchange.Target, 0, len(limiters))
	for _, l := range limiters {
		s.RecordPerRequest = s.RecordPerRequest || l.settings.RecordPerRequest
		s.Granularity = s.Granularity || set == 0 && l.settings.Bucket() > 0
		s.ServerTime = s.ServerTime || l.settings.ServerTime
		s.FailFast = s.FailFast || l.settings.FailFast
		q.targets = append(q.targets, l)
	}
	if set == 0 {
		s.Lease, s.Holding = q.limiter.settings.Lease, &c.lender.holding
		q.targets[0] = &queueTarget{Limiter: q.limiter}
	}
	q.schedule = schedule.New(s)
	q.ledger = q.schedule.Ledger()
	return q
}

// isSet reports whether the queue is of a set of limiters.
func (q *queue) isSet() bool { return q.set != 0 }

// event lets something happen to a queue, and then does what its schedule says: it sends batches,
// gives back permits, and sets the timer. An idle queue is parked; it is dropped once SpareQueues
// others were parked after it.
func (q *queue) event(happens func(s *schedule.Queue)) {
	q.mu.Lock()
	happens(q.schedule)
	q.exit()
}

// look calls f with the queue locked, and does nothing afterwards.
func (q *queue) look(f func(s *schedule.Queue)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f(q.schedule)
}

// exit is the end of event, for a queue that is locked.
func (q *queue) exit() { q.exitFor(context.Background(), nil) }

// exitFor is exit for the goroutine that waits for r until ctx ends. It makes the call itself, if
// that is for r alone; nil: it does not.
func (q *queue) exitFor(ctx context.Context, r *request) {
	var few [2]*schedule.Batch
	send, fx := q.schedule.Next(few[:0], q.client.now, q.open)
	if fx.Spare != nil {
		fx.Spare.Owner.(*batch).recycle()
	}
	for _, b := range send {
		q.begin(b.Owner.(*batch))
	}
	q.client.lender.giveBackLater(q, fx.Back)
	q.setTimer(fx.Wake)
	ends := !q.parked && q.schedule.Idle() // the queue of a set is never parked
	q.parked = q.parked || ends && !q.isSet()
	inline := r != nil && len(send) == 1 && send[0].Requests() == 1 && r.InFlight() && !hurried(ctx)
	q.mu.Unlock()
	for _, b := range send {
		q.client.exchange.Send(&b.Owner.(*batch).call, inline)
	}
	switch {
	case ends && q.isSet():
		q.client.sets.forget(q)
	case ends:
		q.client.registry.park(q)
	}
}

// setTimer sets the timer to when the schedule wakes.
func (q *queue) setTimer(at time.Time) {
	if at.Equal(q.timerAt) {
		return
	}
	q.timerAt = at
	switch {
	case at.IsZero():
		q.timer.Stop()
	case q.timer == nil:
		q.timer = time.AfterFunc(time.Until(at), q.onTimer)
	default:
		q.timer.Reset(time.Until(at))
	}
}

func (q *queue) onTimer() {
	q.mu.Lock()
	q.timerAt = time.Time{}
	q.exit()
}

// Serve answers a request: from a lease, which it reports, from the deny cache, or by a call that
// it shares with other callers.
func (l *Limiter) Serve(ctx context.Context, a *Ask) (result Result, leased bool, err error) {
	if err := ctx.Err(); err != nil {
		return Result{}, false, err
	}
	if l.settings.Lease > 0 {
		if result, from := l.fromLease(a.N, a.Detail, a.Source); from.lease != nil {
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
	return outcome.Result, false, err
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
// callers wait, none are free. source is filled in with a grant, unless it is nil.
func (l *Limiter) UpTo(ctx context.Context, n int64, source *Source) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	outcome, err := l.join(ctx, l.client.newRequest(ctx, &Ask{N: n, Source: source}, schedule.UpTo))
	return outcome.Taken, err
}

// join adds a request to the queue of its limiter and returns its outcome. It blocks until that is
// known, the timeout of the request is over (the zero Outcome) or ctx ends.
func (l *Limiter) join(ctx context.Context, r *request) (schedule.Outcome, error) {
	q := l.client.enter(l)
	if r.Kind == schedule.UpTo && (q.schedule.Waiting() > 0 || len(q.schedule.Reservations()) > 0) {
		q.exit()
		return schedule.Outcome{}, nil
	}
	return q.serve(ctx, r)
}

// serve adds a request to the queue, which it unlocks, and returns its outcome.
func (q *queue) serve(ctx context.Context, r *request) (schedule.Outcome, error) {
	if r.Kind == schedule.Wait {
		q.client.waiting.Add(1)
	}
	q.schedule.Join(&r.Request)
	q.exitFor(ctx, r)
	outcome, err := q.await(ctx, r)
	return outcome, q.client.forCaller(ctx, err)
}

// hurried reports whether a context ends so soon that its caller cannot make a call itself: it
// would notice the end too late.
func hurried(ctx context.Context) bool {
	deadline, bounded := ctx.Deadline()
	return bounded && time.Until(deadline) < pipeline.ShortestStall
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
// error wraps ErrOutcomeUnknown, too; if its permits can be given back (source), that happens in
// the background after the reply.
func (q *queue) abandon(r *request, cause error) (schedule.Outcome, error) {
	q.mu.Lock()
	switch {
	case r.Settled():
		defer q.exit()
		return r.Outcome, r.Outcome.Err
	case !r.InFlight():
	case r.source != nil || r.sources != nil:
		defer q.exit()
		go q.undo(r)
		return schedule.Outcome{}, script.Unknown(cause)
	default:
		cause = script.Unknown(cause)
	}
	q.leave(r)
	return schedule.Outcome{}, cause
}

// giveUp ends r because its timeout is over, and reports whether it did. A request that is in
// flight stays: the reply comes soon, and settles it. If its last call is due and the timer of the
// queue is late, that call is sent now.
func (q *queue) giveUp(r *request) (ended bool) {
	q.event(func(s *schedule.Queue) { s.Expire(&r.Request) })
	q.mu.Lock()
	if r.Settled() || r.InFlight() {
		q.exit()
		return false
	}
	q.leave(r)
	return true
}

// leave removes r without an outcome, and unlocks the queue. Requests of sets behind it may be
// served then.
func (q *queue) leave(r *request) {
	if carrier := q.schedule.Leave(&r.Request); carrier != nil {
		carrier.Owner.(*batch).present.Add(-1)
	}
	if r.Kind == schedule.Wait {
		q.client.waiting.Add(-1)
	}
	behind := q.setsBehind(nil)
	q.exit()
	r.unreserve(time.Time{})
	q.client.wakeSets(behind, (*schedule.Queue).Freed)
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
