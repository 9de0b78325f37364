package window

import (
	"sync"
	"time"
)

// slack is how much later than an interval a grant may be reported and still be counted exactly.
const slack = time.Second

// sweepAt is the number of grants a Checker holds before it looks which ones it can forget.
const sweepAt = 4096

// A Checker is Largest for a stream of grants that has no end, such as a demo or a soak test. It holds
// the grants of the last two intervals and a second, and a constant more. It is safe for use by many
// goroutines.
type Checker struct {
	interval time.Duration

	mu      sync.Mutex
	recent  []span
	limit   int   // length of recent that starts the next sweep
	newest  int64 // latest end seen
	cut     int64 // grants that began before it may have been forgotten
	swept   bool  // whether cut means anything yet
	permits int64
	at      int64
	late    int64
}

// NewChecker returns a Checker for windows of the given length.
func NewChecker(interval time.Duration) *Checker {
	return &Checker{interval: interval, limit: sweepAt}
}

// Add reports a grant. Grants may come in any order, as long as each comes before one that ended an
// interval and a second after it.
func (c *Checker) Add(g Grant) {
	s, ok := spanOf(g, time.Millisecond)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swept && s.end < c.cut+int64(c.interval) {
		c.late++ // it shares windows with grants that may be forgotten
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

// Largest returns what the function Largest would return for all grants reported so far.
func (c *Checker) Largest() (permits int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	if c.permits == 0 {
		return 0, time.Time{}
	}
	return c.permits, time.Unix(0, c.at)
}

// Late returns how many grants came so late that windows around them may have been counted too low.
// While it is 0, Largest is exact.
func (c *Checker) Late() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.late
}

// Held returns how many grants are in memory.
func (c *Checker) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.recent)
}

// sweep counts what it holds, then forgets the grants that can share no window with a grant to come. It
// runs when the grants have doubled since the last time, so that a grant costs O(log n) on average.
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
