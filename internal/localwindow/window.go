// Package localwindow counts permits granted in the process. It does not use Redis and does not know limiters.
package localwindow

import "time"

// tenths is the number of parts of the interval that are counted separately. Permits return up to one part late, never
// early.
const tenths = 10

// longest bounds intervals, so that sums of times do not overflow.
const longest = 100 * 365 * 24 * time.Hour

// A Window counts the permits granted in the current tenth of an interval and in the ten before it. If the permits in
// use stay within a limit, no interval holds more grants than the limit, wherever it starts. The zero Window is empty.
// It is not safe for concurrent use.
type Window struct {
	tenth  time.Duration     // rounded up
	start  time.Time         // of the current tenth
	counts [tenths + 1]int64 // permits granted, by tenth, the current one first
}

// Turn advances the window to a time. It must be called before any other method but Empty. A time before the present
// one changes nothing. If the interval changes, all permits in use count from now on for the new interval.
func (w *Window) Turn(now time.Time, interval time.Duration) {
	if w.tenth > 0 {
		w.move(now)
	}
	tenth := (min(interval, longest) + tenths - 1) / tenths
	if tenth != w.tenth {
		*w = Window{tenth: tenth, start: now, counts: [tenths + 1]int64{w.Used()}}
	}
}

// Empty returns whether no permit is in use at a time.
func (w *Window) Empty(now time.Time) bool {
	if w.tenth > 0 {
		w.move(now)
	}
	return w.Used() == 0
}

func (w *Window) move(now time.Time) {
	passed := now.Sub(w.start) / w.tenth
	if passed <= 0 {
		return
	}
	w.start = w.start.Add(passed * w.tenth)
	kept := max(len(w.counts)-int(min(passed, tenths+1)), 0)
	copy(w.counts[len(w.counts)-kept:], w.counts[:kept])
	clear(w.counts[:len(w.counts)-kept])
}

// Used returns the number of permits in use.
func (w *Window) Used() (sum int64) {
	for _, n := range w.counts {
		sum += n
	}
	return sum
}

// Take counts n permits as granted now.
func (w *Window) Take(n int64) { w.counts[0] += n }

// Untake removes the n permits that were counted last.
func (w *Window) Untake(n int64) {
	for i := range w.counts {
		back := min(n, w.counts[i])
		w.counts[i] -= back
		n -= back
	}
}

// Until returns the time until n of the permits in use have returned; 0 if n is not positive or more than are in use.
func (w *Window) Until(now time.Time, n int64) time.Duration {
	if n <= 0 {
		return 0
	}
	for i := tenths; i >= 0; i-- {
		if n -= w.counts[i]; n <= 0 {
			return w.start.Add(time.Duration(tenths+1-i) * w.tenth).Sub(now)
		}
	}
	return 0
}
