package dispatch

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/exchange"
	"github.com/rratelimiter/rratelimiter/internal/exchange/pipeline"
	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// queue.go guards the schedule of each limiter, or set, with a lock, drives it with a timer, and
// does what it says. No other file locks a queue.

// A queue holds all current callers of one limiter in this process, or of one set of limiters that
// grant together. Limiters of a client with the same name and settings share one queue, and sets of
// such limiters another one.
type queue struct {
	client   *Client
	limiters []*Limiter        // those that are asked together, mostly one
	targets  []exchange.Target // the same
	table    table             // in which it is found
	ledger   *lease.Ledger     // of the schedule: for Holds and Grant, without the lock

	mu       sync.Mutex // guards the fields below
	schedule *schedule.Queue
	// closed once no permits of leases are being given back; nil: nobody waits for that
	returned          chan struct{}
	alarm             alarm
	grants            protocol.RecentIDs // of the latest grants, if their records may be joined
	redissonCheckedAt time.Time          // when the server was last asked whether Redisson uses it
	parked            bool               // its table was told that it is idle
	dropped           bool               // no longer in its table: a caller must enter again
}

// A table holds queues.
type table interface {
	idle(q *queue)           // q is idle, or was just now
	body(b *batch) batchBody // which of its bodies the call of a batch has
}

// newQueue returns a queue with the settings that follow from its limiters, and others that are
// given.
func newQueue(t table, s schedule.Settings, limiters ...*Limiter) *queue {
	c := limiters[0].client
	q := &queue{client: c, limiters: limiters, table: t}
	s.Limiters, s.Linger, s.Identity = len(limiters), c.Linger, c.Identity()
	s.Jitter = func(d time.Duration) time.Duration { return rand.N(d) }
	s.Leaving = func(r *schedule.Request) bool { return r.Owner.(*request).ctx.Err() != nil }
	for _, l := range limiters {
		s.RecordPerRequest = s.RecordPerRequest || l.Settings.RecordPerRequest
		s.ServerTime = s.ServerTime || l.Settings.ServerTime
		s.FailFast = s.FailFast || l.Settings.FailFast
		q.targets = append(q.targets, l)
	}
	q.schedule = schedule.New(s)
	q.ledger = q.schedule.Ledger()
	return q
}

// event lets something happen to a queue, and then does what its schedule says: it sends batches,
// gives back permits, sets the timer, tells other queues, and tells its table if the queue is idle.
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

// event lets something happen to the queue of a limiter.
func (l *Limiter) event(happens func(q *queue)) {
	q := l.client.enter(l)
	happens(q)
	q.exit()
}

// look calls f with the queue of a limiter locked, and does nothing afterwards. Somebody uses the
// queue, or event follows: one that is idle would never be parked.
func (l *Limiter) look(f func(q *queue)) {
	q := l.client.enter(l)
	defer q.mu.Unlock()
	f(q)
}

// known returns the queue of a limiter, not locked; nil if there is none.
func (l *Limiter) known() *queue {
	q := l.client.find(l, false)
	if q != nil {
		q.mu.Unlock()
	}
	return q
}

// lock locks the queue, and reports whether it does: not if the queue was dropped.
func (q *queue) lock() bool {
	q.mu.Lock()
	if q.dropped {
		q.mu.Unlock()
		return false
	}
	return true
}

// drop takes the queue out of use if it is idle, and reports whether it is. Its table is locked, so
// that nobody enters it meanwhile.
func (q *queue) drop() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.parked = q.schedule.Idle()
	q.dropped = q.parked
	return q.dropped
}

// exit does what the schedule says after an event, and unlocks the queue.
func (q *queue) exit() { q.exitFor(context.Background(), nil) }

// exitFor is exit for the goroutine that waits for r until ctx ends: if the call to be made is for
// r alone, this goroutine makes it. If r is nil, it makes no call.
func (q *queue) exitFor(ctx context.Context, r *request) {
	if fx := q.exitAlone(ctx, r); len(fx.Tell)+len(fx.Outdated) > 0 {
		q.tell(&fx)
	}
}

// exitAlone is exitFor, but tells other queues nothing: it returns what they are to be told.
func (q *queue) exitAlone(ctx context.Context, r *request) schedule.Effects {
	var few [2]*schedule.Batch
	send, fx := q.schedule.Next(few[:0], q.client.Moment, q.open)
	if fx.Spare != nil {
		fx.Spare.Owner.(*batch).recycle()
	}
	for _, b := range send {
		q.begin(b.Owner.(*batch))
	}
	q.giveBackLater(fx.Leftovers)
	q.alarm.set(fx.Wake, q)
	parks := !q.parked && q.schedule.Idle()
	q.parked = q.parked || parks
	inline := r != nil && len(send) == 1 && send[0].Requests() == 1 && r.InFlight() && !hurried(ctx)
	q.mu.Unlock()
	for _, b := range send {
		q.client.Exchange.Send(&b.Owner.(*batch).call, inline)
	}
	if parks {
		q.table.idle(q)
	}
	return fx
}

// hurried reports whether a context ends so soon that its caller cannot make a call itself: it
// would notice the end too late.
func hurried(ctx context.Context) bool {
	deadline, bounded := ctx.Deadline()
	return bounded && time.Until(deadline) < pipeline.ShortestStall
}

// onAlarm lets the schedule look at the time.
func (q *queue) onAlarm() {
	q.mu.Lock()
	q.alarm.at = time.Time{}
	q.exit()
}

// An alarm is the timer of a queue. The lock of the queue guards it.
type alarm struct {
	timer *time.Timer // nil: it was never needed
	at    time.Time   // when it fires, by the monotonic clock; zero: it is not set
}

// set lets onAlarm of q be called at a time; zero: it is not called.
func (a *alarm) set(at time.Time, q *queue) {
	if at.Equal(a.at) {
		return
	}
	a.at = at
	switch {
	case at.IsZero():
		a.timer.Stop()
	case a.timer == nil:
		a.timer = time.AfterFunc(time.Until(at), q.onAlarm)
	default:
		a.timer.Reset(time.Until(at))
	}
}

// stop stops the timer, and reports whether it was set.
func (a *alarm) stop() bool {
	a.at = time.Time{}
	return a.timer != nil && a.timer.Stop()
}
