// Package series keeps what promlimit, otellimit, httplimit and rrl export count for limiters.
// Limiters with the same label share one series, and the number of labels is bounded. The package
// uses no metrics library.
package series

import (
	"iter"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

const (
	// Other is the label of all limiters that come when there are enough labels.
	Other = "other"
	// Most is how many labels there are at most, unless it is set.
	Most = 100
)

// A Set is series of one kind, made when they are first needed.
type Set[T any] struct {
	label func(limiter string) string
	most  int
	make  func(label string) T
	all   sync.Map // label -> T
	none  T        // of all limiters, where there is no label

	mu    sync.Mutex
	count int
}

// New makes a set. Without a label function there is one series, without a label; most <= 0 means
// Most.
func New[T any](label func(limiter string) string, most int, make func(label string) T) *Set[T] {
	if most <= 0 {
		most = Most
	}
	s := &Set[T]{label: label, most: most, make: make}
	if label == nil {
		s.none = make("")
	}
	return s
}

// LabelOf makes a UTF-8 label of a name or an id of any bytes. Different names get different
// labels.
func LabelOf(name string) string {
	if utf8.ValidString(name) && !strings.HasPrefix(name, `"`) {
		return name
	}
	return strconv.Quote(name)
}

// Of is the series of a limiter.
func (s *Set[T]) Of(limiter string) T {
	if s.label == nil {
		return s.none
	}
	label := LabelOf(s.label(limiter))
	if found, ok := s.all.Load(label); ok {
		return found.(T)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, ok := s.all.Load(label); ok {
		return found.(T)
	}
	if label != Other {
		if s.count >= s.most {
			if found, ok := s.all.Load(Other); ok {
				return found.(T)
			}
			label = Other
		} else {
			s.count++
		}
	}
	made := s.make(label)
	s.all.Store(label, made)
	return made
}

// All gives the series there are.
func (s *Set[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		if s.label == nil {
			yield(s.none)
			return
		}
		s.all.Range(func(_, found any) bool { return yield(found.(T)) })
	}
}
