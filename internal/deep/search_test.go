package deep

import (
	"errors"
	"strings"
	"testing"
)

// A walker makes steps of 1 to 3, and is at a place.
type walker struct{ at, steps int }

// search returns a search of all places that three steps lead to. It forgets how many there were.
func walks(check func(w *walker)) *Search[walker] {
	s := &Search[walker]{Forget: func(*walker) {}}
	s.Visit = func(w *walker) {
		check(w)
		if w.steps == 3 {
			return
		}
		s.Step(w, func(next *walker) {
			next.steps++
			next.at += 1 + s.Choose(2)*s.Choose(3)
		}, "step %d from %d", w.steps+1, w.at)
	}
	return s
}

// Each state is visited once, and each choice is made.
func TestASearchVisitsEachStateOnce(t *testing.T) {
	seen := map[walker]int{}
	s := walks(func(w *walker) { seen[*w]++ })
	if err := s.Run(&walker{}); err != nil {
		t.Fatal(err)
	}
	const places = 1 + 3 + 5 + 7
	for w, times := range seen {
		if times != 1 {
			t.Errorf("%+v is visited %d times", w, times)
		}
	}
	if len(seen) != places || s.States != places {
		t.Errorf("%d states are visited, %d counted", len(seen), s.States)
	}
}

// States that Forget makes equal are one.
func TestASearchForgets(t *testing.T) {
	s := walks(func(*walker) {})
	s.Forget = func(w *walker) { w.at = 0 }
	if err := s.Run(&walker{}); err != nil || s.States != 4 {
		t.Errorf("%d states, %v", s.States, err)
	}
}

// A state that changes when it is forgotten again is a violation.
func TestASearchForgetsTheSameTwice(t *testing.T) {
	s := walks(func(*walker) {})
	s.Forget = func(w *walker) { w.at++ }
	if err := s.Run(&walker{}); !errors.Is(err, ErrViolation) {
		t.Errorf("%d states, %v", s.States, err)
	}
}

// A violation and a panic are reported with the steps that lead there, a failure as it is.
func TestHowASearchEnds(t *testing.T) {
	lost := errors.New("lost")
	for what, cause := range map[string]func(){
		"violation: 7 is too far\n  step 1 from 0\n": func() { Violated("%d is too far", 7) },
		"violation: oh\n  step 1 from 0\n":           func() { panic("oh") },
		"lost":                                       func() { panic(Failure{lost}) },
	} {
		err := walks(func(w *walker) {
			if w.at == 7 {
				cause()
			}
		}).Run(&walker{})
		if err == nil || !strings.HasPrefix(err.Error(), what) || errors.Is(err, ErrViolation) == errors.Is(err, lost) {
			t.Errorf("%q, not %q", err, what)
		}
	}
}

// Steps that do not end are a violation.
func TestASearchWithoutAnEnd(t *testing.T) {
	s := &Search[walker]{Forget: func(*walker) {}}
	s.Visit = func(w *walker) { s.Step(w, func(next *walker) { next.at++ }, "a step") }
	if err := s.Run(&walker{}); !errors.Is(err, ErrViolation) || s.States != longest+1 {
		t.Errorf("%d states, %v", s.States, err)
	}
}
