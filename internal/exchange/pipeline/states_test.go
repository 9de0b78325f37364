package pipeline

import (
	"slices"
	"testing"
)

func init() { Strict = true }

func TestTransitions(t *testing.T) {
	for i := range runTransitions {
		for j := range runTransitions {
			from, to := runState(i), runState(j)
			allowed := slices.Contains(runTransitions[from], to)
			s := from
			if panicked := recovered(func() { s.to(to) }) != nil; panicked == allowed || allowed && s != to {
				t.Errorf("from %v to %v: panicked %v, allowed %v", from, to, panicked, allowed)
			}
		}
	}
}

// recovered returns what a function panics with; nil if it does not.
func recovered(f func()) (cause any) {
	defer func() { cause = recover() }()
	f()
	return nil
}
