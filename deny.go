package rratelimiter

import (
	"sync"
	"sync/atomic"
	"time"
)

// deny.go remembers refusals: until the moment that a refusal named, asking for as much again is in vain, unless somebody
// changes the limiter. It knows nothing of calls.

// denials are what a client remembers, by the name of the configuration key.
type denials struct {
	mu      sync.RWMutex
	all     map[string]*denial
	changes atomic.Int64 // how often something was forgotten, since a limiter was changed here
}

// A denial is one refusal. It holds for whoever asks for as many permits, or more.
type denial struct {
	n           int64
	limit, left int64
	free        time.Time // when n permits are free, by the client's clock
	reset       time.Time // when all are
	answered    *atomic.Int64
}

// answer gives the refusal of a request that is in vain.
func (d *denials) answer(name string, n int64, now time.Time) (Result, bool) {
	d.mu.RLock()
	known := d.all[name]
	d.mu.RUnlock()
	if known == nil || n < known.n || n > known.limit || !now.Before(known.free) {
		return Result{}, false
	}
	known.answered.Add(1)
	return Result{
		Limit: known.limit, Remaining: known.left, RetryAfter: known.free.Sub(now), ResetAfter: known.reset.Sub(now),
	}, true
}

// remember notes a refusal, where no smaller one holds; unless a limiter was changed since changes were counted. It keeps
// no more names than size.
func (d *denials) remember(size int, name string, refusal denial, now time.Time, changes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.all[name]
	if d.changes.Load() != changes || known != nil && known.n < refusal.n && now.Before(known.free) {
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

// evict forgets, of a few refusals, the one that holds least long.
func (d *denials) evict() {
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

// forget drops what is known of a limiter, since it has changed; of all with "".
func (d *denials) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes.Add(1)
	if name == "" {
		clear(d.all)
	} else {
		delete(d.all, name)
	}
}

// collect tells how many requests were answered since it was asked last.
func (d *denials) collect(name string) int {
	d.mu.RLock()
	known := d.all[name]
	d.mu.RUnlock()
	if known == nil {
		return 0
	}
	return int(known.answered.Swap(0))
}
