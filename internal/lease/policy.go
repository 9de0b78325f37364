package lease

import (
	"math"
	"time"
)

// policy.go decides how many permits to take ahead, and whether to give back what is left. package
// simulator measures what that does to the callers.

// most is how many permits a lease has at most.
const most = 1 << 31

// Surplus is the policy: how many permits a batch takes ahead of a demand of pace permits a second,
// for a lease that ends after rest. It is the demand expected until then, less what the current
// lease will serve (left: its permits; ends: the time until its end). While the pace is unknown
// (below 0) it is as many as are asked for at once. It is nothing if a caller was refused less than
// a bucket ago. The script lowers it to a quarter of what is free, and to what leaves a tenth of
// the rate free.
func Surplus(pace float64, bucket, rest, refused time.Duration, asked, left int64, ends time.Duration) int64 {
	expected := pace*rest.Seconds() - min(float64(left), pace*ends.Seconds())
	switch {
	case refused < bucket:
		return 0
	case pace < 0:
		expected = float64(asked)
	case pace*bucket.Seconds() >= 2:
		expected = math.Ceil(expected) // the next requests before the end of the lease need no call
	}
	return int64(min(expected, most))
}

// Bounds: a lease ends with a bucket of time, but lasts for at least a quarter of one. So the next
// lease can be taken before the end of the last.

// Rest returns how long a lease lasts that is taken at a time.
func Rest(at time.Time, bucket time.Duration) time.Duration {
	early := bucket / 4
	return early + (bucket-(time.Duration(at.UnixNano())+early)%bucket)%bucket
}

// Renews returns the time from the request of a lease to that of the next one: in the last quarter
// of a bucket, not all at the same time.
// jitter returns a random time below the given one.
func Renews(lasts, bucket time.Duration, jitter func(time.Duration) time.Duration) time.Duration {
	return lasts - bucket/8 - jitter(bucket/8)
}

// WorthACall reports whether permits that are unused at the end of a lease are worth a call that
// gives them back. They are if as many from each lease of an interval would be a hundredth of the
// rate or more.
func WorthACall(unused, rate int64, interval, bucket time.Duration) bool {
	return float64(unused)*100*float64(interval)/float64(bucket) >= float64(rate)
}

// A Demand is what is known of the demand for one limiter in this process. It is not safe for
// concurrent use.
type Demand struct {
	pace    float64   // permits a second, as last measured
	known   bool      // it was measured
	since   time.Time // when that was, or when the first lease began; zero: there was none
	granted int64     // permits that were granted since then
	refused time.Time // when a caller was last refused
}

// Begin notes that a lease begins.
func (d *Demand) Begin(now time.Time) {
	if d.since.IsZero() {
		d.since, d.granted = now, 0
	}
}

// Granted notes that n permits were granted.
func (d *Demand) Granted(n int64) { d.granted += n }

// Refused notes that a caller was refused at a time.
func (d *Demand) Refused(now time.Time) { d.refused = now }

// Measure measures the pace since it was last measured. more says that the lease was used up, so
// that callers might have taken more.
func (d *Demand) Measure(now time.Time, more bool) {
	pace := float64(d.granted) / max(now.Sub(d.since), 100*time.Microsecond).Seconds()
	if more {
		pace *= 2
	}
	if pace < d.pace {
		pace = (d.pace + pace) / 2 // it falls slowly: what is unused comes back
	}
	d.pace, d.known, d.since, d.granted = pace, true, now, 0
}

// Want returns how many permits to take ahead now: see Surplus.
func (d *Demand) Want(now time.Time, bucket, rest time.Duration, asked, left int64, ends time.Duration) int64 {
	pace, refused := -1.0, bucket
	if !d.since.IsZero() {
		if !d.known || now.Sub(d.since) >= bucket {
			d.Measure(now, false)
		}
		pace = d.pace
	}
	if since := now.Sub(d.refused); since >= 0 {
		refused = since
	}
	return Surplus(pace, bucket, rest, refused, asked, left, ends)
}
