package pipeline

import (
	"fmt"
	"slices"
)

// The states of a run. All changes are made by to, with the mutex of the pipeline locked.

// A runState is the state of a run:
//
//	running    it is in time, and has a slot                       → stalled, over
//	stalled    it takes too long, or its node is away. It keeps
//	           its slot: MaxStalled runs have released theirs      → released, emptied, over
//	released   the same, and it has released its slot              → abandoned, over
//	emptied    all its jobs are complete, though its commands
//	           are not. It has a slot                              → over
//	abandoned  the same, and it has no slot                        → over
//	over       its commands have ended                             → running, if it is used again
type runState uint8

const (
	running runState = iota
	stalled
	released
	emptied
	abandoned
	over
)

var runStates = [...]string{"running", "stalled", "released", "emptied", "abandoned", "over"}

func (s runState) String() string { return runStates[s] }

// runTransitions has the states that may follow each state.
var runTransitions = [...][]runState{
	running:   {stalled, over},
	stalled:   {released, emptied, over},
	released:  {abandoned, over},
	emptied:   {over},
	abandoned: {over},
	over:      {running},
}

// Strict makes transitions that are not in the table panic, for tests.
var Strict bool

// to changes the state of a run.
func (s *runState) to(next runState) {
	if Strict && !slices.Contains(runTransitions[*s], next) {
		panic(fmt.Sprintf("pipeline: a run that is %v becomes %v", *s, next))
	}
	*s = next
}

// hasSlot reports whether the run has a slot. One whose commands have ended may have it for a
// while: see Run.execute.
func (s runState) hasSlot() bool { return s == running || s == stalled || s == emptied }

// waits reports whether jobs of the run wait for its commands.
func (s runState) waits() bool { return s == running || s == stalled || s == released }
