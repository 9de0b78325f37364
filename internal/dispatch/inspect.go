package dispatch

import "github.com/rratelimiter/rratelimiter/internal/breaker"

// An Inspection is what a client holds at one time, for tests.
type Inspection struct {
	Queues        int  // in the registry
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
	for _, q := range c.registry.list(func(*Limiter) bool { return true }) {
		q.mu.Lock()
		i.Queues++
		i.Waiting += q.waiting
		i.Asking += len(q.trying)
		if !q.idle() {
			i.Busy++
		}
		if q.waiting == 0 && q.timer != nil && q.timer.Stop() {
			i.StrayTimers++
		}
		q.mu.Unlock()
	}
	i.InFlight, i.Stalled, i.Queued = c.exchange.Load()
	i.Leases = int(c.leases.Load())
	i.Recounting = c.checks.recounts() > 0
	i.LocalLimiters = c.localLimiters.Size()
	return i
}

// HasQueue reports whether the limiter refers to a queue.
func (l *Limiter) HasQueue() bool { return l.queue.Load() != nil }

// Breaker returns the breaker of the pipeline to the server, for tests.
func (c *Client) Breaker() *breaker.Breaker { return c.exchange.ServerBreaker() }
