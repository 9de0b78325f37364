package schedule

import (
	"math"
	"sort"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/fairshare"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// failfast.go refuses requests that would wait in vain, until their callers leave
// (Settings.FailFast). It says when each waiting request can have its permits at the earliest.

// A NotInTimeError means that a request cannot have its permits before its caller leaves.
type NotInTimeError struct {
	At time.Time // when it can have them at the earliest, by the client's clock
}

func (e NotInTimeError) Error() string {
	return "rratelimiter: the permits cannot be free in time: not before " + e.At.Format(time.RFC3339Nano)
}

// A turns goes through the waiting requests of a reply, in order, and says of each when it can have
// its permits at the earliest: not before those in front of it have theirs.
type turns struct {
	rate     int64
	interval time.Duration
	returned func() func(n int64) time.Time // fairshare.Share.Returned
	own      func(n int64) time.Time        // what returned has returned; nil: call it again
	ahead    []turn                         // of the requests in front that go on waiting
}

// A turn is a waiting request: the permits that it and those in front of it want, and when it can
// have its own at the earliest.
type turn struct {
	sum int64
	at  time.Time
}

// next returns the turn of the next request, which wants n permits. By the reply, these are free
// from a time on. Its turn is later
//   - if the turn of a request in front is later,
//   - while grants of this process, and what those in front want, leave too little of the rate, or
//   - if it and those in front want more than the rate: then it is an interval behind the one that
//     has to have returned its permits.
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

// note notes whether the next request goes on waiting, with its turn. If it does not, those behind
// it do not wait for it.
func (t *turns) note(one turn, waits bool) {
	if waits {
		t.ahead = append(t.ahead, one)
	} else {
		t.own = nil // the next request can want less: see Returned
	}
}

// turns returns the turns of waiting requests after a reply. While the process decides, they are
// not known: Redis may come back.
func (q *Queue) turns(g *protocol.Reply, since time.Time) *turns {
	if !q.settings.FailFast || g.Local() {
		return nil
	}
	if g.Len() > 1 { // of a set, only the order of the line is known
		return &turns{rate: math.MaxInt64, returned: new(fairshare.Share).Returned}
	}
	share := &q.pacer.members[0].share
	share.Dated(g.First.Interval, since.Sub(time.UnixMicro(g.First.Now)))
	return &turns{rate: g.First.Rate, interval: g.First.Interval, returned: share.Returned}
}

// inTurn is verdict for a request that waits in a line. It also returns when its permits are free.
// A request that would wait in vain is refused, and its permits are free at its turn.
func (rest *remainder) inTurn(group int, r *Request, due time.Time, line *turns) (verdict, time.Time) {
	free, own := rest.free.Clone(), line.next(r.Permits.First, due)
	v := rest.verdict(group, r, due)
	if in := r.Instalments; in != nil {
		own.at = own.at.Add(in.after(line.rate, line.interval))
		own.sum += in.Left
	}
	if v == waits && !rest.undated && !rest.outdated && !r.End.IsZero() && !own.at.Before(r.End) {
		v, due, rest.free = refused, own.at, free
	}
	line.note(own, v == waits || v == again)
	return v, due
}
