// Package window checks the guarantee of a limiter: no window of one interval holds more permits
// than the rate. Its input is a log of grants, or the scores that were written. It does not depend
// on Redis or on the rest of this module.
//
// A window is half open, [t, t+interval): the permits of a record with score s are free again at
// s+interval, so two grants exactly an interval apart never share a window.
//
// There are two checks. Largest takes a log of grants. The caller knows of each only two times
// between which it happened, so Largest counts in a window only the grants that are in it for
// certain: a violation that it reports did happen. LargestScores takes the exact scores, which only
// an observer of the server has. Checker is Largest for an endless stream.
//
// This file has the log of grants; score.go the scores; checker.go the stream.
package window

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Grant is a number of permits granted at some instant from Start to End, usually the start and
// the end of the call that was granted.
//
// Times are of the wall clock, because limiters write it into their records and it is the only
// clock that logs of several processes share. If End is before Start (the clock was set back in
// between), the two are swapped.
type Grant struct {
	Permits    int64
	Start, End time.Time
}

// Largest returns the largest sum of permits that are for certain in one window of the given
// length, and the start of such a window: the earliest one that starts with a grant that it holds.
// Grants without permits are ignored. Without any grant, or with an interval of zero or less, it
// returns 0 and the zero time.
//
// Largest compares times to the nanosecond. Use LargestAt for limiters with a coarser clock.
func Largest(grants []Grant, interval time.Duration) (permits int64, at time.Time) {
	return LargestAt(grants, interval, 1)
}

// LargestAt is Largest for limiters whose clock advances in ticks, such as Redisson's, which dates
// grants in whole milliseconds: a grant at 0.9 ms has score 0 and is free again at interval + 0 ms,
// so another one at interval + 0.1 ms is no violation although less than an interval has passed.
// Both ends of each grant are rounded down to whole ticks since 1970 before they are compared.
func LargestAt(grants []Grant, interval, tick time.Duration) (permits int64, at time.Time) {
	spans := make([]span, 0, len(grants))
	for _, g := range grants {
		if s, ok := spanOf(g, tick); ok {
			spans = append(spans, s)
		}
	}
	permits, start := largest(spans, int64(interval))
	if permits == 0 {
		return 0, time.Time{}
	}
	return permits, time.Unix(0, start)
}

// A span is a grant in nanoseconds since 1970, its ends in order and rounded down to ticks.
type span struct{ start, end, permits int64 }

func spanOf(g Grant, tick time.Duration) (span, bool) {
	if g.Permits <= 0 {
		return span{}, false
	}
	start, end := g.Start.UnixNano(), g.End.UnixNano()
	if end < start {
		start, end = end, start
	}
	return span{floor(start, int64(tick)), floor(end, int64(tick)), g.Permits}, true
}

// floor rounds ns down to a whole number of ticks, also before 1970.
func floor(ns, tick int64) int64 {
	if tick <= 1 {
		return ns
	}
	rest := ns % tick
	if rest < 0 {
		rest += tick
	}
	return ns - rest
}

// A step is a change of a sum of permits at the time at.
type step struct{ at, permits int64 }

// largest finds the window with the most permits by its start t. A grant is in [t, t+interval) for
// certain if t <= start and end < t+interval, that is for t in (end-interval, start]. So each grant
// is an interval of window starts, open below and closed above, and the result is the point where
// most permits overlap. The sum can only reach its maximum at the upper end of one of these
// intervals, so only those are examined.
func largest(spans []span, interval int64) (permits, at int64) {
	if interval <= 0 {
		return 0, 0
	}
	enter := make([]step, 0, len(spans))
	leave := make([]step, 0, len(spans))
	for _, s := range spans {
		open := int64(math.MinInt64) // where end-interval would be if time went back that far
		if s.end >= math.MinInt64+interval {
			open = s.end - interval
		}
		if open >= s.start {
			continue // its span is an interval or longer: in no window for certain
		}
		enter = append(enter, step{open, s.permits})
		leave = append(leave, step{s.start, s.permits})
	}
	byTime := func(a, b step) int { return cmp.Compare(a.at, b.at) }
	slices.SortFunc(enter, byTime)
	slices.SortFunc(leave, byTime)

	var sum int64
	next := 0
	for _, l := range leave {
		// A window that starts at l.at holds the grants whose intervals open before l.at, not those
		// that open at l.at.
		for next < len(enter) && enter[next].at < l.at {
			sum += enter[next].permits
			next++
		}
		if sum > permits {
			permits, at = sum, l.at
		}
		sum -= l.permits
	}
	return permits, at
}
