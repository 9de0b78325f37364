package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/limiter"
	"github.com/rratelimiter/rratelimiter/internal/schedule"
)

// inspect.go tells what goes on in a client.

// queues returns the queues of the chosen limiters, and of sets with one of them.
func (c *Client) queues(chosen func(*limiter.Limiter) bool) []*queue {
	return append(list(&c.registry.mu, &c.registry.all, chosen), list(&c.sets.mu, &c.sets.all, chosen)...)
}

// list returns the queues in a table that have a chosen limiter. mu guards the table.
func list[K comparable](mu *sync.Mutex, all *map[K]*queue, chosen func(*limiter.Limiter) bool) (found []*queue) {
	mu.Lock()
	defer mu.Unlock()
	for _, q := range *all {
		if slices.ContainsFunc(q.limiters, func(l *Limiter) bool { return chosen(&l.Limiter) }) {
			found = append(found, q)
		}
	}
	return found
}

func every(*limiter.Limiter) bool { return true }

// Waiting returns the number of callers blocked now, by the names of their limiters.
func (c *Client) Waiting() map[string]int {
	waiting := map[string]int{}
	for _, q := range c.queues(every) {
		q.look(func(s *schedule.Queue) {
			if n := s.Waiting(); n > 0 {
				for _, l := range q.limiters {
					waiting[l.Name] += n
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
func (c *Client) Look(name string) (calls Activity) {
	for _, q := range c.queues(func(l *limiter.Limiter) bool { return name == "" || l.Name == name }) {
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

// An Inspection is what a client holds at one time, for tests.
type Inspection struct {
	limiter.Inspection
	Queues      int // in the registry, and of sets
	Busy        int // of them, those that a caller or a batch uses
	Waiting     int // waiting callers in all queues
	Asking      int // callers in all queues that do not wait, and whose call was not sent yet
	StrayTimers int // timers of idle queues; Inspect stops them
	Leases      int // queues that hold permits ahead of demand
}

// Inspect returns what the client holds.
func (c *Client) Inspect() (i Inspection) {
	for _, q := range c.queues(every) {
		q.look(func(s *schedule.Queue) {
			i.Queues++
			i.Waiting += s.Waiting()
			i.Asking += s.Trying()
			switch {
			case !s.Idle():
				i.Busy++
			case q.alarm.stop():
				i.StrayTimers++
			}
		})
	}
	i.Inspection, i.Leases = c.Client.Inspect(), int(c.holding.Load())
	return i
}

// HasQueue reports whether the limiter refers to a queue.
func (l *Limiter) HasQueue() bool { return l.queue.Load() != nil }
