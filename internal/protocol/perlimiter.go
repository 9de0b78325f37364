package protocol

import "slices"

// A PerLimiter has one value for each limiter that is asked, numbered from 0. For one limiter,
// which is the rule, it needs no slice. Code that is about limiters without a set uses First.
type PerLimiter[T any] struct {
	First T
	Rest  []T // of the other limiters of a set
}

// Permits are a number of permits for each limiter.
type Permits = PerLimiter[int64]

// Members are what a reply says of each limiter.
type Members = PerLimiter[Member]

// Same returns the same value for so many limiters.
func Same[T any](limiters int, value T) PerLimiter[T] {
	return PerLimiter[T]{value, slices.Repeat([]T{value}, limiters-1)}
}

// In returns zero values for so many limiters. Their slice is a part of memory.
func In[T any](memory *[]T, limiters int) PerLimiter[T] {
	from, to := len(*memory), len(*memory)+limiters-1
	*memory = slices.Grow(*memory, limiters-1)[:to]
	return PerLimiter[T]{Rest: (*memory)[from:to:to]}
}

// Equal reports whether the values of all limiters are equal.
func Equal[T comparable](a, b PerLimiter[T]) bool {
	return a.First == b.First && slices.Equal(a.Rest, b.Rest)
}

// Len returns the number of limiters.
func (p *PerLimiter[T]) Len() int { return 1 + len(p.Rest) }

// Of returns the value of a limiter.
func (p *PerLimiter[T]) Of(limiter int) *T {
	if limiter == 0 {
		return &p.First
	}
	return &p.Rest[limiter-1]
}

// Clone returns a copy.
func (p *PerLimiter[T]) Clone() PerLimiter[T] { return PerLimiter[T]{p.First, slices.Clone(p.Rest)} }

// Any reports whether the value of any limiter is as is says.
func (p *PerLimiter[T]) Any(is func(T) bool) bool {
	return is(p.First) || slices.ContainsFunc(p.Rest, is)
}
