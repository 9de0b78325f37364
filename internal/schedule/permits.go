package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// permits.go counts permits of several limiters. For one limiter, which is the rule, it allocates
// nothing.

// freeOf returns the permits that are free by a reply.
func freeOf(g *protocol.Reply) protocol.Permits {
	free := protocol.Same(g.Len(), int64(0))
	for limiter := range free.Len() {
		*free.Of(limiter) = g.Of(limiter).Free
	}
	return free
}

// ratesOf returns the rates by a reply.
func ratesOf(g *protocol.Reply) protocol.Permits {
	rates := protocol.Same(g.Len(), int64(0))
	for limiter := range rates.Len() {
		*rates.Of(limiter) = g.Of(limiter).Rate
	}
	return rates
}

// add adds permits to a sum, so many times. The zero sum is one for any number of limiters.
func add(sum *protocol.Permits, p protocol.Permits, times int64) {
	if sum.Len() < p.Len() {
		sum.Rest = make([]int64, len(p.Rest))
	}
	for limiter := range p.Len() {
		*sum.Of(limiter) += times * *p.Of(limiter)
	}
}

// fits reports whether no more permits are wanted of any limiter than there are.
func fits(wanted, there protocol.Permits) bool {
	for limiter := range wanted.Len() {
		if *wanted.Of(limiter) > *there.Of(limiter) {
			return false
		}
	}
	return true
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
