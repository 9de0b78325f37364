package schedule

import (
	"fmt"
	"slices"
)

// The states of a request and of a batch. To makes each change.

// A State is the state of one request:
//
//	queued     the next batch is to ask for it, or it waits
//	           behind others and was not asked for yet        → in flight, settled, gone, resting
//	resting    the last batch left it out: its process leaves
//	           permits to other clients until its turn        → in flight, settled, gone
//	refused    it was asked for, and waits until its permits
//	           are free, or for the requests in front         → in flight, settled, gone
//	in flight  it is in a batch that is not complete          → queued, refused, settled, abandoned
//	abandoned  it is in flight, and its caller has left: what
//	           is granted for it goes to those behind it      → gone
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
//	detached  it has stalled, and its queue waits for it no longer → complete
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

// unasked reports whether the request is in no batch, and no reply has refused it since it was in
// one.
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
