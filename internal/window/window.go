// Package window proves, from outside, that a limiter kept its promise: no window of one interval holds
// more permits than the rate. It looks at what happened, as a log of grants or as the scores that were
// written, and knows nothing about how a limiter works, about Redis, or about the rest of this module.
//
// A window is half open, [t, t+interval): a record with score s is free again at s+interval, so two
// grants exactly an interval apart never share a window.
//
// There are two witnesses. Largest takes a log of grants, of which the caller knows only that each
// happened somewhere between two moments, and counts in a window only what lies in it for certain: what
// it reports did happen. LargestScores takes the exact scores, which only somebody who watches the
// server can have. Checker is Largest for a stream without an end.
//
// This file has the log of grants; score.go the scores; checker.go the stream.
package window

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Grant is a number of permits that were granted at some instant from Start to End, usually the start
// of the call that was granted and its return.
//
// The clock that counts is the wall clock, because it is the one that limiters write into their records
// and the only one that logs of several processes have in common. An End before its Start (the clock was
// set back meanwhile) is read as the same span the other way round.
type Grant struct {
	Permits    int64
	Start, End time.Time
}

// Largest returns the largest sum of permits that lie for certain in one window of the given length, and
// a start of such a window: the earliest of those that start with a grant which they hold. Grants without
// permits don't count. Without any grant, or with an interval of zero or less, it returns 0 and the zero
// time.
//
// Largest sees time as the limiters do, in whole milliseconds: a grant at 0.9 ms has score 0 and is free
// again at interval + 0 ms, so another one at interval + 0.1 ms is no fault although less than an
// interval has passed. Use LargestAt for limiters with a finer clock.
func Largest(grants []Grant, interval time.Duration) (permits int64, at time.Time) {
	return LargestAt(grants, interval, time.Millisecond)
}

// LargestAt is Largest for a clock that ticks once each tick: both ends of each grant are cut down to
// whole ticks since 1970 before they are compared. A tick of a nanosecond or less cuts nothing.
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

// A span is a grant in nanoseconds since 1970, its ends in order and cut to ticks.
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

// floor cuts ns down to a whole number of ticks, away from zero before 1970.
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

// A step changes the sum of permits for everything that comes after the moment at.
type step struct{ at, permits int64 }

// largest finds the best window by its start t. A grant lies in [t, t+interval) for certain when
// t <= start and end < t+interval, that is for t in (end-interval, start]. So each grant is an interval
// of window starts, open below and closed above, and the answer is where most permits overlap. The sum
// can only be at its largest at the upper end of one of them, so only those are looked at.
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
			continue // it took an interval or longer: certain in no window
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
		// A window that starts at l.at holds what opened before it, not what opens at it.
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
