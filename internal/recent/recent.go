// Package recent keeps what was made for the keys that requests have used lately: making a limiter
// takes longer than a decision from memory.
package recent

import "sync"

// Most is how many values one generation has.
const Most = 4096

// Values has two generations of values. When the young one is full, it becomes the old one, and the
// old one is forgotten. A value that is used moves to the young one. The zero Values is empty.
type Values[K comparable, V any] struct {
	mu         sync.RWMutex
	young, old map[K]*V
}

// Get returns the value of a key. If it is not known, create makes it. Nil Values keep
// none.
func (r *Values[K, V]) Get(k K, create func() *V) *V {
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
	if r.young == nil || len(r.young) >= Most {
		r.young, r.old = map[K]*V{}, r.young
	}
	r.young[k] = v
	return v
}
