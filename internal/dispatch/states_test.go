package dispatch

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
	for from := range requestTransitions {
		for to := range requestTransitions {
			r := requestState(from)
			allowed := slices.Contains(requestTransitions[from], requestState(to))
			if panicked := panics(func() { r.to(requestState(to)) }); panicked == allowed || allowed && r != requestState(to) {
				t.Errorf("a request from %v to %v: panicked %v, allowed %v", requestState(from), requestState(to), panicked, allowed)
			}
		}
	}
	for from := range batchTransitions {
		for to := range batchTransitions {
			b := batchState(from)
			allowed := slices.Contains(batchTransitions[from], batchState(to))
			if panicked := panics(func() { b.to(batchState(to)) }); panicked == allowed || allowed && b != batchState(to) {
				t.Errorf("a batch from %v to %v: panicked %v, allowed %v", batchState(from), batchState(to), panicked, allowed)
			}
		}
	}
}
