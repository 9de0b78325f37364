package schedule

// Facts are what the owner of a queue has to know of a batch that is complete.
type Facts struct {
	Tally           // of the first limiter
	Others  []Tally // of the other limiters of a set
	Granted int     // requests
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

// Of returns the tally of a limiter, numbered from 0.
func (f *Facts) Of(limiter int) *Tally {
	if limiter == 0 {
		return &f.Tally
	}
	return &f.Others[limiter-1]
}

// facts returns facts of nothing.
func (q *Queue) facts() Facts { return Facts{Others: make([]Tally, q.settings.Limiters-1)} }

// failed counts requests that failed.
func (f *Facts) failed(n int) {
	for limiter := range 1 + len(f.Others) {
		f.Of(limiter).Denied += n
	}
}
