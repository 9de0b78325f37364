// Package denycache keeps refusals that hold until a known time: until then a request for as many
// permits or more is refused again, unless a client changes the limiter.
package denycache

import (
	"sync"
	"sync/atomic"
	"time"
)

// A Cache holds the refusals that a client knows. The zero Cache is empty. It is safe for
// concurrent use.
type Cache struct {
	mu      sync.RWMutex        // guards all
	all     map[string]*Refusal // by the name of the configuration key
	changes atomic.Int64        // number of calls of Forget
}

// A Refusal holds for requests for N permits or more. It does not change once it is in the cache,
// but for the number of hits.
type Refusal struct {
	N           int64 // permits asked for
	Limit, Left int64 // rate, and permits that were free
	Interval    time.Duration
	Enforced    Rate          // the rate that the limiter of the refused request enforces; zero: none
	Free        time.Time     // when N permits are free, by the client's clock
	Next        time.Time     // when the first permit returns
	Reset       time.Time     // when all permits are free
	hits        *atomic.Int64 // requests refused from the cache since the last call of Hits
}

// A Rate is permits, interval (ms), type and keep-alive (ms).
type Rate [4]int64

// Find returns the refusal that holds for a request for n permits; nil if there is none. For a
// limiter that enforces a rate, only a refusal under that rate holds, because its call to Redis may
// change the stored rate.
func (c *Cache) Find(name string, n int64, now time.Time, enforced Rate) *Refusal {
	c.mu.RLock()
	known := c.all[name]
	c.mu.RUnlock()
	if known == nil || n < known.N || n > known.Limit || !now.Before(known.Free) ||
		enforced != (Rate{}) && enforced != known.Enforced {
		return nil
	}
	return known
}

// Hit notes that a request was refused by the refusal. It returns how many were since the last call
// of Hits.
func (r *Refusal) Hit() int64 { return r.hits.Add(1) }

// Changes returns the number of changes so far, for Add.
func (c *Cache) Changes() int64 { return c.changes.Load() }

// Add stores a refusal, unless one of fewer permits holds for the same requests, or a limiter was
// changed since Changes returned changes. It keeps at most size names.
func (c *Cache) Add(size int, name string, refusal Refusal, now time.Time, changes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.all[name]
	if c.changes.Load() != changes ||
		known != nil && known.N < refusal.N && now.Before(known.Free) && known.Enforced == refusal.Enforced {
		return
	}
	if known != nil {
		refusal.hits = known.hits
	} else {
		refusal.hits = new(atomic.Int64)
		for len(c.all) >= size {
			c.evict()
		}
	}
	if c.all == nil {
		c.all = map[string]*Refusal{}
	}
	c.all[name] = &refusal
}

// evict removes, of up to eight refusals, the one that ends first. c.mu is held.
func (c *Cache) evict() {
	const few = 8
	looked, first := 0, ""
	for name, known := range c.all {
		if looked == 0 || known.Free.Before(c.all[first].Free) {
			first = name
		}
		if looked++; looked == few {
			break
		}
	}
	delete(c.all, first)
}

// SeeRate drops a refusal under another rate than that of a reply.
func (c *Cache) SeeRate(name string, rate int64, interval time.Duration) {
	c.mu.RLock()
	known := c.all[name]
	c.mu.RUnlock()
	if known != nil && (known.Limit != rate || known.Interval != interval) {
		c.Forget(name)
	}
}

// Forget drops the refusal of a limiter, because the limiter has changed; with "" those of all.
func (c *Cache) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes.Add(1)
	if name == "" {
		clear(c.all)
	} else {
		delete(c.all, name)
	}
}

// Hits returns how many requests were refused from the cache since the last call of Hits.
func (c *Cache) Hits(name string) int {
	c.mu.RLock()
	known := c.all[name]
	c.mu.RUnlock()
	if known == nil {
		return 0
	}
	return int(known.hits.Swap(0))
}
