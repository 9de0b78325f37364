package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// outcome.go has what a request comes to.

// An Outcome is what became of a request.
type Outcome struct {
	Result
	Err   error
	Taken int64 // permits that a request of kind UpTo took
	At    int64 // score of the record of a grant, or when the process granted, µs
	Local bool  // granted by the process
	// of the other limiters of a set; nil without a reply, or with an error
	others []MemberOutcome
}

// Of returns what the outcome says of a limiter, numbered from 0. Without a reply, and with an
// error, it says nothing.
func (o *Outcome) Of(limiter int) MemberOutcome {
	switch {
	case limiter == 0:
		return MemberOutcome{o.Result, o.At}
	case limiter <= len(o.others):
		return o.others[limiter-1]
	}
	return MemberOutcome{}
}

// A MemberError is an error that is about one limiter of a set.
type MemberError struct {
	Limiter int // numbered from 0
	Err     error
}

func (e MemberError) Error() string { return e.Err.Error() }
func (e MemberError) Unwrap() error { return e.Err }

// A MemberOutcome is what an outcome says of one limiter of a set.
type MemberOutcome struct {
	Result
	At int64
}

// A Result is an outcome as the caller gets it.
type Result struct {
	Allowed    bool
	Limit      int64         // the rate
	Remaining  int64         // permits that are free after the request
	RetryAfter time.Duration // after a refusal
	NextAfter  time.Duration
	ResetAfter time.Duration
}

// grant returns the outcome of a grant, after which so many permits are free. It uses memory for
// outcomes.
func grant(g *protocol.Reply, free protocol.Permits, outcomes *[]MemberOutcome) Outcome {
	o := Outcome{Result: Result{true, g.Rate, free.First, 0, g.NextAfter, g.ResetAfter}, At: g.At, Local: g.Local()}
	if len(g.Others) == 0 {
		return o
	}
	from := len(*outcomes)
	for i := range g.Others {
		m := &g.Others[i]
		*outcomes = append(*outcomes,
			MemberOutcome{Result{true, m.Rate, free.Rest[i], 0, m.NextAfter, m.ResetAfter}, m.At})
	}
	o.others = (*outcomes)[from:]
	return o
}

// refusal returns the outcome of a refusal. Each limiter of a set has a wait of its own. It uses
// memory for outcomes.
func refusal(g *protocol.Reply, v allotment, outcomes *[]MemberOutcome) Outcome {
	o := Outcome{Result: Result{false, g.Rate, g.Free, v.wait, g.NextAfter, g.ResetAfter}}
	if len(g.Others) == 0 {
		return o
	}
	o.RetryAfter = g.WaitFor(v.group, 0)
	from := len(*outcomes)
	for i := range g.Others {
		m := &g.Others[i]
		*outcomes = append(
			*outcomes, MemberOutcome{
				Result: Result{false, m.Rate, m.Free, g.WaitFor(v.group, 1+i), m.NextAfter, m.ResetAfter},
			},
		)
	}
	o.others = (*outcomes)[from:]
	return o
}

func oneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// remember keeps the refusals of a batch for the deny cache.
func (q *Queue) remember(m Moment, b *Batch, g *protocol.Reply) {
	for _, r := range b.Settled {
		if o := &r.Outcome; r.Kind == Try && !o.Allowed && o.Err == nil {
			if refusal, holds := q.Refusal(m, r.Permits.First, o.Result, g); holds {
				b.Refusals = append(b.Refusals, refusal)
			}
		}
	}
}

// Refusal returns what the deny cache keeps of a refusal of n permits. It keeps nothing if the
// permits are free but reserved for waiting callers, which may leave, if the process decided
// locally, or if another rate than the enforced one is in force.
func (q *Queue) Refusal(m Moment, n int64, r Result, g *protocol.Reply) (refusal denycache.Refusal, holds bool) {
	if !q.settings.DenyCache || n <= g.Free || g.Local() || q.settings.Enforced && g.Notes.Has(protocol.RateMismatch) {
		return refusal, false
	}
	since := q.Since(m, g)
	return denycache.Refusal{
		N: n, Limit: g.Rate, Left: g.Free, Interval: g.Interval,
		Free: since.Add(r.RetryAfter), Next: since.Add(r.NextAfter), Reset: since.Add(r.ResetAfter),
	}, true
}

// correct corrects the outcomes of the refused requests of a complete batch that do not wait
// (Corrected).
func (q *Queue) correct(m Moment, b *Batch, local bool) {
	for _, r := range b.Settled {
		if r.Kind == Wait || r.Outcome.Err != nil {
			continue
		}
		o := &r.Outcome
		o.Result = q.Corrected(m, r.Permits.First, o.Result, local)
		for i := range o.others {
			o.others[i].Result = q.Corrected(m, r.Permits.Rest[i], o.others[i].Result, local)
		}
	}
}

// Corrected corrects the result of a request for n permits that does not wait. If it was refused,
// free permits are reserved for the waiting requests, so Remaining is 0, and RetryAfter is at least
// the time until the first of them can be served. local: the process made the reply, which contains
// that wait already.
func (q *Queue) Corrected(m Moment, n int64, o Result, local bool) Result {
	first := q.line.first
	// but reserved; if the queue is of a set, another limiter has refused
	free := n <= o.Remaining && q.settings.Limiters == 1
	if o.Allowed || first == nil && !free {
		return o
	}
	o.Remaining = 0
	if !local {
		if free && (first != nil || len(q.reservations) == 0) {
			o.RetryAfter = time.Millisecond
		}
		if first != nil {
			at, _ := q.turn(m, first)
			o.RetryAfter = max(o.RetryAfter, at.Sub(m.Clock))
		}
	}
	o.NextAfter = o.RetryAfter
	o.ResetAfter = max(o.ResetAfter, o.RetryAfter)
	return o
}
