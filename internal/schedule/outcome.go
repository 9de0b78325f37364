package schedule

import (
	"time"

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

// Results returns those of so many limiters: zero results of an outcome without a reply.
func (o *Outcome) Results(limiters int) []Result {
	results := make([]Result, limiters)
	for i := range o.Len() {
		results[i] = o.Of(i).Result
	}
	return results
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
