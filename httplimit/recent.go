package httplimit

import (
	"sync"

	"github.com/rratelimiter/rratelimiter"
)

// recent.go keeps the limiters of a limit that requests have used lately: making one takes longer
// than a decision from memory.

// mostRecent is how many limiters one generation of a limit has.
const mostRecent = 4096

// A recent holds the limiters of a limit in two generations. When the young one is full, it becomes
// the old one, and the old one is forgotten. A limiter that is used moves to the young one.
type recent struct {
	mu         sync.RWMutex
	young, old map[limiterKey]*rratelimiter.Limiter
}

// A limiterKey tells the limiters of a limit apart.
type limiterKey struct {
	key  string
	rate rratelimiter.Rate
}

// limiter returns the limiter with a key. If it is not known, create makes it. With a nil recent
// none is.
func (r *recent) limiter(k limiterKey, create func() *rratelimiter.Limiter) *rratelimiter.Limiter {
	if r == nil {
		return create()
	}
	r.mu.RLock()
	l := r.young[k]
	r.mu.RUnlock()
	if l != nil {
		return l
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l = r.young[k]; l != nil {
		return l
	}
	if l = r.old[k]; l == nil {
		l = create()
	}
	if r.young == nil || len(r.young) >= mostRecent {
		r.young, r.old = map[limiterKey]*rratelimiter.Limiter{}, r.young
	}
	r.young[k] = l
	return l
}
