package window

import (
	"cmp"
	"math"
	"slices"
)

// A Score is a record as it was written: permits that were taken at the score At, in milliseconds.
//
// Added and Removed are for records that were not written at their score, or that were taken away before
// they expired (permits given back, a record replaced by a larger one). Both are milliseconds, 0 means
// not used. A record holds its permits from Added, or At without it, to Removed or At + interval,
// whichever comes first. Where one record has Removed, give Added to all of them, both by the clock of
// one witness (such as MONITOR): the score is the caller's clock and lies a little before the moment when
// the server wrote it, so a record that took the place of a removed one would seem to overlap it.
type Score struct {
	Permits, At    int64
	Added, Removed int64
}

// LargestScores returns the largest sum of permits that were held at one moment, and the start at of the
// window [at, at+intervalMs) that ends with this moment, the first when there are several. Without Added
// and Removed that is the largest sum of the scores in any window of the interval. Without any score, or
// with an interval of zero or less, it returns zeros.
func LargestScores(scores []Score, intervalMs int64) (permits, at int64) {
	if intervalMs <= 0 {
		return 0, 0
	}
	take := make([]step, 0, len(scores))
	free := make([]step, 0, len(scores))
	for _, s := range scores {
		from, until := s.At, int64(math.MaxInt64)
		if s.At <= math.MaxInt64-intervalMs {
			until = s.At + intervalMs
		}
		if s.Added != 0 {
			from = s.Added
		}
		if s.Removed != 0 {
			until = min(until, s.Removed)
		}
		if s.Permits <= 0 || from >= until {
			continue
		}
		take = append(take, step{from, s.Permits})
		free = append(free, step{until, s.Permits})
	}
	byTime := func(a, b step) int { return cmp.Compare(a.at, b.at) }
	slices.SortFunc(take, byTime)
	slices.SortFunc(free, byTime)

	var sum int64
	next := 0
	for _, t := range take {
		for next < len(free) && free[next].at <= t.at { // free again at this moment exactly
			sum -= free[next].permits
			next++
		}
		sum += t.permits
		if sum > permits {
			permits, at = sum, t.at-intervalMs+1
		}
	}
	return permits, at
}
