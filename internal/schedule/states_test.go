package schedule

import (
	"slices"
	"testing"
)

func init() { Strict = true }

// panics reports whether a transition panics.
func panics(transition func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	transition()
	return false
}

func TestTransitions(t *testing.T) {
	for from := range transitions {
		for to := range transitions {
			s := State(from)
			allowed := slices.Contains(transitions[from], State(to))
			if panicked := panics(func() { s.To(State(to)) }); panicked == allowed || allowed && s != State(to) {
				t.Errorf("a request from %v to %v: panicked %v, allowed %v", State(from), State(to), panicked, allowed)
			}
		}
	}
	for from := range batchTransitions {
		for to := range batchTransitions {
			s := BatchState(from)
			allowed := slices.Contains(batchTransitions[from], BatchState(to))
			if panicked := panics(func() { s.To(BatchState(to)) }); panicked == allowed ||
				allowed && s != BatchState(to) {
				t.Errorf("a batch from %v to %v: panicked %v, allowed %v",
					BatchState(from), BatchState(to), panicked, allowed)
			}
		}
	}
}
