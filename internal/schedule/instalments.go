package schedule

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// instalments.go serves a waiting request for more permits than the rate. It takes the rate, waits
// until this has returned, and so on. If other clients take permits meanwhile, it asks for fewer.
// It keeps its place: no request behind it is served.
//
// A request that must not wait in vain (Settings.FailFast) first asks for all its permits. That
// takes none, and the reply has the rate. If all can be had in time, the request asks for as many
// permits as do not fill an interval, so that full intervals follow. Only if these are free is the
// first permit taken, and then the time of the last one is known.

// Instalments is what such a request still wants beside its Permits, and what it has. Only the
// queue changes it, until the request is settled or its caller leaves.
type Instalments struct {
	Left  int64 // permits to be asked for later
	Taken int64 // permits granted so far

	// how long after the next instalment the last one comes, by the last reply
	later time.Duration
}

// split lets a request ask for at most n permits now, and for the rest later. A queue of a set has
// no such requests.
func (r *Request) split(n int64) {
	if in := r.Instalments; in != nil && n > 0 && n < math.MaxInt64 {
		all := r.all()
		r.Permits.First = min(all, n)
		in.Left = all - r.Permits.First
	}
}

// all returns how many permits of one limiter r still wants.
func (r *Request) all() int64 {
	if r.Instalments == nil {
		return r.Permits.First
	}
	return r.Permits.First + r.Instalments.Left
}

// wantsMore reports whether r will ask for more permits after its next ones, so that no request
// behind it may be asked for yet.
func (q *Queue) wantsMore(r *Request) bool {
	return r.Instalments != nil && (r.Instalments.Left > 0 || !fits(r.Permits, q.rates))
}

// end returns until when r must have its next permits, so that its last ones are in time.
func (r *Request) end() time.Time {
	if r.Instalments == nil {
		return r.End
	}
	return r.End.Add(-r.Instalments.later)
}

// takesLess reports whether the first waiting request, which is refused, asks at once for those
// permits that are free.
func (q *Queue) takesLess(r *Request, g *protocol.Reply) bool {
	if r.Instalments == nil || r != q.line.first || g.Local() || g.First.Free <= 0 || g.First.Free >= r.Permits.First {
		return false
	}
	r.split(g.First.Free)
	return true
}

// judges reports whether a request is refused if it would wait in vain.
func (q *Queue) judges(r *Request) bool { return q.settings.FailFast && !r.End.IsZero() }

// firstInstalment lets a request for more than the rate ask for its first instalment.
func (q *Queue) firstInstalment(r *Request, rate int64) {
	if in := r.Instalments; q.judges(r) && in.Taken == 0 {
		r.split((r.all()-1)%rate + 1)
	} else {
		r.split(rate)
	}
}

// dateLast notes how long after its next instalment a request that is judged has the last one.
func (q *Queue) dateLast(r *Request, g *protocol.Reply) {
	if r.Instalments != nil && q.judges(r) && !g.Local() {
		r.Instalments.later = r.Instalments.after(g.First.Rate, g.First.Interval)
	}
}

// looksAgain lets a request that has no permits yet ask for all of them, which takes none, if its
// last permit would come too late even if the first one were taken now.
func (q *Queue) looksAgain(r *Request, now time.Time) {
	if in := r.Instalments; in != nil && q.judges(r) && in.Taken == 0 && !now.Before(r.end()) {
		r.Permits.First, in.Left = r.all(), 0
	}
}

// goesOn notes that r was granted its Permits. If it wants more, it reports true. After the rate,
// it waits until this returns. After less, it asks at once for twice as much, to learn when that is
// free. If it would wait in vain, late is when the last permit is free.
func (q *Queue) goesOn(m Moment, r *Request, g *protocol.Reply) (goes bool, late time.Time) {
	in := r.Instalments
	if in == nil {
		return false, late
	}
	in.Taken += r.Permits.First
	if in.Left == 0 {
		return false, late
	}
	last := r.Permits.First
	r.Permits.First = 0
	if last < g.First.Rate {
		r.split(min(2*last, g.First.Rate))
		r.free = time.Time{}
		q.again(r, 0)
		return true, late
	}
	r.split(g.First.Rate)
	r.free = m.Clock.Add(g.First.Interval)
	if !q.settings.ServerTime && !g.Local() {
		r.free = time.UnixMicro(g.First.At).Add(g.First.Interval)
	}
	all := r.free.Add(intervals(in.Left+g.First.Rate-1, g.First.Rate, g.First.Interval))
	if q.judges(r) && !g.Local() && !all.Before(r.End) {
		return false, all
	}
	r.Outcome = Outcome{}
	r.Outcome.First.Result = Result{Limit: g.First.Rate, RetryAfter: r.free.Sub(m.Clock)}
	q.land(r, Refused)
	return true, late
}

// after returns how long after the next instalment the last one comes, at the earliest.
func (in *Instalments) after(rate int64, interval time.Duration) time.Duration {
	return intervals(in.Left, rate, interval)
}

// intervals returns in how many whole intervals so many permits return.
func intervals(permits, rate int64, interval time.Duration) time.Duration {
	if rate <= 0 || interval <= 0 {
		return 0
	}
	return time.Duration(min(permits/rate, int64(math.MaxInt64/interval))) * interval
}

// byInstalments returns the verdict on a request for more than the rate that may take instalments,
// and how long it waits or would have to wait.
func (rest *remainder) byInstalments(
	group int, r *Request, since time.Time, line *turns,
) (verdict, time.Duration) {
	g := rest.reply
	switch {
	case g.Local():
		return waits, g.Wait(group)
	case g.First.Rate == 0:
		return exceeded, 0
	case line != nil && !r.End.IsZero():
		if at := line.whole(r, since); !at.Before(r.End) {
			return refused, at.Sub(since)
		}
	}
	return parted, 0
}
