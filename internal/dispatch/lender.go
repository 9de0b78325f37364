package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/lease"
)

// lender.go ends the leases of a client: when their time is over, and before the client changes
// their limiter. It gives back what is unused.

// A lender is the part of it that all queues of a client share.
type lender struct {
	used    atomic.Bool  // some limiter has leases
	ledgers atomic.Int64 // those that have one

	mu       sync.Mutex     // guards the fields below; no other lock is taken meanwhile
	changing map[string]int // changes under way, by the configuration key of their limiter
	// for one of a few goroutines: many leases end at once, and their calls must not take all
	// connections
	waiting  []giveBack
	workers  int         // those goroutines
	timer    *time.Timer // calls Client.sweep
	sweepsAt time.Time   // when it does; zero: the timer is not set
}

// A giveBack is permits of a lease that are to be given back.
type giveBack struct {
	queue *queue
	back  lease.Back
}

// mostGivingBack is how many goroutines give back permits at once.
const mostGivingBack = 8

// giveBackLater gives back permits in the background. If very many leases wait for that, it does
// nothing and returns false.
func (q *queue) giveBackLater(back lease.Back) bool {
	l := &q.client.lender
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == lease.MaxLeases {
		return false
	}
	l.waiting = append(l.waiting, giveBack{q, back})
	if l.workers < mostGivingBack {
		l.workers++
		go l.work()
	}
	return true
}

// work gives back what waits, until nothing does.
func (l *lender) work() {
	for {
		next, ok := l.next()
		if !ok {
			return
		}
		if q := next.queue; q.ledger.Start(next.back) {
			q.giveBack(next.back)
		} else {
			q.mu.Lock()
			q.exit()
		}
	}
}

// next returns what a worker gives back next; false: the worker ends.
func (l *lender) next() (next giveBack, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.waiting = nil
		l.workers--
		return next, false
	}
	next = l.waiting[0]
	l.waiting = l.waiting[1:]
	return next, true
}

// giveBack gives back permits of a lease, after Ledger.Start or Ledger.Change.
func (q *queue) giveBack(back lease.Back) {
	returned, _ := q.limiter.release(context.Background(), back.Permits, back.At)
	q.ledger.Done(back, returned)
	q.mu.Lock()
	q.exit()
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
		unused, done := q.ledger.Change()
		for _, back := range unused {
			go q.giveBack(back)
		}
		if done != nil {
			givenBack = append(givenBack, done)
		}
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
		n += q.ledger.Held(l.client.times(q.limiter.settings.ServerTime))
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

// sweepAfter calls sweep after some time, or earlier.
func (l *lender) sweepAfter(d time.Duration, sweep func()) {
	at := time.Now().Add(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.sweepsAt.IsZero() && !at.Before(l.sweepsAt):
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(d, sweep)
	default:
		l.timer.Reset(d)
	}
	l.sweepsAt = at
}

// sweep ends the leases that are over, and calls itself again while there are any.
func (c *Client) sweep() {
	c.lender.mu.Lock()
	c.lender.sweepsAt = time.Time{}
	c.lender.mu.Unlock()
	var after time.Duration
	for _, q := range c.registry.list(func(l *Limiter) bool { return l.settings.Lease > 0 }) {
		if !q.ledger.Holds() {
			continue
		}
		ends := q.ledger.Sweep(c.times(q.limiter.settings.ServerTime))
		if ends == 0 {
			q.mu.Lock()
			q.exit()
		} else if after == 0 || ends < after {
			after = ends
		}
	}
	if after > 0 {
		c.lender.sweepAfter(after, c.sweep)
	}
}
