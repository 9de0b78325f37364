package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/denycache"
	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// outcome.go has what a request comes to.

// An Outcome is what became of a request. With a reply that grants or refuses it, it has a
// MemberOutcome of each limiter; otherwise only the first one, which is zero.
type Outcome struct {
	protocol.PerLimiter[MemberOutcome]
	Err   error
	Taken int64 // permits that a request of kind UpTo took
	Local bool  // granted by the process
}

// A MemberError is an error that is about one limiter of a set.
type MemberError struct {
	Limiter int // numbered from 0
	Err     error
}

func (e MemberError) Error() string { return e.Err.Error() }
func (e MemberError) Unwrap() error { return e.Err }

// A MemberOutcome is what an outcome says of one limiter.
type MemberOutcome struct {
	Result
	At int64 // score of the record of a grant, or when the process granted, µs
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

// grant returns the outcome of a grant, after which so many permits are free. It uses memory.
func grant(g *protocol.Reply, free protocol.Permits, memory *[]MemberOutcome) Outcome {
	o := Outcome{PerLimiter: protocol.In(memory, g.Len()), Local: g.Local()}
	for limiter := range o.Len() {
		m := g.Of(limiter)
		*o.Of(limiter) = MemberOutcome{
			Result{true, m.Rate, *free.Of(limiter), 0, m.NextAfter, m.ResetAfter}, m.At,
		}
	}
	return o
}

// refusal returns the outcome of a refusal. Each limiter of a set has a wait of its own. It uses
// memory.
func refusal(g *protocol.Reply, v allotment, memory *[]MemberOutcome) Outcome {
	o := Outcome{PerLimiter: protocol.In(memory, g.Len())}
	for limiter := range o.Len() {
		m, wait := g.Of(limiter), v.wait
		if o.Len() > 1 {
			wait = g.WaitFor(v.group, limiter)
		}
		o.Of(limiter).Result = Result{false, m.Rate, m.Free, wait, m.NextAfter, m.ResetAfter}
	}
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
		if o := &r.Outcome; r.Kind == Try && !o.First.Allowed && o.Err == nil {
			if refusal, holds := q.Refusal(m, r.Permits.First, o.First.Result, g); holds {
				b.Refusals = append(b.Refusals, refusal)
			}
		}
	}
}

// Refusal returns what the deny cache keeps of a refusal of n permits. It keeps nothing if the
// permits are free but reserved for waiting callers, which may leave, if the process decided
// locally, or if another rate than the enforced one is in force.
func (q *Queue) Refusal(m Moment, n int64, r Result, g *protocol.Reply) (refusal denycache.Refusal, holds bool) {
	if !q.settings.DenyCache || n <= g.First.Free || g.Local() ||
		q.settings.Enforced && g.First.Notes.Has(protocol.RateMismatch) {
		return refusal, false
	}
	since := q.Since(m, g)
	return denycache.Refusal{
		N: n, Limit: g.First.Rate, Left: g.First.Free, Interval: g.First.Interval,
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
		for limiter := range r.Outcome.Len() {
			of := r.Outcome.Of(limiter)
			of.Result = q.Corrected(m, *r.Permits.Of(limiter), of.Result, local)
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
