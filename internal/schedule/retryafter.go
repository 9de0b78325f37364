package schedule

import (
	"time"

	"github.com/rratelimiter/rratelimiter/internal/protocol"
)

// retryafter.go has what a refusal tells, such as RetryAfter: by the reply and, while callers wait,
// by what they wait for.

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
	// but reserved for waiting callers; for a set it means only that another limiter has refused
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
			o.RetryAfter = max(o.RetryAfter, q.servedAt(m, first).Sub(m.Clock))
		}
	}
	o.NextAfter = o.RetryAfter
	o.ResetAfter = max(o.ResetAfter, o.RetryAfter)
	return o
}

// servedAt returns when a waiting request may be asked for: at its turn, or with an earlier last
// call.
func (q *Queue) servedAt(m Moment, r *Request) time.Time {
	at, cause := q.turn(m, r)
	if cause == OurTurn {
		at = q.earlierLastCall(at)
	}
	return at
}
