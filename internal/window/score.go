package window

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Score is a record as it was written: permits taken at the score At, in microseconds.
//
// Added and Removed are for records that were not written at the time of their score, or that were
// removed before they expired (permits given back, a record replaced by a larger one). Both are in
// microseconds; 0 means not set. A record holds its permits from Added (else At) to Removed or At +
// interval, whichever is first. If any record has Removed, set Added on all records, both by the
// clock of one observer (such as MONITOR): a score is by the caller's clock and slightly before the
// server writes the record, so a record that replaces a removed one would seem to overlap it.
//
// Charged permits hold the limit as others do, but are never refused: they may exceed the rate. So
// what counts is how many permits are held when others are granted.
type Score struct {
	Permits, At    int64
	Added, Removed int64
	Charged        bool
}

// LargestScores returns the largest sum of permits held when some are granted, and the start at of
// the window [at, at+interval) that ends with this instant; the first one if there are several.
// Without Added and Removed that is the largest sum of the scores in any window of the interval.
// Without any score, or with an interval of zero or less, it returns zeros.
func LargestScores(scores []Score, interval time.Duration) (permits, at int64) {
	length := interval.Microseconds()
	if length <= 0 {
		return 0, 0
	}
	type taken struct {
		step
		later int // 1: charged
	}
	take := make([]taken, 0, len(scores))
	free := make([]step, 0, len(scores))
	for _, s := range scores {
		from, until := s.At, int64(math.MaxInt64)
		if s.At <= math.MaxInt64-length {
			until = s.At + length
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
		one := taken{step: step{from, s.Permits}}
		if s.Charged {
			one.later = 1
		}
		take = append(take, one)
		free = append(free, step{until, s.Permits})
	}
	slices.SortFunc(take, func(a, b taken) int { // of two at one time, the grant may be first
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.later, b.later))
	})
	slices.SortFunc(free, func(a, b step) int { return cmp.Compare(a.at, b.at) })

	var sum int64
	next := 0
	for _, t := range take {
		for next < len(free) && free[next].at <= t.at { // free again at exactly this time
			sum -= free[next].permits
			next++
		}
		sum += t.permits
		if sum > permits && t.later == 0 {
			permits, at = sum, t.at-length+1
		}
	}
	return permits, at
}
