// Package local counts permits in the process, for limits that decide by themselves. It knows nothing of Redis, nor of whose
// permits they are.
package local

import "time"

// tenths is how many parts of the interval are counted apart: permits return up to one of them late, never early.
const tenths = 10

// longest bounds intervals, so that nothing overflows. Nobody sees the end of one.
const longest = 100 * 365 * 24 * time.Hour

// A Window counts what was granted in the last tenths of an interval, and in the current one. Whoever keeps what is in use
// within a limit grants no more than that in any interval, wherever it starts. The zero Window has nothing in use. It is not
// safe for concurrent use.
type Window struct {
	tenth  time.Duration // rounded up
	start  time.Time     // of the current one
	counts [tenths + 1]int64
}

// Turn moves the window on to a time, which must come before all else. Time that goes back changes nothing. With another
// interval than before, all that is in use counts for that one from now on.
func (w *Window) Turn(now time.Time, interval time.Duration) {
	tenth := (min(interval, longest) + tenths - 1) / tenths
	if tenth != w.tenth {
		*w = Window{tenth: tenth, start: now, counts: [tenths + 1]int64{w.Used()}}
	}
	w.move(now)
}

// Empty tells whether nothing is in use at a time.
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

// Used tells how many permits are in use.
func (w *Window) Used() (sum int64) {
	for _, n := range w.counts {
		sum += n
	}
	return sum
}

// Take counts n permits as granted now.
func (w *Window) Take(n int64) { w.counts[0] += n }

// Untake takes back n permits that were counted just before.
func (w *Window) Untake(n int64) {
	for i := range w.counts {
		back := min(n, w.counts[i])
		w.counts[i] -= back
		n -= back
	}
}

// Until is the time until n of the permits in use will have returned; 0 if n is not positive, or more than there are.
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
