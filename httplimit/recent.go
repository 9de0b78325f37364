package httplimit

import "sync"

// recent.go keeps what a limit has made for the keys that requests have used lately: making a
// limiter takes longer than a decision from memory.

// mostRecent is how many values one generation of a limit has.
const mostRecent = 4096

// A recent holds the values of a limit in two generations. When the young one is full, it becomes
// the old one, and the old one is forgotten. A value that is used moves to the young one.
type recent[K comparable, V any] struct {
	mu         sync.RWMutex
	young, old map[K]*V
}

// get returns the value of a key. If it is not known, create makes it. With a nil recent none is.
func (r *recent[K, V]) get(k K, create func() *V) *V {
	if r == nil {
		return create()
	}
	r.mu.RLock()
	v := r.young[k]
	r.mu.RUnlock()
	if v != nil {
		return v
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if v = r.young[k]; v != nil {
		return v
	}
	if v = r.old[k]; v == nil {
		v = create()
	}
	if r.young == nil || len(r.young) >= mostRecent {
		r.young, r.old = map[K]*V{}, r.young
	}
	r.young[k] = v
	return v
}
