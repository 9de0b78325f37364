package dispatch

import (
	"fmt"
	"slices"
)

// The states of a request and of a batch. All changes are made by to, with the mutex of the queue or the set held.

// A requestState is the state of one caller's request:
//
//	queued     it waits for a call                                 → in flight, settled, gone
//	refused    it waits until its permits are free                 → in flight, settled, gone
//	in flight  it is in a batch that is not complete. Its caller
//	           may have left, if the permits can be given back     → queued, refused, settled, abandoned
//	abandoned  in flight, its caller has left, and its permits
//	           go to the callers behind it                         → gone
//	settled    its result or error is final
//	gone       its caller has left without a result
type requestState uint8

const (
	requestQueued requestState = iota
	requestRefused
	requestInFlight
	requestAbandoned
	requestSettled
	requestGone
)

var requestStates = [...]string{"queued", "refused", "in flight", "abandoned", "settled", "gone"}

func (s requestState) String() string { return requestStates[s] }

// requestTransitions has the states that may follow each state.
var requestTransitions = [...][]requestState{
	requestQueued:    {requestInFlight, requestSettled, requestGone},
	requestRefused:   {requestInFlight, requestSettled, requestGone},
	requestInFlight:  {requestQueued, requestRefused, requestSettled, requestAbandoned},
	requestAbandoned: {requestGone},
	requestSettled:   {},
	requestGone:      {},
}

// A batchState is the state of one call for many callers:
//
//	open      callers are added                                    → sent
//	sent      its queue waits for it                               → detached, complete
//	detached  it has stalled, and its queue goes on without it     → complete
//	complete  its callers have their results, or wait for another batch
type batchState uint8

const (
	batchOpen batchState = iota
	batchSent
	batchDetached
	batchComplete
)

var batchStates = [...]string{"open", "sent", "detached", "complete"}

func (s batchState) String() string { return batchStates[s] }

// batchTransitions has the states that may follow each state.
var batchTransitions = [...][]batchState{
	batchOpen:     {batchSent},
	batchSent:     {batchDetached, batchComplete},
	batchDetached: {batchComplete},
	batchComplete: {},
}

// Strict makes transitions that are not in the tables panic, for tests.
var Strict bool

// to changes the state of a request.
func (s *requestState) to(next requestState) {
	if Strict {
		mustAllow("request", requestTransitions[*s], *s, next)
	}
	*s = next
}

// inFlight reports whether the request is in a batch that is not complete.
func (s requestState) inFlight() bool { return s == requestInFlight || s == requestAbandoned }

// to changes the state of a batch.
func (s *batchState) to(next batchState) {
	if Strict {
		mustAllow("batch", batchTransitions[*s], *s, next)
	}
	*s = next
}

// mustAllow panics unless a state is among the allowed ones.
func mustAllow[S comparable](what string, allowed []S, from, to S) {
	if !slices.Contains(allowed, to) {
		panic(fmt.Sprintf("dispatch: a %s that is %v becomes %v", what, from, to))
	}
}
