package schedule

import (
	"fmt"
	"slices"
)

// The states of a request and of a batch. To makes each change.

// A State is the state of one request:
//
//	queued     it waits for a call                                 → in flight, settled, gone, resting
//	resting    it waits for its turn: its process leaves permits
//	           to other clients                                    → in flight, settled, gone
//	refused    it waits until its permits are free                 → in flight, settled, gone
//	in flight  it is in a batch that is not complete. Its caller
//	           may have left, if the permits can be given back     → queued, refused, settled, abandoned
//	abandoned  in flight, its caller has left, and its permits
//	           go to the requests behind it                        → gone
//	settled    its outcome is final
//	gone       its caller has left without an outcome
type State uint8

const (
	Queued State = iota
	Resting
	Refused
	InFlight
	Abandoned
	Settled
	Gone
)

var stateNames = [...]string{"queued", "resting", "refused", "in flight", "abandoned", "settled", "gone"}

func (s State) String() string { return stateNames[s] }

// transitions has the states that may follow each state.
var transitions = [...][]State{
	Queued:    {InFlight, Settled, Gone, Resting},
	Resting:   {InFlight, Settled, Gone},
	Refused:   {InFlight, Settled, Gone},
	InFlight:  {Queued, Refused, Settled, Abandoned},
	Abandoned: {Gone},
	Settled:   {},
	Gone:      {},
}

// A BatchState is the state of one call for many requests:
//
//	open      requests are added                                   → sent
//	sent      its queue waits for it                               → detached, complete
//	detached  it has stalled, and its queue goes on without it     → complete
//	complete  its requests are settled, or wait for another batch
type BatchState uint8

const (
	BatchOpen BatchState = iota
	BatchSent
	BatchDetached
	BatchComplete
)

var batchStateNames = [...]string{"open", "sent", "detached", "complete"}

func (s BatchState) String() string { return batchStateNames[s] }

// batchTransitions has the states that may follow each state.
var batchTransitions = [...][]BatchState{
	BatchOpen:     {BatchSent},
	BatchSent:     {BatchDetached, BatchComplete},
	BatchDetached: {BatchComplete},
	BatchComplete: {},
}

// Strict makes transitions that are not in the tables panic, for tests.
var Strict bool

// To changes the state.
func (s *State) To(next State) {
	if Strict {
		mustAllow("request", transitions[*s], *s, next)
	}
	*s = next
}

// InFlight reports whether the request is in a batch that is not complete.
func (s State) InFlight() bool { return s == InFlight || s == Abandoned }

// unasked reports whether the request waits to be in a batch, whenever that is sent.
func (s State) unasked() bool { return s == Queued || s == Resting }

// Final reports whether the state is the last one.
func (s State) Final() bool { return s == Settled || s == Gone }

// To changes the state.
func (s *BatchState) To(next BatchState) {
	if Strict {
		mustAllow("batch", batchTransitions[*s], *s, next)
	}
	*s = next
}

// mustAllow panics unless a state is among the allowed ones.
func mustAllow[S comparable](what string, allowed []S, from, to S) {
	if !slices.Contains(allowed, to) {
		panic(fmt.Sprintf("schedule: a %s that is %v becomes %v", what, from, to))
	}
}
