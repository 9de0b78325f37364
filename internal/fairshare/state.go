package fairshare

import (
	"maps"
	"math"
	"slices"
)

// state.go is for searches through all orders of events (package smallscope).

// Clone returns a copy that shares nothing with s.
func (s *Share) Clone() Share {
	c := *s
	c.own, c.others = slices.Clone(s.own), maps.Clone(s.others)
	return c
}

// AppendState appends numbers that differ if what follows may differ.
func (s *Share) AppendState(to []int64) []int64 {
	redisson, strict := int64(0), int64(0)
	if s.Redisson {
		redisson = 1
	}
	if s.strict {
		strict = 1
	}
	to = append(
		to, redisson, strict, s.sum, s.java, s.quota, s.period, s.from.UnixMicro(), s.until.UnixMicro(),
		int64(s.interval),
		int64(s.offset), int64(math.Float64bits(s.lately)), s.latest, int64(len(s.own)), int64(len(s.others)),
	)
	for _, own := range s.own {
		to = append(to, own.at, own.n)
	}
	for _, tag := range slices.Sorted(maps.Keys(s.others)) {
		to = append(to, int64(tag), s.others[tag])
	}
	return to
}
