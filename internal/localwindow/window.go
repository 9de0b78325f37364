// Package localwindow counts permits granted in the process. It does not use Redis and does not
// know limiters.
package localwindow

import "time"

// tenths is the number of parts of the interval that are counted separately.
const tenths = 10

// longest bounds intervals, so that sums of times do not overflow.
const longest = 100 * 365 * 24 * time.Hour

// A Window counts the permits granted in the current tenth of an interval and in the ten before it.
// The permits of a tenth return together, an interval after the last of them was granted: up to a
// tenth late, never early. If the permits in use stay within a limit, no interval holds more grants
// than the limit, wherever it starts. The zero Window is empty. It is not safe for concurrent use.
type Window struct {
	interval time.Duration
	start    time.Time         // of the current tenth
	now      time.Duration     // the latest time, from start
	counts   [tenths + 1]int64 // permits granted, by tenth, the current one first
	// when the last of them were granted, from the start of their tenth
	last [tenths + 1]time.Duration
}

// Turn advances the window to a time. It must be called before any other method but Empty. A time
// before the present one changes nothing. If the interval changes, all permits in use count from
// now on for the new interval.
func (w *Window) Turn(now time.Time, interval time.Duration) {
	w.move(now)
	if interval = min(interval, longest); interval != w.interval {
		*w = Window{interval: interval, start: now, counts: [tenths + 1]int64{w.Used()}}
	}
}

// Empty returns whether no permit is in use at a time.
func (w *Window) Empty(now time.Time) bool {
	w.move(now)
	return w.Used() == 0
}

// tenth returns the length of a tenth, rounded up.
func (w *Window) tenth() time.Duration { return (w.interval + tenths - 1) / tenths }

func (w *Window) move(now time.Time) {
	if w.interval == 0 {
		return
	}
	if passed := now.Sub(w.start) / w.tenth(); passed > 0 {
		w.start, w.now = w.start.Add(passed*w.tenth()), 0
		shift := int(min(passed, tenths+1))
		copy(w.counts[shift:], w.counts[:])
		copy(w.last[shift:], w.last[:])
		clear(w.counts[:shift])
	}
	w.now = max(w.now, now.Sub(w.start))
	for i := range w.counts {
		if w.returns(i) <= w.now {
			w.counts[i] = 0
		}
	}
}

// returns gives the time from start until the permits of a tenth return.
func (w *Window) returns(i int) time.Duration {
	return w.last[i] + w.interval - time.Duration(i)*w.tenth()
}

// Used returns the number of permits in use.
func (w *Window) Used() (sum int64) {
	for _, n := range w.counts {
		sum += n
	}
	return sum
}

// Take counts n permits as granted now.
func (w *Window) Take(n int64) {
	if n > 0 {
		w.counts[0] += n
		w.last[0] = w.now
	}
}

// Untake removes the n permits that were counted last.
func (w *Window) Untake(n int64) {
	for i := range w.counts {
		back := min(n, w.counts[i])
		w.counts[i] -= back
		n -= back
	}
}

// Until returns the time until n of the permits in use have returned; 0 if n is not positive or
// more than are in use.
func (w *Window) Until(now time.Time, n int64) time.Duration {
	if n <= 0 {
		return 0
	}
	for i := tenths; i >= 0; i-- {
		if n -= w.counts[i]; n <= 0 {
			return w.start.Add(w.returns(i)).Sub(now)
		}
	}
	return 0
}
