package dispatch

import (
	"slices"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/breaker"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// inspect.go tells what goes on in a client.

// queues returns the queues of the chosen limiters, and of sets with one of them.
func (c *Client) queues(chosen func(*Limiter) bool) []*queue {
	return append(
		c.registry.list(chosen),
		c.sets.list(func(q *queue) bool { return slices.ContainsFunc(q.limiters, chosen) })...)
}

// Waiting returns the number of callers blocked now, by the names of their limiters.
func (c *Client) Waiting() map[string]int {
	waiting := map[string]int{}
	for _, q := range c.queues(func(*Limiter) bool { return true }) {
		q.look(func(s *schedule.Queue) {
			if n := s.Waiting(); n > 0 {
				for _, l := range q.limiters {
					waiting[l.name] += n
				}
			}
		})
	}
	return waiting
}

// Activity is what goes on in a client at one time.
type Activity struct {
	Waiting  int  // waiting callers, including those whose call is in flight
	InFlight bool // a call is in flight, or about to be sent
	// by the last replies, the time until the first waiting caller is served; 0: no caller waits
	Next time.Duration
}

// Look returns what goes on now on the limiters with a name; "" means all limiters.
func (c *Client) Look(limiter string) (calls Activity) {
	for _, q := range c.queues(func(l *Limiter) bool { return limiter == "" || l.name == limiter }) {
		q.look(func(s *schedule.Queue) {
			calls.Waiting += s.Waiting()
			calls.InFlight = calls.InFlight || s.Active()
			if wait, known := s.RetryAfter(); known && (calls.Next == 0 || wait < calls.Next) {
				calls.Next = wait
			}
		})
	}
	return calls
}

// silence returns for how long the last batch sent for l has had no reply; 0 if it has one, or is
// detached and has no waiting caller.
func (l *Limiter) silence() time.Duration {
	q := l.queue.Load()
	if q == nil {
		return 0
	}
	var since time.Time
	q.look(func(s *schedule.Queue) { since = s.Unanswered() })
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}

// An Inspection is what a client holds at one time, for tests.
type Inspection struct {
	Queues        int  // in the registry, and of sets
	Busy          int  // of them, those that a caller or a batch uses
	Waiting       int  // waiting callers in all queues
	Asking        int  // callers in all queues that do not wait, and whose call was not sent yet
	StrayTimers   int  // timers of queues without waiting callers; Inspect stops them
	Leases        int  // queues that hold permits ahead of demand
	Recounting    bool // the records of a limiter are added up in the background
	InFlight      int  // runs of the pipeline to the server that hold a slot
	Stalled       int  // runs of it that released theirs
	Queued        int  // batches that wait for a slot in it
	LocalLimiters int  // limiters for which a rate or local grants are stored
}

// Inspect returns what the client holds.
func (c *Client) Inspect() (i Inspection) {
	for _, q := range c.queues(func(*Limiter) bool { return true }) {
		q.look(func(s *schedule.Queue) {
			i.Queues++
			i.Waiting += s.Waiting()
			i.Asking += s.Trying()
			if !s.Idle() {
				i.Busy++
			}
			if s.Waiting() == 0 && !s.Ledger().Holds() && q.timer != nil && q.timer.Stop() {
				i.StrayTimers++
				q.timerAt = time.Time{}
			}
		})
	}
	i.InFlight, i.Stalled, i.Queued = c.exchange.Load()
	i.Leases = int(c.lender.holding.Load())
	i.Recounting = c.checks.Recounts() > 0
	i.LocalLimiters = c.localLimiters.Size()
	return i
}

// HasQueue reports whether the limiter refers to a queue.
func (l *Limiter) HasQueue() bool { return l.queue.Load() != nil }

// Breaker returns the breaker of the pipeline to the server, for tests.
func (c *Client) Breaker() *breaker.Breaker { return c.exchange.ServerBreaker() }
