package window

import (
	"sync"
	"time"
)

// slack is how much later than one interval a grant may be reported and still be counted exactly.
const slack = time.Second

// sweepAt is the least number of grants at which a Checker sweeps.
const sweepAt = 4096

// A Checker is Largest for an endless stream of grants, such as that of a demo or a soak test. It
// holds at most twice the grants of the last two intervals and one second, or a constant number. It
// is safe for concurrent use.
type Checker struct {
	interval time.Duration

	mu      sync.Mutex
	recent  []span
	limit   int   // length of recent that starts the next sweep
	newest  int64 // latest end so far
	cut     int64 // grants that began before it may have been dropped
	swept   bool  // cut is set
	permits int64 // result so far
	at      int64
	late    int64 // grants reported too late
}

// NewChecker returns a Checker for windows of the given length.
func NewChecker(interval time.Duration) *Checker {
	return &Checker{interval: interval, limit: sweepAt}
}

// Add adds a grant. Grants may be added in any order, as long as each is added before any that
// ended more than an interval and one second after it.
func (c *Checker) Add(g Grant) {
	s, ok := spanOf(g, 1)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swept && s.end < c.cut+int64(c.interval) {
		c.late++ // it may share a window with grants that were dropped
	}
	if len(c.recent) == 0 && !c.swept {
		c.newest = s.end
	}
	c.newest = max(c.newest, s.end)
	c.recent = append(c.recent, s)
	if len(c.recent) >= c.limit {
		c.sweep()
	}
}

// Largest returns the result of the function Largest for all grants added so far.
func (c *Checker) Largest() (permits int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	if c.permits == 0 {
		return 0, time.Time{}
	}
	return c.permits, time.Unix(0, c.at)
}

// Late returns the number of grants added so late that windows around them may have been counted
// too low. While it is 0, Largest is exact.
func (c *Checker) Late() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// Held returns the number of grants in memory.
func (c *Checker) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.recent)
}

// sweep updates the result, then drops the grants that can share no window with a future grant.
// c.mu is held. It runs when the number of grants has doubled since the last sweep, so that a grant
// costs O(log n) on average.
func (c *Checker) sweep() {
	permits, at := largest(c.recent, int64(c.interval))
	if permits > c.permits || permits == c.permits && permits > 0 && at < c.at {
		c.permits, c.at = permits, at
	}
	if cut := c.newest - 2*int64(c.interval) - int64(slack); len(c.recent) > 0 && (!c.swept || cut > c.cut) {
		c.cut, c.swept = cut, true
	}
	kept := c.recent[:0]
	for _, s := range c.recent {
		if s.start >= c.cut {
			kept = append(kept, s)
		}
	}
	c.recent = kept
	c.limit = max(sweepAt, 2*len(kept))
}
