package schedule

import "github.com/rratelimiter/rratelimiter/internal/protocol"

// Facts are what the owner of a queue has to know of a batch that is complete.
type Facts struct {
	protocol.PerLimiter[Tally]
	Granted int // requests
	// requests that failed with the batch though it did not carry them
	Behind  int
	Refused bool // a request was refused
	Sleeps  bool // waiting requests sleep
}

// A Tally is what a batch came to at one limiter.
type Tally struct {
	Own       int64 // permits that the reply granted
	Unclaimed int64 // of these, those that no request got: their callers have left
	Denied    int   // requests that this limiter refused, or that failed
}

// facts returns facts of nothing.
func (q *Queue) facts() Facts {
	return Facts{PerLimiter: protocol.Same(q.settings.Limiters, Tally{})}
}

// failed counts requests that failed.
func (f *Facts) failed(n int) {
	for limiter := range f.Len() {
		f.Of(limiter).Denied += n
	}
}
