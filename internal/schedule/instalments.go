package schedule

import (
	"math"
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// instalments.go serves a waiting request for more permits than the rate. It takes the rate, waits
// until this has returned, and so on. If other clients take permits meanwhile, it asks for fewer.
// It keeps its place: no request behind it is served.

// Instalments is what such a request still wants beside its N, and what it has. Only the queue
// changes it, until the request is settled or its caller leaves.
type Instalments struct {
	Left  int64 // permits to be asked for later
	Taken int64 // permits granted so far
}

// split lets a request ask for at most n permits now, and for the rest later. A queue of a set has
// no such requests.
func (r *Request) split(n int64) {
	if in := r.Instalments; in != nil && n > 0 && n < math.MaxInt64 {
		all := r.N + in.Left
		r.N = min(all, n)
		in.Left = all - r.N
	}
}

// wantsMore reports whether r will ask for more permits after its next ones, so that no request
// behind it may be asked for yet.
func (r *Request) wantsMore() bool { return r.Instalments != nil && r.Instalments.Left > 0 }

// takesLess reports whether the first waiting request, which is refused, asks at once for those
// permits that are free.
func (q *Queue) takesLess(r *Request, g *protocol.Reply) bool {
	if r.Instalments == nil || r != q.line.first || g.Local() || g.Free <= 0 || g.Free >= r.N {
		return false
	}
	r.split(g.Free)
	return true
}

// goesOn notes that r was granted its N. If it wants more, it reports true. After the rate, it
// waits until this returns. After less, it asks at once for twice as much, to learn when that is
// free.
func (q *Queue) goesOn(m Moment, r *Request, g *protocol.Reply) bool {
	in := r.Instalments
	if in == nil {
		return false
	}
	in.Taken += r.N
	if !r.wantsMore() {
		return false
	}
	last := r.N
	r.N = 0
	if last < g.Rate {
		r.split(min(2*last, g.Rate))
		r.free = time.Time{}
		q.again(r, 0)
		return true
	}
	r.split(g.Rate)
	r.free = m.Clock.Add(g.Interval)
	if !q.settings.ServerTime && !g.Local() {
		r.free = time.UnixMicro(g.At).Add(g.Interval)
	}
	r.Outcome = Outcome{Result: Result{Limit: g.Rate, RetryAfter: r.free.Sub(m.Clock)}}
	q.land(r, Refused)
	return true
}

// later returns how long after its next instalment a request has the last one, at the earliest.
func (r *Request) later(rate int64, interval time.Duration) time.Duration {
	if r.Instalments == nil || rate <= 0 || interval <= 0 {
		return 0
	}
	more := (r.Instalments.Left + rate - 1) / rate
	return time.Duration(min(more, int64(math.MaxInt64/interval))) * interval
}
