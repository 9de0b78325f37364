package dispatch

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/rratelimiter/rratelimiter/internal/lease"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// lender.go gives back what is unused of the leases of a client, and ends them before the client
// changes their limiter.

// A lender is the part of it that all queues of a client share.
type lender struct {
	used    atomic.Bool  // some limiter has leases
	holding atomic.Int64 // limiters that have one

	mu       sync.Mutex     // guards the fields below; no other lock is taken meanwhile
	changing map[string]int // changes under way, by the configuration key of their limiter
	// for one of a few goroutines: many leases end at once, and their calls must not take all
	// connections
	waiting []giveBack
	workers int // those goroutines
}

// A giveBack is permits of a lease that are to be given back.
type giveBack struct {
	queue *queue
	back  lease.Back
}

// mostGivingBack is how many goroutines give back permits at once.
const mostGivingBack = 8

// giveBackLater gives back, in the background, what is unused of leases of a queue.
func (l *lender) giveBackLater(q *queue, unused []lease.Back) {
	if len(unused) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, back := range unused {
		l.waiting = append(l.waiting, giveBack{q, back})
		if l.workers < mostGivingBack {
			l.workers++
			go l.work()
		}
	}
}

// work gives back what waits, until nothing does. If very many leases wait for that, their permits
// are not given back.
func (l *lender) work() {
	for {
		next, ok, many := l.next()
		if !ok {
			return
		}
		starts := false
		next.queue.event(func(s *schedule.Queue) { starts = s.Ledger().Start(next.back, many) })
		if starts {
			next.queue.giveBack(next.back)
		}
	}
}

// next returns what a worker gives back next, and whether many others wait; not ok: the worker
// ends.
func (l *lender) next() (next giveBack, ok, many bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.waiting = nil
		l.workers--
		return next, false, false
	}
	next = l.waiting[0]
	l.waiting = l.waiting[1:]
	return next, true, len(l.waiting) >= lease.MaxLeases
}

// giveBack gives back permits of a lease, after Ledger.Start or Ledger.Change.
func (q *queue) giveBack(back lease.Back) {
	returned, _ := q.limiters[0].release(context.Background(), back.Permits, back.At)
	q.event(func(s *schedule.Queue) {
		if s.Ledger().Done(back, returned); q.returned != nil && !s.Ledger().Returning() {
			close(q.returned)
			q.returned = nil
		}
	})
}

// changing begins a change of a limiter by this client, and returns what ends it, which is to be
// called in any case, with the error of the call. That then calls changed. A change may remove
// records, and afterwards one with the score of an earlier lease may hold permits granted to
// callers. So the leases of the limiter end, what is unused of them is given back before the
// change, and none is taken until it has ended. A batch that was sent before the change may bring a
// lease after it. That lease is not used: its record is gone, or counts until it expires.
func (l *Limiter) changing(ctx context.Context, changed func(error)) (end func(error)) {
	if ctx.Err() != nil {
		return changed // nothing is sent
	}
	l.client.lender.change(l.Key(), 1)
	var givenBack []<-chan struct{}
	for _, q := range l.leasing() {
		q.event(func(s *schedule.Queue) {
			for _, back := range s.Ledger().Change() {
				go q.giveBack(back)
			}
			if s.Ledger().Returning() {
				if q.returned == nil {
					q.returned = make(chan struct{})
				}
				givenBack = append(givenBack, q.returned)
			}
		})
	}
	for _, done := range givenBack {
		select {
		case <-done:
		case <-ctx.Done(): // so the change is not sent
		}
	}
	return func(err error) {
		l.client.lender.change(l.Key(), -1)
		changed(err)
	}
}

// change notes that a change of a limiter begins (1) or ends (-1).
func (l *lender) change(key string, by int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changing == nil {
		l.changing = map[string]int{}
	}
	if l.changing[key] += by; l.changing[key] == 0 {
		delete(l.changing, key)
	}
}

// changes reports whether a change of a limiter is under way.
func (l *lender) changes(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changing[key] > 0
}

// Leased returns how many permits this client holds ahead of demand for a limiter, whatever the
// options of its handles.
func (l *Limiter) Leased() (n int64) {
	for _, q := range l.leasing() {
		q.look(func(s *schedule.Queue) { n += s.Ledger().Held(l.client.now()) })
	}
	return n
}

// leasing returns the queues of a limiter that can have leases.
func (l *Limiter) leasing() []*queue {
	if !l.client.lender.used.Load() {
		return nil
	}
	return l.client.registry.list(func(other *Limiter) bool {
		return other.settings.Lease > 0 && other.Key() == l.Key()
	})
}
