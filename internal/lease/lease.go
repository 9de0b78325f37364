// Package lease holds permits that were taken ahead of demand, and decides how many to take. Leases
// keep the limit exact. The record of a lease has the time at which the lease ends, and all its
// permits are granted before that time. So each permit counts for at least one interval after it
// was granted. Live records never hold more than the rate.
package lease

import (
	"math"
	"sync/atomic"
	"time"
)

// A Lease is permits that this process may grant, without asking Redis, until it ends. Its methods
// may be called at the same time.
type Lease struct {
	Rate     int64         // of the limiter
	Interval time.Duration // the same
	Free     int64         // permits of the limiter that were free when it was taken
	// when the lease ends, and the score of its record: µs by the clock that dated it. Invariant:
	// no permit of the lease is granted later
	At      int64
	Began   time.Time     // when it was asked for, with a monotonic reading
	Lasts   time.Duration // from then until its end
	Server  bool          // the server's clock dated it
	Permits int64         // in it, at first
	Renews  time.Duration // time from its request to that of the next one

	left   atomic.Int64 // below 0: it is over
	refill atomic.Bool  // more was asked for
	used   int64        // as last returned by Used
}

// over is what left falls below once a lease is over.
const over = math.MinInt64 / 2

// Begin makes the permits available.
func (l *Lease) Begin() { l.left.Store(l.Permits) }

// Take takes n permits, if the lease has them and has not ended. It returns how many are left. now
// is the time by the clock that dates grants, and mono a time with a monotonic reading.
func (l *Lease) Take(n int64, now, mono time.Time) (left int64, ok bool) {
	if !l.Valid(now, mono) {
		return 0, false
	}
	for {
		left = l.left.Load()
		if left < max(n, 1) { // none left: it does not tell whether a permit is free
			return 0, false
		}
		if l.left.CompareAndSwap(left, left-n) {
			return left - n, true
		}
	}
}

// Untake gives back n permits that were just taken, and reports whether the lease can grant them
// again.
func (l *Lease) Untake(n int64) bool {
	for {
		left := l.left.Load()
		if left < 0 {
			return false
		}
		if l.left.CompareAndSwap(left, left+n) {
			return true
		}
	}
}

// Valid reports whether the lease has not ended: neither by the clock that dated it nor by the time
// since it was asked for, whichever says so first. A clock that steps back does not prolong it, and
// neither does a suspension of the host, during which its monotonic clock may stand still.
func (l *Lease) Valid(now, mono time.Time) bool {
	if !l.Server && now.UnixMicro() >= l.At || l.Server && mono.Round(0).Sub(l.Began.Round(0)) >= l.Lasts {
		return false
	}
	return mono.Sub(l.Began) < l.Lasts
}

// Ends returns the time until the lease ends.
func (l *Lease) Ends(now, mono time.Time) time.Duration {
	left := l.Lasts - mono.Sub(l.Began)
	if !l.Server {
		left = min(left, time.UnixMicro(l.At).Sub(now))
	}
	return max(left, 0)
}

// End ends the lease, and returns the permits that were not granted. Only the first call returns
// any.
func (l *Lease) End() (unused int64) {
	if left := l.left.Swap(over); left > 0 {
		return left
	}
	return 0
}

// Used returns how many permits were granted since it was last called. Its calls must not overlap.
func (l *Lease) Used() int64 {
	used := l.Permits - l.Left()
	n := max(used-l.used, 0)
	l.used = used
	return n
}

// Ended reports whether End was called.
func (l *Lease) Ended() bool { return l.left.Load() < 0 }

// Left returns the permits that are left.
func (l *Lease) Left() int64 { return max(l.left.Load(), 0) }

// Refill reports whether it is time to ask for more: an eighth of the permits is left, or it is
// time for the next lease. It returns true once.
func (l *Lease) Refill(left int64, mono time.Time) bool {
	due := left <= l.Permits/8 || mono.Sub(l.Began) >= l.Renews
	return due && !l.refill.Load() && l.refill.CompareAndSwap(false, true)
}
