package rratelimiter

import (
	"sync"
	"sync/atomic"
	"time"
)

// The deny cache: refusals that hold until a known time. Until then a call for as many permits is refused again, unless
// a client changes the limiter.

// A denyCache holds the refusals that a client knows.
type denyCache struct {
	mu      sync.RWMutex       // guards all
	all     map[string]*denial // by the name of the configuration key
	changes atomic.Int64       // number of calls of forget
}

// A denial is one refusal. It holds for requests for as many permits or more, if their limiter does not enforce another
// rate. It does not change once it is in the cache, but for the count of requests.
type denial struct {
	n           int64 // permits asked for
	limit, left int64 // rate, and permits that were free
	interval    time.Duration
	enforced    Rate          // the rate that the limiter of the refused request enforces (WithEnforcedRate); zero: none
	free        time.Time     // when n permits are free, by the client's clock
	reset       time.Time     // when all permits are free
	answered    *atomic.Int64 // requests refused from the cache since the last collect
}

// answer returns the refusal that holds for a request for n permits, if there is one. A limiter that enforces a rate
// asks Redis until a refusal under that rate is known, because its call may change the stored rate.
func (d *denyCache) answer(name string, n int64, now time.Time, s *settings) (Result, bool) {
	d.mu.RLock()
	known := d.all[name]
	d.mu.RUnlock()
	if known == nil || n < known.n || n > known.limit || !now.Before(known.free) || s.enforced && s.rate != known.enforced {
		return Result{}, false
	}
	known.answered.Add(1)
	return Result{
		Limit: known.limit, Remaining: known.left, RetryAfter: known.free.Sub(now), ResetAfter: known.reset.Sub(now),
	}, true
}

// learn drops a refusal under another rate than that of a reply.
func (d *denyCache) learn(name string, rate int64, interval time.Duration) {
	d.mu.RLock()
	known := d.all[name]
	d.mu.RUnlock()
	if known != nil && (known.limit != rate || known.interval != interval) {
		d.forget(name)
	}
}

// remember stores a refusal, unless one of fewer permits holds for the same requests, or forget was called since
// changes was read. It keeps at most size names.
func (d *denyCache) remember(size int, name string, refusal denial, now time.Time, changes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.all[name]
	if d.changes.Load() != changes ||
		known != nil && known.n < refusal.n && now.Before(known.free) && known.enforced == refusal.enforced {
		return
	}
	if known != nil {
		refusal.answered = known.answered
	} else {
		refusal.answered = new(atomic.Int64)
		for len(d.all) >= size {
			d.evict()
		}
	}
	if d.all == nil {
		d.all = map[string]*denial{}
	}
	d.all[name] = &refusal
}

// evict removes, of up to eight refusals, the one that ends first. d.mu is held.
func (d *denyCache) evict() {
	const few = 8
	looked, first := 0, ""
	for name, known := range d.all {
		if looked == 0 || known.free.Before(d.all[first].free) {
			first = name
		}
		if looked++; looked == few {
			break
		}
	}
	delete(d.all, first)
}

// forget drops the refusal of a limiter, because the limiter has changed; with "" those of all.
func (d *denyCache) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes.Add(1)
	if name == "" {
		clear(d.all)
	} else {
		delete(d.all, name)
	}
}

// collect returns how many requests were refused from the cache since the last call of collect.
func (d *denyCache) collect(name string) int {
	d.mu.RLock()
	known := d.all[name]
	d.mu.RUnlock()
	if known == nil {
		return 0
	}
	return int(known.answered.Swap(0))
}
