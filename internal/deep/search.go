package deep

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
)

// search.go visits all states that can follow from a first one.

// A Search visits each state of type W once, depth first.
type Search[W any] struct {
	// makes states equal that allow the same steps from now on
	Forget func(w *W)
	// is called for each state: it checks the state, and calls Step for each step that is possible
	Visit func(w *W)

	States int // different ones so far

	seen    map[[sha256.Size]byte]struct{}
	bytes   []byte // memory for those of a state
	path    []taken
	choices []choice // of the last step
	chosen  int      // how many of them have been asked for
}

// A taken is a step, as the arguments of Sprintf.
type taken struct {
	what string
	args []any
}

// A choice is what Choose has returned, and its argument.
type choice struct{ now, of int }

// ErrViolation is what must not happen.
var ErrViolation = errors.New("violation")

// Violated ends the search.
func Violated(what string, args ...any) { panic(fmt.Sprintf(what, args...)) }

// A Failure is a panic with an error that is no violation: the search cannot go on.
type Failure struct{ Err error }

// longest is how many steps a path has at most: steps that do not end are a violation.
const longest = 500

// sample tells how many states are visited for each one that is checked to be the same if it is
// forgotten twice: else the search would go on from states that do not occur.
const sample = 64

// Run visits all states. The error is a violation, with the steps that lead there, or a Failure.
func (s *Search[W]) Run(first *W) (err error) {
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // states are copied all the time
	defer func() { err = s.ended(recover()) }()
	s.seen = map[[sha256.Size]byte]struct{}{}
	s.visit(first)
	return nil
}

// ended returns the error of what has ended a search; nil: it is complete. A panic of the code that
// is searched is a violation, too.
func (s *Search[W]) ended(cause any) error {
	if cause == nil {
		return nil
	}
	if failure, is := cause.(Failure); is {
		return failure.Err
	}
	var path strings.Builder
	for _, step := range s.path {
		fmt.Fprintf(&path, "\n  "+step.what, step.args...)
	}
	return fmt.Errorf("%w: %v%s", ErrViolation, cause, &path)
}

func (s *Search[W]) visit(w *W) {
	key := s.forget(w)
	if _, known := s.seen[key]; known {
		return
	}
	if s.States%sample == 0 && s.forget(w) != key {
		Violated("what is forgotten twice differs from what is forgotten once")
	}
	s.seen[key] = struct{}{}
	s.States++
	s.Visit(w)
}

// forget forgets what it may of a state, and returns the key of what is left.
func (s *Search[W]) forget(w *W) [sha256.Size]byte {
	s.Forget(w)
	s.bytes = Append(s.bytes[:0], w)
	return sha256.Sum256(s.bytes)
}

// Step takes a step from a state: do changes a copy of it, and the search visits that. For each
// number that do may get from Choose, the step is taken once.
func (s *Search[W]) Step(from *W, do func(next *W), what string, args ...any) {
	if len(s.path) == longest {
		Violated("more and more steps are possible")
	}
	s.path = append(s.path, taken{what, args})
	var choices []choice
	for more := true; more; choices, more = following(choices) {
		next := Copy(from)
		s.choices, s.chosen = choices, 0
		do(next)
		choices = s.choices // visit takes other steps
		s.visit(next)
	}
	s.path = s.path[:len(s.path)-1] // the steps that end the search stay
}

// Choose returns each number below n, in one run of a step after the other.
func (s *Search[W]) Choose(n int) int {
	if s.chosen == len(s.choices) {
		s.choices = append(s.choices, choice{0, n})
	}
	s.chosen++
	return s.choices[s.chosen-1].now
}

// following returns the choices of the next run of a step, as far as they are given; not more: the
// last run was the last one.
func following(choices []choice) (next []choice, more bool) {
	for len(choices) > 0 {
		last := &choices[len(choices)-1]
		if last.now++; last.now < last.of {
			return choices, true
		}
		choices = choices[:len(choices)-1]
	}
	return nil, false
}
