package schedule

import (
	"sort"
	"time"
)

// turns.go says when waiting requests can have their permits at the earliest, for those that must
// not wait in vain (Settings.FailFast).

// A NotInTimeError means that a request cannot have its permits before its caller leaves.
type NotInTimeError struct {
	At time.Time // when it can have them at the earliest, by the client's clock
}

func (e NotInTimeError) Error() string {
	return "rratelimiter: the permits cannot be free in time: not before " + e.At.Format(time.RFC3339Nano)
}

// A turns goes through the waiting requests of a reply, in order. Each can have its permits only
// after those in front of it have theirs.
type turns struct {
	rate     int64
	interval time.Duration
	returned func() func(n int64) time.Time // fairshare.Share.Returned
	own      func(n int64) time.Time        // what it returned; nil: to be asked again
	ahead    []turn                         // the requests in front, which go on waiting
}

// A turn is a waiting request: the permits that it and those in front of it want, and when it can
// have its own at the earliest.
type turn struct {
	sum int64
	at  time.Time
}

// next returns the turn of the next request. It wants n permits, which are free from a time on. In
// any interval at most the rate is granted to earlier requests of this process and to the line. So
// the line's permits behind as many as the rate come an interval after these.
func (t *turns) next(n int64, free time.Time) turn {
	next := turn{n, free}
	if len(t.ahead) > 0 {
		last := t.ahead[len(t.ahead)-1]
		next = turn{last.sum + n, latest(free, last.at)}
	}
	if t.own == nil {
		t.own = t.returned()
	}
	next.at = latest(next.at, t.own(t.rate-next.sum))
	if next.sum > t.rate && n <= t.rate {
		before := sort.Search(len(t.ahead), func(i int) bool { return t.ahead[i].sum >= next.sum-t.rate })
		next.at = latest(next.at, t.ahead[before].at.Add(t.interval))
	}
	return next
}

// whole returns the earliest time at which the next request, for more than the rate, can have all
// its permits, if those of its first instalment are free from a time on.
func (t *turns) whole(r *Request, free time.Time) time.Time {
	if len(t.ahead) > 0 {
		free = latest(free, t.ahead[len(t.ahead)-1].at)
	}
	return free.Add(intervals(r.all()-1, t.rate, t.interval))
}

// keep notes that the next request goes on waiting, with its turn. Otherwise it leaves the line to
// those behind it.
func (t *turns) keep(one turn, waits bool) {
	if waits {
		t.ahead = append(t.ahead, one)
	} else {
		t.own = nil // the next request can want less: see Returned
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
