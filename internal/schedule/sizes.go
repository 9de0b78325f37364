package schedule

import (
	"math"
	"slices"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// sizes.go counts permits of several limiters. For one limiter, which is the rule, it allocates
// nothing.

// A sizes is a number of permits for each limiter of a queue: of the first one, and of the others.
type sizes struct {
	first int64
	rest  []int64
}

// unlimited returns the most permits of so many limiters.
func unlimited(limiters int) sizes {
	s := sizes{first: math.MaxInt64}
	if limiters > 1 {
		s.rest = slices.Repeat([]int64{math.MaxInt64}, limiters-1)
	}
	return s
}

// only returns n permits of one of so many limiters.
func only(limiters, limiter int, n int64) sizes {
	s := sizes{rest: make([]int64, limiters-1)}
	s.set(limiter, n)
	return s
}

// sizesOf returns a number of each limiter of a reply.
func sizesOf(g *protocol.Reply, number func(*protocol.Member) int64) sizes {
	s := sizes{first: number(&g.Member)}
	for i := range g.Others {
		s.rest = append(s.rest, number(&g.Others[i]))
	}
	return s
}

func freeOf(g *protocol.Reply) sizes {
	return sizesOf(g, func(m *protocol.Member) int64 { return m.Free })
}

func ratesOf(g *protocol.Reply) sizes {
	return sizesOf(g, func(m *protocol.Member) int64 { return m.Rate })
}

// of returns the number of a limiter, numbered from 0.
func (s *sizes) of(limiter int) int64 {
	if limiter == 0 {
		return s.first
	}
	return s.rest[limiter-1]
}

// set sets the number of a limiter.
func (s *sizes) set(limiter int, n int64) {
	if limiter == 0 {
		s.first = n
	} else {
		s.rest[limiter-1] = n
	}
}

// cloneIn returns a copy that uses memory.
func (s *sizes) cloneIn(memory *[]int64) sizes {
	from := len(*memory)
	*memory = append(*memory, s.rest...)
	return sizes{s.first, (*memory)[from:]}
}

// clone returns a copy.
func (s *sizes) clone() sizes { return sizes{s.first, slices.Clone(s.rest)} }

// add adds other numbers, so many times.
func (s *sizes) add(other sizes, times int64) {
	s.first += times * other.first
	for i, n := range other.rest {
		if s.rest == nil {
			s.rest = make([]int64, len(other.rest))
		}
		s.rest[i] += times * n
	}
}

// fit reports whether a request wants no more than s of any limiter.
func (s *sizes) fit(r *Request) bool {
	if r.N > s.first {
		return false
	}
	for i, n := range r.Rest {
		if n > s.rest[i] {
			return false
		}
	}
	return true
}

// any reports whether a number is above 0.
func (s *sizes) any() bool {
	return s.first > 0 || slices.ContainsFunc(s.rest, func(n int64) bool { return n > 0 })
}

// below reports whether a number is below 0.
func (s *sizes) below() bool {
	return s.first < 0 || slices.ContainsFunc(s.rest, func(n int64) bool { return n < 0 })
}
